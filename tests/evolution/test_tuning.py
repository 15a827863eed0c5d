"""Known losses that are trained before CMA-ES: which ones, which is the best, and any worker."""

import math
import random

import optuna
import pytest
from optuna.storages import InMemoryStorage
from schedulers import FAIL, finished, searched_by_many
from searches import results

from optuna_taylorglo.attributes import GENERATION
from optuna_taylorglo.evolution.sampler import ANCHORED_NAMES, UNSCALED_NAMES, TaylorGLOSampler
from optuna_taylorglo.evolution.scheduler import GenerationScheduler
from optuna_taylorglo.recipes.presets import CROSS_ENTROPY, NEIGHBORS, POLY, SCALES, STANDARD
from optuna_taylorglo.study import queue

KNOWN = (4.0, -1.0, 5.0, -0.5, 0.6)
FIRST = len(SCALES) + sum(map(len, STANDARD.values()))


@pytest.fixture(autouse=True)
def no_wait_for_other_workers(monkeypatch):
    monkeypatch.setattr(queue, "TAKEOVER", (0.0, 0.0))


def scheduler(storage=None, names=None, direction="maximize", **settings):
    settings = {"popsize": 4, "sigma": 0.5, "max_failures": 3, "known": [KNOWN]} | settings
    sampler = TaylorGLOSampler(names=names, **settings)
    study = optuna.create_study(
        study_name="a", storage=storage, sampler=sampler, direction=direction, load_if_exists=True
    )
    return GenerationScheduler(study, n_generations=4)


def parameters(trial, names=ANCHORED_NAMES):
    return tuple(trial.params[name] for name in names)


def shape_and_scale(trial):
    *shape, log_scale, smoothing = parameters(trial)
    return (*shape, smoothing), log_scale


def trained_by(score, **settings):
    """The candidates of each generation of a search whose fitness is a function of them."""

    def evaluate(scheduler, trial):
        values = scheduler.sampler.suggest(trial)
        value = score((*values[:4], values[-1]), values[4] if len(values) == 6 else 0.0)
        scheduler.finish(trial, value, state=FAIL if value is None else None)

    made = finished(scheduler(**settings), evaluate)
    trials = [t for t in made.study.trials if t.state == optuna.trial.TrialState.COMPLETE]
    return made, [[t for t in trials if t.user_attrs[GENERATION] == g] for g in range(4)]


def test_the_first_round_has_known_and_standard_losses_at_several_scales():
    _, (first, *others) = trained_by(lambda shape, s: -abs(s + 2.2))
    tried = [shape_and_scale(trial) for trial in first]
    assert tried[: len(SCALES)] == [(KNOWN, s) for s in SCALES]
    assert tried[len(SCALES) :] == [(shape, s) for shape in STANDARD for s in STANDARD[shape]]
    assert [len(generation) for generation in others] == [2 * len(NEIGHBORS), 4, 4]


def test_losses_that_are_known_twice_are_trained_twice():
    made, (first, *_) = trained_by(
        lambda shape, s: -abs(s + 2.2), known=[KNOWN, CROSS_ENTROPY, KNOWN]
    )
    assert len(first) == 3 * len(SCALES) + 7 == made.sampler.policy.rounds[0]
    assert made.over


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_the_second_round_is_beside_the_best_known_and_the_best_standard_loss(direction):
    sign = 1 if direction == "maximize" else -1
    _, (_, second, *_) = trained_by(
        lambda shape, s: sign * ((shape == POLY) - abs(s + 2.2)), direction=direction
    )
    tried = [shape_and_scale(trial) for trial in second]
    assert tried == [(KNOWN, -2.5 + d) for d in NEIGHBORS] + [(POLY, -2.0 + d) for d in NEIGHBORS]


def lead_of_cross_entropy(lead, noise=0.1):
    """A score by which cross-entropy has a mean lead, and every other training is better by noise.

    With four trainings each the standard error of the difference is noise × √(1/6).
    """
    counts = {KNOWN: 0, CROSS_ENTROPY: 0}

    def score(shape, s):
        if shape not in counts:
            return -1.0
        counts[shape] += 1
        return (shape == CROSS_ENTROPY) * lead + noise * (counts[shape] % 2)

    return score


@pytest.mark.parametrize(("lead", "starts_at"), [(0.03, KNOWN), (0.05, CROSS_ENTROPY)])
def test_a_standard_loss_wins_only_if_it_is_better_by_more_than_a_standard_error(lead, starts_at):
    assert 0.03 < 0.1 * math.sqrt(1 / 6) < 0.05
    made, _ = trained_by(lead_of_cross_entropy(lead))
    *shape, _, smoothing = made.sampler.start(made.study)
    assert (*shape, smoothing) == starts_at


def test_cma_es_starts_at_the_scale_whose_neighbors_are_good_too():
    lucky = -0.5

    def score(shape, s):
        return (shape == KNOWN) - 0.1 * (s + 2.5) ** 2 + 0.5 * (s == lucky)

    made, generations = trained_by(score)
    start = made.sampler.start(made.study)
    best = max((t for g in generations[:2] for t in g), key=lambda t: t.value)
    assert shape_and_scale(best) == (KNOWN, lucky)
    assert start[4] < -1
    assert tuple(start) in [parameters(t) for g in generations[:2] for t in g]
    states = made.sampler.search_state(made.study)
    assert list(states[0].mean) == start
    assert [state.generation for state in states] == [2, 3, 4]
    assert max(abs(a - b) for a, b in zip(parameters(generations[2][0]), start, strict=True)) < 2.5


def test_trainings_that_fail_are_the_worst_and_a_search_of_failures_goes_on():
    made, _ = trained_by(lambda shape, s: 0.0 if shape == POLY else None)
    *shape, _, smoothing = made.sampler.start(made.study)
    assert (*shape, smoothing) == POLY
    assert made.over
    made, _ = trained_by(lambda shape, s: None)
    assert made.sampler.start(made.study) is not None
    assert made.over


def test_without_a_scale_each_loss_is_trained_once_then_again_with_other_seeds():
    made, generations = trained_by(
        lambda shape, s: shape == KNOWN, names=UNSCALED_NAMES, units={"smoothing": 0.1}
    )
    assert [len(generation) for generation in generations] == [4, 8, 4, 4]
    second = [parameters(trial, UNSCALED_NAMES) for trial in generations[1]]
    assert second == [KNOWN] * 4 + [CROSS_ENTROPY] * 4
    assert tuple(made.sampler.start(made.study)) == KNOWN


def test_a_loss_that_a_user_enqueues_is_one_of_the_known_ones():
    own = (1.0, 2.0, 3.0, 4.0, 0.5)

    def score(shape, s):
        return float(shape == own) - abs(s + 1)

    def evaluate(scheduler, trial):
        *shape, s, smoothing = scheduler.sampler.suggest(trial)
        scheduler.finish(trial, score((*shape, smoothing), s))

    made = scheduler()
    made.study.enqueue_trial(dict(zip(ANCHORED_NAMES, (*own[:4], -1.0, own[4]), strict=True)))
    finished(made, evaluate)
    second = [t for t in made.study.trials if t.user_attrs[GENERATION] == 1]
    assert [shape_and_scale(t)[0] for t in second[:4]] == [own] * 4
    assert made.sampler.start(made.study)[:4] == list(own[:4])
    assert len(made.study.trials) == FIRST + 8 + 4 + 4


@pytest.mark.parametrize("seed", range(4))
def test_any_number_of_workers_that_die_search_as_one_does(seed):
    dice = random.Random(seed)

    def evaluate(scheduler, trial):
        *shape, s, smoothing = scheduler.sampler.suggest(trial)
        value = -((s + 1.7) ** 2) - 0.01 * sum(v * v for v in shape) + smoothing
        scheduler.finish(trial, value + random.Random(str(trial.params)).random() / 5)

    serial = finished(scheduler(max_failures=10**6), evaluate).study
    storage = InMemoryStorage()
    many = searched_by_many(
        lambda: scheduler(storage, max_failures=10**6), evaluate, dice.randint(2, 8), dice
    )
    assert results(many) == results(serial)
    assert len(results(serial)) == FIRST + 8 + 4 + 4


def test_settings_that_do_not_go_with_known_losses_are_refused():
    with pytest.raises(ValueError, match="overlap must be 0 with rounds of tuning, got 2"):
        scheduler(overlap=2)
    with pytest.raises(ValueError, match="known needs the names alpha, beta"):
        scheduler(names=("lr", "momentum"))
    made = scheduler()
    for _ in range(FIRST):
        made.sampler.suggest(made.study.ask())
    with pytest.raises(RuntimeError, match="let a GenerationScheduler hand out trials"):
        made.sampler.suggest(made.study.ask())
