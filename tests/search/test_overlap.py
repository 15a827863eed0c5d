"""Overlapping generations: idle workers go on, and the search is that of one worker."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import cmaes
import numpy as np
import optuna
import pytest
from optuna.storages import InMemoryStorage
from optuna.trial import Trial
from schedulers import FAIL, PRUNED, new_scheduler, place, read_anew, sampler, take
from searches import results

from optuna_taylorglo.attributes import GENERATION, STOPPED
from optuna_taylorglo.search.generations import GenerationLog, Slot
from optuna_taylorglo.search.pruners import FallingBehindPruner
from optuna_taylorglo.search.sampler import THETA_NAMES, SearchState
from optuna_taylorglo.search.scheduler import GenerationScheduler
from optuna_taylorglo.seeds import candidate_seed, training_seed

POPSIZE, OVERLAP, GENERATIONS = 6, 3, 5
RULES = {"popsize": POPSIZE, "overlap": OVERLAP, "attempts": 2, "max_failures": 30}


def evaluate(scheduler: GenerationScheduler, trial: Trial) -> None:
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


def pacing_scheduler(storage: InMemoryStorage, n_generations: int = GENERATIONS) -> Any:
    scheduler = new_scheduler(storage, n_generations=n_generations, **RULES)
    scheduler.study.pruner = FallingBehindPruner(popsize=POPSIZE, overlap=OVERLAP, keep=0.8, step=1)
    return scheduler


def run(n_workers: int, dice: random.Random | None = None) -> optuna.Study:
    """A search by workers that finish in random order, get lost, and are replaced by new ones."""
    storage = InMemoryStorage()
    workers = [pacing_scheduler(storage) for _ in range(n_workers)]
    busy: list[tuple[GenerationScheduler, Trial]] = []
    while True:
        idle = [worker for worker in workers if all(worker is not one for one, _ in busy)]
        for worker in idle:
            read_anew(worker)
            if (trial := worker.claim()) is not None:
                busy.append((worker, trial))
        if not busy:
            return workers[0].study
        worker, trial = busy.pop(0 if dice is None else dice.randrange(len(busy)))
        fate = 1.0 if dice is None else dice.random()
        if fate < 0.1:
            worker.finish(trial, state=FAIL)
        elif fate < 0.2:
            worker.release(trial)
        elif fate < 0.3:
            workers[workers.index(worker)] = pacing_scheduler(storage)
            worker.finish(trial, state=FAIL)
        else:
            evaluate(worker, trial)


def outcome(study: optuna.Study) -> list[list[tuple[Any, ...]]]:
    """Of each slot of each generation: candidate, value, whether it was stopped, attempts."""
    log = sampler(**RULES).read(study)
    assert len(log.finished) == GENERATIONS
    told = []
    for slots in log.finished:
        told.append([])
        for slot in slots:
            (theta,) = {tuple(trial.params[name] for name in THETA_NAMES) for trial in slot.trials}
            value = None if slot.result is None else slot.result.value
            told[-1].append((theta, value, slot.stopped, slot.next_attempt))
    return told


@pytest.fixture(scope="module")
def serial() -> list[list[tuple[Any, ...]]]:
    return outcome(run(1))


def overlapped(study: optuna.Study) -> int:
    """Trials that came before a retry of a generation that is older."""
    generations = [trial.user_attrs[GENERATION] for trial in study.trials]
    return sum(g > min(generations[i:]) for i, g in enumerate(generations))


@pytest.mark.parametrize("seed", range(12))
def test_any_workers_in_any_order_search_as_one(
    seed: int, serial: list[list[tuple[Any, ...]]]
) -> None:
    dice = random.Random(seed)
    study = run(dice.choice([2, 4, POPSIZE, POPSIZE + OVERLAP, 20]), dice)
    assert outcome(study) == serial


def test_the_serial_run_has_all_that_can_go_wrong(serial: list[list[tuple[Any, ...]]]) -> None:
    """Otherwise the comparison with it would say little."""
    first = [slot for slots in serial[1:] for slot in slots[:OVERLAP]]
    later = [slot for slots in serial[1:] for slot in slots[OVERLAP:]]
    for slots in (first, later):
        assert any(stopped for _, _, stopped, _ in slots)
        assert any(attempts and not stopped for _, _, stopped, attempts in slots)
    assert overlapped(run(9, random.Random(0))) > GENERATIONS


def test_candidates_are_drawn_from_the_distribution_that_is_due() -> None:
    """Replayed with cmaes by hand, bit by bit."""
    scheduler = new_scheduler(n_generations=GENERATIONS, **RULES)
    while (trial := scheduler.claim()) is not None:
        scheduler.finish(trial, -sum((x - 1) ** 2 for x in scheduler.sampler.suggest(trial)))
    trials = scheduler.study.trials
    assert len(trials) == POPSIZE * GENERATIONS

    def drawn_after(n_generations: int, generation: int, index: int) -> list[float]:
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


def test_without_overlap_the_search_is_what_it_was() -> None:
    plain, none = (new_scheduler(n_generations=3, **r) for r in ({}, {"overlap": 0}))
    for scheduler in (plain, none):
        while (trial := scheduler.claim()) is not None:
            scheduler.finish(trial, scheduler.sampler.suggest(trial)[0])
    assert [t.params for t in plain.study.trials] == [t.params for t in none.study.trials]


def test_idle_workers_take_the_first_of_the_next_generation_and_no_more() -> None:
    scheduler = new_scheduler(popsize=4, overlap=2, n_generations=2)
    trials = [take(scheduler) for _ in range(6)]
    assert [place(trial)[:2] for trial in trials] == [(0, i) for i in range(4)] + [(1, 0), (1, 1)]
    assert scheduler.claim() is None
    assert not scheduler.over
    for trial in reversed(trials[1:]):
        scheduler.finish(trial, 1.0)
        assert scheduler.claim() is None
    scheduler.finish(trials[0], 1.0)
    last = [take(scheduler), take(scheduler)]
    assert [place(trial)[:2] for trial in last] == [(1, 2), (1, 3)]
    # There is no third generation to go on with.
    assert scheduler.claim() is None
    for trial in last:
        scheduler.finish(trial, 1.0)
    assert scheduler.claim() is None
    assert scheduler.over


def test_a_search_that_gets_more_generations_is_the_longer_search() -> None:
    studies = []
    for lengths in ((2, 4), (4,)):
        storage = InMemoryStorage()
        for n_generations in lengths:
            scheduler = pacing_scheduler(storage, n_generations)
            while (trial := scheduler.claim()) is not None:
                evaluate(scheduler, trial)
        studies.append(scheduler.study)
    # In another order perhaps: what is to be repeated goes before the next generation.
    extended, whole = map(results, studies)
    assert extended == whole


def test_lost_and_aborted_trials_of_the_next_generation_are_made_again() -> None:
    scheduler = new_scheduler(popsize=2, overlap=1)
    first, second, early = (take(scheduler) for _ in range(3))
    assert place(early) == (1, 0, 0)
    scheduler.finish(early, state=FAIL)
    again = take(scheduler)
    assert place(again) == (1, 0, 0)
    assert again.params == early.params
    scheduler.finish(again, state=PRUNED)
    other = take(scheduler)
    assert place(other) == (1, 0, 1)
    assert other.params == early.params
    # Slots of the generation in hand that came to nothing go first.
    scheduler.finish(other, state=FAIL)
    scheduler.finish(second, state=FAIL)
    repeated = take(scheduler)
    assert place(repeated) == (0, 1, 0)
    scheduler.finish(repeated, 1.0)
    scheduler.finish(first, 2.0)
    scheduler.finish(take(scheduler), 3.0)
    last = take(scheduler)
    assert place(last) == (1, 1, 0)
    scheduler.finish(last, 4.0)
    assert scheduler.sampler.read(scheduler.study).generation == 2


def test_enqueued_candidates_are_completed_from_the_distribution_that_is_due() -> None:
    def search(early: bool) -> list[dict[str, Any]]:
        scheduler = new_scheduler(popsize=2, overlap=1)
        for value in (1.0, 2.0):
            scheduler.study.enqueue_trial(dict.fromkeys(THETA_NAMES, value))
        scheduler.study.enqueue_trial({"theta_0": 3.0})
        running = [take(scheduler), take(scheduler)]
        if early:
            running.append(take(scheduler))
            scheduler.sampler.suggest(running[-1])
        for value, trial in enumerate(running[:2]):
            scheduler.sampler.suggest(trial)
            scheduler.finish(trial, value)
        if not early:
            running.append(take(scheduler))
        third = running[2]
        assert place(third) == (1, 0, 0)
        assert scheduler.sampler.suggest(third)[0] == 3.0
        return [trial.params for trial in running]

    assert search(early=True) == search(early=False)


def test_a_duplicate_in_the_next_generation_is_withdrawn() -> None:
    scheduler = new_scheduler(popsize=2, overlap=1, n_generations=2)
    due = [make() for make in scheduler.plan([]).due]
    for trial in (*due, due[-1]):
        scheduler.study.add_trial(trial)
    running = [take(scheduler), take(scheduler), take(scheduler)]
    assert scheduler.claim() is None
    for trial in running:
        scheduler.finish(trial, 1.0)
    last = take(scheduler)
    assert place(last) == (1, 1, 0)
    assert last.params != running[2].params
    assert scheduler.study.trials[3].state == FAIL


def test_reading_piece_by_piece_equals_reading_at_once() -> None:
    study = run(9, random.Random(1))
    piece_by_piece = GenerationLog(sampler(**RULES).policy)
    for n in range(len(study.trials) + 1):
        piece_by_piece.read(study.trials[:n])
    at_once = sampler(**RULES).read(study)
    assert piece_by_piece.generation == at_once.generation == GENERATIONS
    for ours, theirs in zip(piece_by_piece.finished, at_once.finished, strict=True):
        assert [slot.result for slot in ours] == [slot.result for slot in theirs]
        assert [slot.stopped for slot in ours] == [slot.stopped for slot in theirs]
    assert len(at_once.open_slots()) == POPSIZE + OVERLAP


def test_plain_loop_proposes_the_same() -> None:
    gated = new_scheduler(n_generations=4, **RULES)
    while (trial := gated.claim()) is not None:
        gated.finish(trial, gated.sampler.suggest(trial)[0])
    plain = optuna.create_study(sampler=sampler(**RULES), direction="maximize")
    plain.optimize(lambda t: plain.sampler.suggest(t)[0], n_trials=4 * POPSIZE)
    assert [t.params for t in plain.trials] == [t.params for t in gated.study.trials]


# Processors that draw other candidates


def perturbed(scheduler: GenerationScheduler) -> GenerationScheduler:
    """A worker whose processor rounds differently: all that it draws is off in the last digit."""
    replay: Any = scheduler.sampler._replay
    draw: Callable[[int, int], list[float]] = replay.draw
    replay.draw = lambda *slot: [float(np.nextafter(x, np.inf)) for x in draw(*slot)]
    return scheduler


@pytest.mark.parametrize("overlap", [0, 2])
def test_workers_that_draw_differently_agree_on_what_is_stored(overlap: int) -> None:
    storage = InMemoryStorage()
    rules = {"popsize": 4, "overlap": overlap, "attempts": 2, "max_failures": 1}
    one, other = (new_scheduler(storage, n_generations=6, **rules) for _ in range(2))
    perturbed(other)
    # A candidate from outside that never gets as far as to be evaluated.
    one.study.enqueue_trial(dict.fromkeys(THETA_NAMES, 0.25))
    for scheduler in (one, other):
        scheduler.finish(take(scheduler), state=FAIL)
    dice = random.Random(overlap)
    n_lost = 0
    running: list[tuple[GenerationScheduler, Trial]] = []
    while not (one.over and other.over):
        scheduler = dice.choice([one, other])
        if (trial := scheduler.claim()) is not None:
            running.append((scheduler, trial))
        if running and (trial is None or dice.random() < 0.5):
            scheduler, trial = running.pop(dice.randrange(len(running)))
            theta = scheduler.sampler.suggest(trial)
            fate = dice.random()
            n_lost += fate < 0.5
            if fate < 0.5:
                scheduler.finish(trial, state=FAIL if fate < 0.3 else PRUNED)
            else:
                scheduler.finish(trial, -sum(x * x for x in theta))
    log = one.sampler.read(one.study)
    for slots in log.finished:
        for slot in slots:
            assert len({tuple(trial.params.values()) for trial in slot.trials}) == 1
    assert n_lost > 10
    assert any(slot.result is None for slots in log.finished for slot in slots)

    def states(scheduler: GenerationScheduler) -> list[SearchState]:
        return scheduler.sampler.search_state(scheduler.study)

    assert states(one) == states(other)
    assert states(one) == states(perturbed(new_scheduler(storage, **rules)))


@pytest.mark.parametrize("value", [float("inf"), 1e33])
def test_candidate_beyond_all_numbers_does_not_stop_a_plain_search(value: float) -> None:
    search = sampler(popsize=2, attempts=1)
    study = optuna.create_study(sampler=search, direction="maximize")
    study.enqueue_trial(dict.fromkeys(THETA_NAMES, value))

    def objective(trial: Trial) -> float:
        if search.suggest(trial)[0] == value:
            raise optuna.TrialPruned
        return 1.0

    with pytest.warns(UserWarning, match="out of range"):
        study.optimize(objective, n_trials=4)
    assert search.read(study).generation == 2
    assert np.isfinite(search.candidate(Slot(2, 0, search.policy))).all()
