import copy
import math
import pickle

import cmaes
import numpy as np
import optuna
import pytest
from optuna.samplers import CmaEsSampler
from optuna.testing.pytest_samplers import (
    BasicSamplerTestCase,
    RelativeSamplerTestCase,
    SingleOnlySamplerTestCase,
)

from optuna_taylorglo.attributes import ATTEMPT, GENERATION, INDEX
from optuna_taylorglo.evolution.sampler import THETA_NAMES, TaylorGLOSampler


class TestConformance(BasicSamplerTestCase, RelativeSamplerTestCase, SingleOnlySamplerTestCase):
    """What Optuna asks of every sampler of its kind."""

    @pytest.fixture
    def sampler(self):
        assert issubclass(TaylorGLOSampler, CmaEsSampler)  # for programs that ask
        return TaylorGLOSampler


def ellipsoid(theta):
    return sum((10.0 ** (i / 7) * (x - 1)) ** 2 for i, x in enumerate(theta))


def candidates(study):
    return [[trial.params[name] for name in THETA_NAMES] for trial in study.trials]


def optimize(n_trials, *, n_jobs=1, objective=ellipsoid, **settings):
    sampler = TaylorGLOSampler(**{"names": THETA_NAMES, "popsize": 8} | settings)
    study = optuna.create_study(sampler=sampler)
    study.optimize(lambda t: objective(sampler.suggest(t)), n_trials=n_trials, n_jobs=n_jobs)
    return study, sampler


def told(study, popsize):
    """cmaes, told the generations of a study by hand."""
    cma = cmaes.CMA(mean=np.zeros(8), sigma=1.2, population_size=popsize)
    for start in range(0, len(study.trials), popsize):
        trials = sorted(study.trials[start : start + popsize], key=lambda t: t.value)
        cma.tell([(np.array(list(t.params.values())), float(i)) for i, t in enumerate(trials)])
    return cma


def test_first_generation_has_the_mean_and_deviation_asked_for():
    study, sampler = optimize(20, popsize=2000, x0={"theta_1": 5.0})
    thetas = np.array([sampler._replay.draw(0, number) for number in range(2000)])
    np.testing.assert_array_equal(thetas[:20], candidates(study))
    np.testing.assert_allclose(thetas.mean(axis=0), [0, 5, 0, 0, 0, 0, 0, 0], atol=0.1)
    np.testing.assert_allclose(thetas.std(axis=0), 1.2, atol=0.05)
    assert len(np.unique(thetas, axis=0)) == 2000
    attrs = study.trials[9].user_attrs
    assert [attrs[key] for key in (GENERATION, INDEX, ATTEMPT)] == [0, 9, 0]


def test_generations_are_those_of_cmaes():
    study, sampler = optimize(120, popsize=6, seed=3)
    cma = told(study, 6)
    state = sampler.search_state(study)[-1]
    assert state.generation == 20
    np.testing.assert_array_equal(state.mean, cma.mean)
    assert state.sigma == cma._sigma
    assert state.condition_number > 1
    # It gets nearer to the target, and another seed is another search.
    assert study.best_trial.number > 60
    other, _ = optimize(6, popsize=6)
    assert not np.isin(candidates(other), candidates(study)).any()


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
def test_a_new_or_copied_sampler_goes_on_bit_by_bit(duplicate):
    whole, _ = optimize(64)
    study, sampler = optimize(30)
    for successor in (duplicate(sampler), TaylorGLOSampler(names=THETA_NAMES, popsize=8)):
        study.sampler = successor
        # Any sampler with the same names suggests the same way; the study's one draws.
        study.optimize(lambda t: ellipsoid(sampler.suggest(t)), n_trials=17)
    assert candidates(study) == candidates(whole)


def test_one_sampler_serves_two_studies_in_turn():
    whole, sampler = optimize(20)
    studies = [optuna.create_study(sampler=sampler) for _ in range(2)]
    for _ in range(20):
        for study in studies:
            study.optimize(lambda t: ellipsoid(sampler.suggest(t)), n_trials=1)
    assert candidates(studies[0]) == candidates(studies[1]) == candidates(whole)


def test_enqueued_candidates_take_part():
    sampler = TaylorGLOSampler(names=THETA_NAMES, popsize=4)
    study = optuna.create_study(sampler=sampler)
    study.enqueue_trial(dict.fromkeys(THETA_NAMES, 1.0))
    study.enqueue_trial({"theta_0": 3.0})
    study.optimize(lambda t: ellipsoid(sampler.suggest(t)), n_trials=4)
    plain, _ = optimize(4, popsize=4)
    assert candidates(study)[0] == [1.0] * 8
    assert candidates(study)[1] == [3.0, *candidates(plain)[1][1:]]
    assert candidates(study)[2:] == candidates(plain)[2:]
    np.testing.assert_array_equal(sampler.search_state(study)[1].mean, told(study, 4).mean)


def test_refused_candidates_are_never_proposed_and_the_rest_stays_deterministic():
    def accept(theta):
        return theta[5] > 0

    study, _ = optimize(40, accept=accept)
    again, _ = optimize(40, accept=accept)
    assert all(theta[5] > 0 for theta in candidates(study))
    assert candidates(study) == candidates(again)
    free, _ = optimize(8)
    kept = [theta for theta in candidates(free) if accept(theta)]
    assert kept
    assert all(theta in candidates(study) for theta in kept)
    with pytest.raises(RuntimeError, match="accept refused 1000 draws in a row for candidate 0"):
        optimize(1, accept=lambda theta: False)


def test_candidates_stay_within_their_limits_and_have_their_units():
    plain, _ = optimize(40)
    scaled, _ = optimize(
        40, objective=lambda v: ellipsoid([v[0], 8 * v[1], *v[2:]]), units={"theta_1": 0.125}
    )
    assert candidates(scaled) == [[t[0], t[1] / 8, *t[2:]] for t in candidates(plain)]
    limits = {"units": {"theta_1": 0.1}, "limits": {"theta_1": (-0.03, 0.09)}, "bound": 1.5}
    study, _ = optimize(100, **limits)
    thetas = np.array(candidates(study))
    assert np.abs(thetas).max() <= 1.5
    second = thetas[:, 1]
    assert -0.03 <= second.min() < second.max() <= 0.09
    # Draws beyond a limit are repeated, neither put on it nor replaced by uniform ones.
    assert len({*second}) == 100
    assert np.mean(np.abs(thetas[:8]) < 0.75) > 0.5
    distribution = study.trials[0].distributions["theta_1"]
    assert (distribution.low, distribution.high) == (-0.03, 0.09)


def test_narrower_range_clips_instead_of_drawing_anew():
    study, _ = optimize(8)
    clipped = optuna.create_study(sampler=TaylorGLOSampler(names=THETA_NAMES, popsize=8))
    clipped.optimize(
        lambda t: sum(t.suggest_float(name, -0.5, 0.5) for name in THETA_NAMES), n_trials=8
    )
    np.testing.assert_array_equal(candidates(clipped), np.clip(candidates(study), -0.5, 0.5))


def test_other_parameters_do_not_disturb_the_search():
    plain, sampler = optimize(20)
    study = optuna.create_study(sampler=sampler)

    def objective(trial):
        trial.suggest_categorical("net", ["a", "b"])
        trial.suggest_float("lr", 1e-4, 1.0, log=True)
        return ellipsoid(sampler.suggest(trial))

    study.optimize(objective, n_trials=20)
    assert candidates(study) == candidates(plain)
    fixed = optuna.samplers.PartialFixedSampler({"theta_2": 0.0}, sampler)
    study = optuna.create_study(sampler=fixed)
    study.optimize(lambda t: ellipsoid(sampler.suggest(t)), n_trials=4)
    assert candidates(study) == [[*t[:2], 0.0, *t[3:]] for t in candidates(plain)[:4]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"names": "theta_0"}, "names must be"),
        ({"names": ("a", "a")}, "names must be"),
        ({"sigma": math.nan}, "sigma must be a positive number, got nan"),
        ({"seed": -1}, "seed must be an integer of at least 0, got -1"),
        ({"bound": 1.0}, "bound must be finite and larger than sigma 1.2, got 1.0"),
        ({"popsize": 1}, "popsize must be an integer of at least 2, got 1"),
        ({"popsize": 2.0}, "popsize must be"),
        ({"attempts": True}, "attempts must be"),
        ({"popsize": 4, "overlap": 4}, "overlap must be smaller than popsize 4, got 4"),
        ({"units": {"c": 1.0}}, "units has 'c'; the parameters are theta_0, "),
        ({"units": {"theta_0": 0.0}}, "units must be positive"),
        ({"limits": {"theta_0": (1.0, 1.0)}}, r"limits has theta_0 \(1\.0, 1\.0\)"),
        ({"x0": {"theta_1": 7.0}, "bound": 5.0}, r"x0 has theta_1 7, which is not in \[-5, 5\]"),
    ],
)
def test_bad_arguments_are_named(settings, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        TaylorGLOSampler(**{"names": THETA_NAMES} | settings)
