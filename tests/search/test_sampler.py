from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import cmaes
import numpy as np
import optuna
import pytest
from optuna.samplers import BaseSampler
from optuna.testing.pytest_samplers import (
    BasicSamplerTestCase,
    SingleOnlySamplerTestCase,
)
from optuna.trial import TrialState

from optuna_taylorglo.attributes import ATTEMPT, GENERATION, INDEX
from optuna_taylorglo.search.generations import Slot
from optuna_taylorglo.search.sampler import THETA_NAMES, TaylorGLOSampler
from optuna_taylorglo.search.scheduler import GenerationScheduler
from optuna_taylorglo.seeds import training_seed


class TestConformance(BasicSamplerTestCase, SingleOnlySamplerTestCase):
    """What Optuna asks of every sampler of its kind."""

    @pytest.fixture
    def sampler(self) -> Callable[[], BaseSampler]:
        return TaylorGLOSampler


def ellipsoid(theta: Sequence[float]) -> float:
    return sum((10.0 ** (i / 7) * (x - 1)) ** 2 for i, x in enumerate(theta))


def candidates(study: optuna.Study) -> list[list[float]]:
    return [[trial.params[name] for name in THETA_NAMES] for trial in study.trials]


def optimize(
    n_trials: int, *, sign: int = 1, n_jobs: int = 1, **settings: Any
) -> tuple[optuna.Study, TaylorGLOSampler]:
    sampler = TaylorGLOSampler(**settings)
    direction = "minimize" if sign == 1 else "maximize"
    study = optuna.create_study(sampler=sampler, direction=direction)
    study.optimize(lambda t: sign * ellipsoid(sampler.suggest(t)), n_trials=n_trials, n_jobs=n_jobs)
    return study, sampler


def test_first_generation_has_the_mean_and_deviation_asked_for() -> None:
    study, sampler = optimize(20, popsize=2000)
    slots = [Slot(0, number, sampler.policy) for number in range(2000)]
    thetas = np.array([sampler.candidate(slot) for slot in slots])
    np.testing.assert_array_equal(thetas[:20], candidates(study))
    np.testing.assert_allclose(thetas.mean(axis=0), 0, atol=0.1)
    np.testing.assert_allclose(thetas.std(axis=0), 1.2, atol=0.05)
    assert len(np.unique(thetas, axis=0)) == 2000


def test_generations_are_those_of_cmaes_told_ranks() -> None:
    """The update is cmaes' own: replaying the study's trials by hand gives the same state."""
    study, sampler = optimize(30, popsize=6, seed=3)
    cma = cmaes.CMA(mean=np.zeros(8), sigma=1.2, population_size=6)
    for start in range(0, 30, 6):
        generation = study.trials[start : start + 6]
        cma.tell([(np.array(list(t.params.values())), t.value) for t in generation])
    state = sampler.search_state(study)[-1]
    assert state.generation == 5
    np.testing.assert_array_equal(state.mean, cma.mean)
    assert state.sigma == cma._sigma
    assert state.condition_number > 1


def test_search_gets_to_the_target() -> None:
    study, _ = optimize(1200, popsize=12)
    assert study.best_value < 1e-3


def test_both_directions_are_one_search() -> None:
    down, _ = optimize(40, popsize=8)
    up, _ = optimize(40, popsize=8, sign=-1)
    assert candidates(down) == candidates(up)


def test_seed_decides_the_candidates() -> None:
    first, again, other = (optimize(20, popsize=8, seed=seed)[0] for seed in (5, 5, 6))
    assert candidates(first) == candidates(again)
    assert not np.isin(candidates(first), candidates(other)).any()


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
def test_a_new_or_copied_sampler_goes_on_bit_by_bit(
    duplicate: Callable[[TaylorGLOSampler], TaylorGLOSampler],
) -> None:
    whole, _ = optimize(64, popsize=8)
    study, sampler = optimize(30, popsize=8)
    for successor in (duplicate(sampler), TaylorGLOSampler(popsize=8)):
        study.sampler = successor
        # Any sampler with the same names suggests the same way; the study's one draws.
        study.optimize(lambda t: ellipsoid(sampler.suggest(t)), n_trials=17)
    assert candidates(study) == candidates(whole)


def test_one_sampler_serves_two_studies_in_turn() -> None:
    whole, sampler = optimize(40, popsize=8)
    studies = [optuna.create_study(sampler=sampler) for _ in range(2)]
    for _ in range(40):
        for study in studies:
            study.optimize(lambda t: ellipsoid(sampler.suggest(t)), n_trials=1)
    assert candidates(studies[0]) == candidates(studies[1]) == candidates(whole)


def test_trials_say_where_they_belong() -> None:
    study, _ = optimize(10, popsize=8)
    attrs = [[t.user_attrs[key] for key in (GENERATION, INDEX, ATTEMPT)] for t in study.trials]
    assert attrs[0] == [0, 0, 0]
    assert attrs[9] == [1, 1, 0]
    assert all(not t.system_attrs for t in study.trials)


def test_threads_without_a_gate_do_not_block_and_lose_nothing() -> None:
    study, sampler = optimize(64, popsize=8, n_jobs=4)
    assert all(t.state == TrialState.COMPLETE for t in study.trials)
    assert len(sampler.search_state(study)) == 9


def test_pruned_and_failed_trials_are_the_worst_of_their_generation() -> None:
    """Told apart by a search that has only trouble on one side of a plane."""
    sampler = TaylorGLOSampler(popsize=8)
    study = optuna.create_study(sampler=sampler, direction="maximize")

    def objective(trial: optuna.Trial) -> float:
        theta = sampler.suggest(trial)
        if theta[0] < 0:
            trial.report(0.1, 1)
            raise optuna.TrialPruned
        if theta[1] < 0:
            return math.nan
        return 0.0

    study.optimize(objective, n_trials=80)
    states = sampler.search_state(study)
    assert len(states) == 11
    assert states[-1].mean[0] > 1
    assert states[-1].mean[1] > 1


def test_enqueued_candidates_take_part() -> None:
    sampler = TaylorGLOSampler(popsize=4)
    study = optuna.create_study(sampler=sampler)
    study.enqueue_trial(dict.fromkeys(THETA_NAMES, 1.0))
    study.enqueue_trial({"theta_0": 3.0})
    study.optimize(lambda t: ellipsoid(sampler.suggest(t)), n_trials=8)
    plain, _ = optimize(8, popsize=4)
    assert candidates(study)[0] == [1.0] * 8
    assert candidates(study)[1] == [3.0, *candidates(plain)[1][1:]]
    assert candidates(study)[2:4] == candidates(plain)[2:4]
    cma = cmaes.CMA(mean=np.zeros(8), sigma=1.2, population_size=4)
    cma.tell([(np.array(theta), ellipsoid(theta)) for theta in candidates(study)[:4]])
    np.testing.assert_array_equal(sampler.search_state(study)[1].mean, cma.mean)


def test_refused_candidates_are_never_proposed_and_the_rest_stays_deterministic() -> None:
    def accept(theta: Sequence[float]) -> bool:
        return theta[5] > 0

    study, _ = optimize(40, popsize=8, accept=accept)
    again, _ = optimize(40, popsize=8, accept=accept)
    assert all(theta[5] > 0 for theta in candidates(study))
    assert candidates(study) == candidates(again)
    free, _ = optimize(8, popsize=8)
    kept = [theta for theta in candidates(free) if accept(theta)]
    assert kept
    assert all(theta in candidates(study) for theta in kept)


def test_filter_that_refuses_everything_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="accept refused 1000 draws in a row for candidate 0"):
        optimize(1, accept=lambda theta: False)


def test_candidates_stay_within_the_bound() -> None:
    study, _ = optimize(200, popsize=10, sigma=1.2, bound=1.5)
    thetas = np.array(candidates(study))
    assert np.abs(thetas).max() <= 1.5
    # A uniform fallback would leave no trace of the normal distribution's hump.
    assert np.mean(np.abs(thetas[:10]) < 0.75) > 0.5


def test_narrower_range_clips_instead_of_drawing_anew() -> None:
    study, _ = optimize(8, popsize=8)
    sampler = TaylorGLOSampler(popsize=8)
    clipped = optuna.create_study(sampler=sampler)
    clipped.optimize(
        lambda t: sum(t.suggest_float(name, -0.5, 0.5) for name in THETA_NAMES), n_trials=8
    )
    np.testing.assert_array_equal(candidates(clipped), np.clip(candidates(study), -0.5, 0.5))


def test_other_parameters_do_not_disturb_the_search() -> None:
    plain, _ = optimize(20, popsize=8)
    sampler = TaylorGLOSampler(popsize=8)
    study = optuna.create_study(sampler=sampler)

    def objective(trial: optuna.Trial) -> float:
        trial.suggest_categorical("net", ["a", "b"])
        trial.suggest_float("lr", 1e-4, 1.0, log=True)
        return ellipsoid(sampler.suggest(trial))

    study.optimize(objective, n_trials=20)
    assert candidates(study) == candidates(plain)


def test_partially_fixed_search_keeps_the_other_coordinates() -> None:
    plain, _ = optimize(4, popsize=4)
    sampler = TaylorGLOSampler(popsize=4)
    study = optuna.create_study(
        sampler=optuna.samplers.PartialFixedSampler({"theta_2": 0.0}, sampler)
    )
    study.optimize(lambda t: ellipsoid(sampler.suggest(t)), n_trials=4)
    expected = [[*theta[:2], 0.0, *theta[3:]] for theta in candidates(plain)]
    assert candidates(study) == expected


def test_nothing_of_the_database_is_unpickled(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = TaylorGLOSampler(popsize=4)
    study = optuna.create_study(sampler=sampler)
    monkeypatch.setattr(pickle, "loads", lambda *_: pytest.fail("unpickled"))
    bomb = optuna.create_trial(value=0.0, system_attrs={"cma:optimizer:0": "80"})
    study.add_trial(bomb)
    study.optimize(lambda t: ellipsoid(sampler.suggest(t)), n_trials=8)
    study.optimize(lambda t: t.suggest_float("x", 0, 1), n_trials=2)


def test_training_seeds_differ_in_every_coordinate_but_not_by_trial() -> None:
    places = [(g, i, a, r) for g in range(4) for i in range(5) for a in range(3) for r in range(2)]
    seeds = {
        policy: [training_seed(7, g, i, a, repeat=r, policy=policy) for g, i, a, r in places]
        for policy in ("independent", "common")
    }
    assert len(set(seeds["independent"])) == len(places)
    assert len(set(seeds["common"])) == len(places) // 5
    assert not set(seeds["independent"]) & set(seeds["common"])
    assert training_seed(7, 1, 2, 0) != training_seed(8, 1, 2, 0)
    assert all(0 <= seed < 2**32 for seed in seeds["independent"])
    # Frozen: a change would change every search that was ever recorded.
    assert training_seed(0, 0, 0, 0) == 1208416985


def test_unknown_seed_policy_is_named() -> None:
    with pytest.raises(ValueError, match="policy must be 'independent' or 'common', got 'x'"):
        training_seed(0, 0, 0, 0, policy="x")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("names", "theta_0"),
        ("names", ()),
        ("names", ("a", "a")),
        ("sigma", 0.0),
        ("sigma", math.nan),
        ("seed", -1),
        ("seed", 1.5),
        ("bound", math.inf),
        ("bound", 1.0),
        ("popsize", 1),
        ("attempts", 0),
        ("max_failures", -1),
    ],
)
def test_bad_arguments_are_named(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{field} must be"):
        TaylorGLOSampler(**{field: value})


def test_gate_and_plain_loop_propose_the_same() -> None:
    plain, _ = optimize(40, popsize=8)
    sampler = TaylorGLOSampler(popsize=8)
    study = optuna.create_study(sampler=sampler)
    gate = GenerationScheduler(study, n_generations=5)
    while (trial := gate.claim()) is not None:
        gate.finish(trial, ellipsoid(sampler.suggest(trial)))
    assert candidates(study) == candidates(plain)


def shifted(theta: Sequence[float]) -> float:
    return sum((x - 3) ** 2 for x in theta)


def search(n_trials: int, objective: Callable[..., float], **settings: Any) -> optuna.Study:
    sampler = TaylorGLOSampler(names=("a", "b"), popsize=8, **settings)
    study = optuna.create_study(sampler=sampler)
    study.optimize(lambda trial: objective(sampler.suggest(trial)), n_trials=n_trials)
    return study


def test_units_scale_the_search_and_nothing_else() -> None:
    plain = search(64, shifted)
    scaled = search(64, lambda v: shifted([v[0], 8 * v[1]]), units={"b": 0.125})
    for one, other in zip(plain.trials, scaled.trials, strict=True):
        assert other.params["a"] == one.params["a"]
        assert other.params["b"] == one.params["b"] / 8


def test_candidates_stay_within_their_limits() -> None:
    study = search(80, shifted, units={"b": 0.1}, limits={"b": (-0.03, 0.09)})
    values = [trial.params["b"] for trial in study.trials]
    assert min(values) >= -0.03
    assert max(values) <= 0.09
    assert max(trial.params["a"] for trial in study.trials) > 2
    assert study.trials[0].distributions["b"] == optuna.distributions.FloatDistribution(-0.03, 0.09)
    # Draws beyond a limit are repeated, not put on it.
    assert len({*values}) == 80


def test_search_starts_where_it_is_told() -> None:
    study = search(2000 // 8 * 8, lambda v: 0.0, x0={"b": 5.0}, sigma=0.5)
    first = [(t.params["a"], t.params["b"]) for t in study.trials[:8]]
    assert [a for a, _ in first] != [0.0] * 8
    assert np.mean([b for _, b in first]) == pytest.approx(5, abs=0.6)


def test_learning_rate_adaptation_is_that_of_cmaes() -> None:
    settings = {"mean": np.zeros(2), "sigma": 1.2, "bounds": np.array([[-1000.0, 1000.0]] * 2)}
    study = search(40, shifted, lr_adapt=True)
    reference = cmaes.CMA(**settings, population_size=8, lr_adapt=True)
    trials = study.trials
    for generation in range(4):
        told = sorted(trials[8 * generation : 8 * generation + 8], key=lambda t: t.value)
        reference.tell([(np.array([*t.params.values()]), float(i)) for i, t in enumerate(told)])
    assert isinstance(study.sampler, TaylorGLOSampler)
    mean = study.sampler.search_state(study)[4].mean
    np.testing.assert_allclose(mean, reference.mean, rtol=1e-9)
    plain = search(40, shifted)
    assert [t.params for t in plain.trials[:16]] != [t.params for t in trials[:16]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"units": {"c": 1.0}}, "units has 'c'; the parameters are a, b"),
        ({"units": {"a": 0.0}}, "units must be positive"),
        ({"limits": {"a": (1.0, 1.0)}}, r"limits has a \(1\.0, 1\.0\)"),
        ({"x0": {"b": 7.0}, "limits": {"b": (0.0, 1.0)}}, r"x0 has b 7, which is not in \[0, 1\]"),
    ],
)
def test_bad_starts_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TaylorGLOSampler(names=("a", "b"), **settings)
