"""Which candidate comes next, whatever becomes of those before it."""

import itertools
import math
import random

import cmaes
import numpy as np
import optuna
import pytest
from optuna.storages import InMemoryStorage
from schedulers import (
    FAIL,
    PRUNED,
    finished,
    new_scheduler,
    place,
    read_anew,
    sampler,
    searched_by_many,
    take,
)
from searches import results

from optuna_taylorglo.attributes import GENERATION, STOPPED, WITHDRAWN
from optuna_taylorglo.evolution.pruners import FallingBehindPruner
from optuna_taylorglo.evolution.sampler import THETA_NAMES
from optuna_taylorglo.evolution.scheduler import GenerationScheduler
from optuna_taylorglo.seeds import candidate_seed, training_seed
from optuna_taylorglo.study import queue


@pytest.fixture(autouse=True)
def no_wait_for_other_workers(monkeypatch):
    monkeypatch.setattr(queue, "TAKEOVER", (0.0, 0.0))


def test_generation_starts_when_the_one_before_is_finished():
    scheduler = new_scheduler(n_generations=2)
    first, second = take(scheduler), take(scheduler)
    assert scheduler.claim() is None
    scheduler.finish(first, 1.0)
    assert (scheduler.claim(), scheduler.over) == (None, False)
    scheduler.finish(second, 2.0)
    third = take(scheduler)
    assert [place(trial) for trial in (first, second, third)] == [(0, 0, 0), (0, 1, 0), (1, 0, 0)]
    short = GenerationScheduler(scheduler.study, n_generations=1)
    assert (short.claim(), short.over) == (None, True)
    scheduler.finish(third, 1.0)
    scheduler.finish(take(scheduler), 1.0)
    assert (scheduler.claim(), scheduler.over) == (None, True)
    assert len(scheduler.study.trials) == 4
    with pytest.raises(ValueError, match="TaylorGLOSampler or a GLOSampler, got TPESampler"):
        GenerationScheduler(optuna.create_study())


def test_enqueued_candidates_take_their_slots_and_keep_their_parameters():
    scheduler = new_scheduler(popsize=2, max_failures=9)
    for value in (1.0, 2.0, 5000.0):
        scheduler.study.enqueue_trial(dict.fromkeys(THETA_NAMES, value) | {"lr": 0.1})
    first, second = take(scheduler), take(scheduler)
    assert scheduler.claim() is None, "the third belongs to the next generation"
    assert scheduler.sampler.suggest(second) == [2.0] * 8
    scheduler.finish(first, state=FAIL)
    again = take(scheduler)
    assert place(again) == place(first)
    assert scheduler.sampler.suggest(again) == [1.0] * 8
    assert again.suggest_float("lr", 0, 1) == 0.1
    for trial in (second, again):
        scheduler.finish(trial, 1.0)
    for _ in range(2):
        trial = take(scheduler)
        with pytest.warns(UserWarning, match="out of range"):
            assert scheduler.sampler.suggest(trial) == [5000.0] * 8
        scheduler.finish(trial, state=FAIL)


# Interference


def test_a_trial_enqueued_at_the_worst_moment(monkeypatch):
    """Between reading the study and adding trials to it."""
    scheduler = new_scheduler(popsize=2)
    create = scheduler._storage.create_new_trial
    theirs = [dict.fromkeys(THETA_NAMES, 7.0)]

    def create_after_them(*args, **kwargs):
        if theirs:
            scheduler.study.enqueue_trial(theirs.pop())
        return create(*args, **kwargs)

    monkeypatch.setattr(scheduler._storage, "create_new_trial", create_after_them)
    first, second = sorted((take(scheduler), take(scheduler)), key=place)
    assert [place(first), place(second)] == [(0, 0, 0), (0, 1, 0)]
    assert scheduler.sampler.suggest(first) == [7.0] * 8
    # Ours was made for the first slot as well, and is withdrawn.
    assert scheduler.sampler.suggest(second) == scheduler.sampler._replay.draw(0, 1)
    assert scheduler.claim() is None


@pytest.mark.parametrize("when", ["waiting", "running", "complete", "finished generation"])
def test_a_duplicate_is_withdrawn_whatever_became_of_the_first(when):
    """Optuna repeats an insert by itself when the answer is lost."""
    scheduler = new_scheduler(n_generations=2)
    duplicate = scheduler.plan(scheduler.study.trials).due[0]()
    if when == "waiting":
        scheduler.study.add_trial(duplicate)
    first, second = take(scheduler), take(scheduler)
    if when in ("complete", "finished generation"):
        scheduler.finish(first, 1.0)
    if when == "finished generation":
        scheduler.finish(second, 1.0)
    scheduler.study.add_trial(duplicate)
    read_anew(scheduler)
    while (trial := scheduler.claim()) is not None:
        assert place(trial)[0] == 1
        scheduler.finish(trial, 1.0)
    withdrawn = [t for t in scheduler.study.trials if WITHDRAWN in t.user_attrs]
    assert [trial.state for trial in withdrawn] == [FAIL]
    assert not scheduler.plan(scheduler.study.trials).superfluous


@pytest.mark.parametrize("value", [math.inf, 1e33])
def test_what_cma_es_cannot_digest_is_left_out(value, caplog):
    scheduler = new_scheduler(n_generations=3)
    scheduler.study.enqueue_trial({"theta_0": value, "theta_3": 1.0})
    optuna.logging.enable_propagation()
    finished(scheduler, lambda s, trial: s.finish(trial, -sum(map(abs, s.sampler.suggest(trial)))))
    optuna.logging.disable_propagation()
    assert scheduler.over
    assert "Trial 0 was enqueued with theta_0" in caplog.text
    first = scheduler.sampler.read(scheduler.study).finished[0][0]
    values = [first.result.params[name] for name in THETA_NAMES]
    assert values == sampler()._replay.draw(0, 0)


# Overlapping generations

POPSIZE, OVERLAP, GENERATIONS = 6, 3, 5
POLICY = {"popsize": POPSIZE, "overlap": OVERLAP, "attempts": 2, "max_failures": 30}


def evaluate(scheduler, trial):
    """Aborts, stops and values as they follow from the candidate, its seed and the pruner."""
    theta = scheduler.sampler.suggest(trial)
    dice = random.Random(training_seed(0, *place(trial)))
    value = -sum((x - 1) ** 2 for x in theta) + dice.gauss(0, 0.1)
    trial.report(value - dice.random(), 1)
    if trial.should_prune():
        trial.set_user_attr(STOPPED, True)
        scheduler.finish(trial, state=PRUNED)
    elif dice.random() < 0.15:
        scheduler.finish(trial, state=PRUNED)
    else:
        scheduler.finish(trial, value)


def pacing_scheduler(storage=None, n_generations=GENERATIONS):
    scheduler = new_scheduler(storage, n_generations=n_generations, **POLICY)
    scheduler.study.pruner = FallingBehindPruner(popsize=POPSIZE, overlap=OVERLAP, keep=0.8, step=1)
    return scheduler


def outcome(study):
    """Of each slot of each generation: candidate, value, whether it was stopped, attempts."""
    log = sampler(**POLICY).read(study)
    assert len(log.finished) == GENERATIONS
    found = []
    for slot in (slot for slots in log.finished for slot in slots):
        (theta,) = {tuple(trial.params[name] for name in THETA_NAMES) for trial in slot.trials}
        value = None if slot.result is None else slot.result.value
        found.append((theta, value, slot.stopped, slot.next_attempt))
    return found


@pytest.fixture(scope="module")
def serial():
    return outcome(finished(pacing_scheduler(), evaluate).study)


@pytest.mark.parametrize(("seed", "n_workers"), [*enumerate((2, 4, 6, 9, 9, 20))])
def test_any_workers_in_any_order_search_as_one(seed, n_workers, serial):
    storage = InMemoryStorage()
    dice = random.Random(seed)
    study = searched_by_many(lambda: pacing_scheduler(storage), evaluate, n_workers, dice)
    assert outcome(study) == serial
    # Otherwise the comparison would say little.
    early = [slot for i, slot in enumerate(serial) if i >= POPSIZE and i % POPSIZE < OVERLAP]
    assert any(stopped for _, _, stopped, _ in early)
    assert any(attempts and not stopped for _, _, stopped, attempts in early)
    generations = [trial.user_attrs[GENERATION] for trial in study.trials]
    n_early = sum(g > min(generations[i:]) for i, g in enumerate(generations))
    assert n_early > GENERATIONS or n_workers < 9


def test_candidates_are_drawn_from_the_distribution_that_is_due():
    """Replayed with cmaes by hand, bit by bit; a plain loop proposes the same."""

    def value(theta):
        return -sum((x - 1) ** 2 for x in theta)

    scheduler = new_scheduler(n_generations=GENERATIONS, **POLICY)
    finished(scheduler, lambda s, trial: s.finish(trial, value(s.sampler.suggest(trial))))
    trials = scheduler.study.trials
    assert len(trials) == POPSIZE * GENERATIONS

    def drawn_after(n_generations, generation, index):
        bounds = np.array([[-1000.0, 1000.0]] * 8)
        cma = cmaes.CMA(np.zeros(8), 1.2, bounds=bounds, population_size=POPSIZE)
        for start in range(0, n_generations * POPSIZE, POPSIZE):
            told = trials[start : start + POPSIZE]
            cma.tell([(np.array(list(t.params.values())), -t.value) for t in told])
        cma.reseed_rng(candidate_seed(0, generation, index))
        return cma.ask().tolist()

    for number, trial in enumerate(trials):
        generation, index = divmod(number, POPSIZE)
        due = max(0, generation - 1) if index < OVERLAP else generation
        assert list(trial.params.values()) == drawn_after(due, generation, index)
    search = sampler(**POLICY)
    plain = optuna.create_study(sampler=search, direction="maximize")
    plain.optimize(lambda trial: value(search.suggest(trial)), n_trials=len(trials))
    assert [t.params for t in plain.trials] == [t.params for t in trials]


def test_idle_workers_take_the_first_of_the_next_generation_and_no_more():
    scheduler = new_scheduler(popsize=4, overlap=2, n_generations=2)
    trials = [take(scheduler) for _ in range(6)]
    assert [place(trial)[:2] for trial in trials] == [(0, i) for i in range(4)] + [(1, 0), (1, 1)]
    assert scheduler.claim() is None
    for trial in reversed(trials[1:]):
        scheduler.finish(trial, 1.0)
        assert scheduler.claim() is None
    scheduler.finish(trials[0], 1.0)
    last = [take(scheduler), take(scheduler)]
    assert [place(trial)[:2] for trial in last] == [(1, 2), (1, 3)]
    assert scheduler.claim() is None, "there is no third generation"


def test_a_search_that_gets_more_generations_is_the_longer_search():
    studies = []
    for lengths in ((2, 4), (4,)):
        storage = InMemoryStorage()
        for n_generations in lengths:
            scheduler = finished(pacing_scheduler(storage, n_generations), evaluate)
        studies.append(scheduler.study)
    # Perhaps in another order: retries go before the next generation.
    extended, whole = map(results, studies)
    assert extended == whole


def test_retries_of_the_current_generation_go_first():
    scheduler = new_scheduler(popsize=2, overlap=1)
    first, second, early = (take(scheduler) for _ in range(3))
    assert place(early) == (1, 0, 0)
    for state, expected in ((FAIL, (1, 0, 0)), (PRUNED, (1, 0, 1))):
        scheduler.finish(early, state=state)
        again = take(scheduler)
        assert (place(again), again.params) == (expected, early.params)
        early = again
    scheduler.finish(early, state=FAIL)
    scheduler.finish(second, state=FAIL)
    repeated = take(scheduler)
    assert place(repeated) == (0, 1, 0)
    for trial in (repeated, first, take(scheduler)):
        scheduler.finish(trial, 1.0)
    assert place(take(scheduler)) == (1, 1, 0)


# Processors that draw other candidates


def perturbed(scheduler):
    """A worker whose processor rounds differently: all that it draws is off in the last digit."""
    scheduler.sampler.read(scheduler.study)
    replay = scheduler.sampler._replay
    draw = replay.draw
    replay.draw = lambda *slot: [float(np.nextafter(x, np.inf)) for x in draw(*slot)]
    return scheduler


@pytest.mark.parametrize("overlap", [0, 2])
def test_workers_that_draw_differently_agree_on_what_is_stored(overlap):
    storage = InMemoryStorage()
    policy = {"popsize": 4, "overlap": overlap, "attempts": 2, "max_failures": 1}

    def new_worker():
        return new_scheduler(storage, n_generations=6, **policy)

    def evaluate(scheduler, trial):
        theta = scheduler.sampler.suggest(trial)
        scheduler.finish(trial, None if trial.number % 4 == 0 else -sum(x * x for x in theta))

    one, other = new_worker(), perturbed(new_worker())
    # A candidate from outside that is never evaluated.
    one.study.enqueue_trial(dict.fromkeys(THETA_NAMES, 0.25))
    for scheduler in (one, other):
        scheduler.finish(take(scheduler), state=FAIL)
    kinds = itertools.cycle([new_worker, lambda: perturbed(new_worker())])
    study = searched_by_many(lambda: next(kinds)(), evaluate, 4, random.Random(overlap))
    slots = [slot for slots in one.sampler.read(study).finished for slot in slots]
    assert len(slots) == 4 * 6
    assert all(len({tuple(trial.params.values()) for trial in s.trials}) == 1 for s in slots)
    assert any(slot.result is None for slot in slots)
    first, second = (s.sampler.search_state(study) for s in (one, other))
    assert first == second == study.sampler.search_state(study)
