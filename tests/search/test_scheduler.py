"""Which candidate comes next, whatever becomes of those before it."""

from __future__ import annotations

import math
import threading
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState
from schedulers import COMPLETE, FAIL, PRUNED, new_scheduler, place, read_anew, sampler, take

from optuna_taylorglo.attributes import WITHDRAWN
from optuna_taylorglo.search.generations import Slot
from optuna_taylorglo.search.sampler import THETA_NAMES
from optuna_taylorglo.search.scheduler import GenerationScheduler
from optuna_taylorglo.study import queue
from optuna_taylorglo.study.open import open_storage


@pytest.fixture(autouse=True)
def no_wait_for_other_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "TAKEOVER", (0.0, 0.0))


def test_generation_starts_when_the_one_before_is_finished() -> None:
    scheduler = new_scheduler(n_generations=2)
    first, second = take(scheduler), take(scheduler)
    assert scheduler.claim() is None
    scheduler.finish(first, 1.0)
    assert scheduler.claim() is None
    assert not scheduler.over
    scheduler.finish(second, 2.0)
    third = take(scheduler)
    assert [place(trial) for trial in (first, second, third)] == [(0, 0, 0), (0, 1, 0), (1, 0, 0)]
    scheduler.finish(third, 1.0)
    scheduler.finish(take(scheduler), 1.0)
    assert scheduler.claim() is None
    assert scheduler.over
    assert len(scheduler.study.trials) == 4


def test_aborted_candidate_gets_new_attempts_and_then_the_last_rank() -> None:
    scheduler = new_scheduler(popsize=4, attempts=3)
    good = [take(scheduler) for _ in range(3)]
    bad = take(scheduler)
    theta = bad.params
    for trial in good:
        scheduler.finish(trial, -100.0)
    for attempt in range(3):
        assert place(bad) == (0, 3, attempt)
        assert bad.params == theta
        bad.report(0.1, 1)
        scheduler.finish(bad, state=PRUNED)
        bad = take(scheduler)
    assert place(bad) == (1, 0, 0)
    log = scheduler.sampler.read(scheduler.study)
    assert [len(slot.trials) for slot in log.finished[0]] == [1, 1, 1, 3]


def test_slot_takes_its_complete_attempt() -> None:
    scheduler = new_scheduler(popsize=2)
    diverged, other = take(scheduler), take(scheduler)
    scheduler.finish(diverged, math.nan)
    scheduler.finish(other, 0.5)
    scheduler.finish(take(scheduler), 0.9)
    (slots,) = scheduler.sampler.read(scheduler.study).finished
    assert [slot.result.value for slot in slots if slot.result] == [0.9, 0.5]
    assert [t.state for t in scheduler.study.trials] == [PRUNED, COMPLETE, COMPLETE]


def test_lost_evaluation_is_made_again_with_the_same_seed_a_limited_number_of_times() -> None:
    scheduler = new_scheduler(popsize=2, max_failures=2)
    for _ in range(3):
        trial = take(scheduler)
        assert place(trial) == (0, 0, 0)
        scheduler.finish(trial, state=FAIL)
    assert place(take(scheduler)) == (0, 1, 0)


def test_releasing_is_not_a_failure() -> None:
    scheduler = new_scheduler(popsize=2, max_failures=0)
    for _ in range(5):
        trial = take(scheduler)
        assert place(trial) == (0, 0, 0)
        scheduler.release(trial)
    scheduler.finish(take(scheduler), 1.0)
    assert place(take(scheduler)) == (0, 1, 0)


def test_enqueued_candidates_take_their_slots_and_keep_their_parameters() -> None:
    scheduler = new_scheduler(popsize=2, max_failures=9)
    for value in (1.0, 2.0, 5000.0):
        scheduler.study.enqueue_trial(dict.fromkeys(THETA_NAMES, value) | {"lr": 0.1})
    first, second = take(scheduler), take(scheduler)
    assert scheduler.claim() is None, "the third belongs to the next generation"
    assert scheduler.sampler.suggest(first) == [1.0] * 8
    assert scheduler.sampler.suggest(second) == [2.0] * 8
    assert first.suggest_float("lr", 0, 1) == 0.1
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


def test_foreign_parameters_of_a_lost_trial_are_kept() -> None:
    scheduler = new_scheduler()
    trial = take(scheduler)
    rate = trial.suggest_float("lr", 0, 1)
    scheduler.finish(trial, state=FAIL)
    assert take(scheduler).suggest_float("lr", 0, 1) == rate


def test_scheduler_needs_our_sampler() -> None:
    with pytest.raises(
        ValueError, match="must have a TaylorGLOSampler or a GLOSampler, got TPESampler"
    ):
        GenerationScheduler(optuna.create_study())


def test_waiting_ends_when_told_or_when_there_is_work() -> None:
    scheduler = new_scheduler()
    first, second = take(scheduler), take(scheduler)
    stop = threading.Event()
    threading.Timer(0.1, stop.set).start()
    assert scheduler.wait_for_trial(stop) is None
    threading.Timer(
        0.1, lambda: [scheduler.finish(first, 1.0), scheduler.finish(second, 1.0)]
    ).start()
    trial = scheduler.wait_for_trial()
    assert trial is not None
    assert place(trial) == (1, 0, 0)


# Interference


def test_somebody_elses_trial_at_the_worst_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial is enqueued between our look at the study and our own new trials."""
    scheduler = new_scheduler(popsize=2)
    create = scheduler._storage.create_new_trial
    theirs = [dict.fromkeys(THETA_NAMES, 7.0)]

    def create_after_them(*args: Any, **kwargs: Any) -> Any:
        if theirs:
            scheduler.study.enqueue_trial(theirs.pop())
        return create(*args, **kwargs)

    monkeypatch.setattr(scheduler._storage, "create_new_trial", create_after_them)
    first, second = take(scheduler), take(scheduler)
    first, second = sorted((first, second), key=place)
    assert [place(first), place(second)] == [(0, 0, 0), (0, 1, 0)]
    assert scheduler.sampler.suggest(first) == [7.0] * 8
    # Ours was made for the first slot as well, and is withdrawn.
    candidate = scheduler.sampler.candidate(Slot(0, 1, scheduler.sampler.policy))
    assert scheduler.sampler.suggest(second) == candidate
    assert scheduler.claim() is None


def test_two_that_add_at_once_make_one_generation(database_url: str) -> None:
    one, other = (new_scheduler(open_storage(database_url), popsize=4) for _ in range(2))
    due = one.plan(one.study.trials).due
    trials = [take(other), take(other)]
    one._add(due)
    assert len(one.study.trials) == 5, "the first of them is a duplicate, so no other is added"
    trials += [take(one), take(one)]
    assert sorted(map(place, trials)) == [(0, index, 0) for index in range(4)]
    assert one.study.trials[4].user_attrs[WITHDRAWN]


def test_death_between_adding_trials_and_claiming_one(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a worker leaves behind at any step, the next one takes up."""

    class Killed(BaseException):
        pass

    dying = new_scheduler(open_storage(sqlite_url), popsize=3)
    create, added = dying._storage.create_new_trial, []

    def die_after_two(*args: Any) -> Any:
        if len(added) == 2:
            raise Killed
        added.append(create(*args))
        return added[-1]

    monkeypatch.setattr(dying._storage, "create_new_trial", die_after_two)
    with pytest.raises(Killed):
        dying.claim()
    assert [trial.state for trial in dying.study.trials] == [TrialState.WAITING] * 2
    other = new_scheduler(open_storage(sqlite_url), popsize=3)
    trials = [take(other) for _ in range(3)]
    assert [trial.number for trial in trials] == [0, 1, 2]
    assert [other.sampler.suggest(trial) for trial in trials] == [
        other.sampler.candidate(Slot(0, number, other.sampler.policy)) for number in range(3)
    ]


@pytest.mark.parametrize("when", ["waiting", "running", "complete", "finished generation"])
def test_a_duplicate_is_withdrawn_whatever_became_of_the_first(
    database_url: str, when: str
) -> None:
    """Optuna repeats an insert by itself when the answer is lost."""
    scheduler = new_scheduler(open_storage(database_url), popsize=2, n_generations=2)
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


def test_a_retry_added_twice_is_evaluated_once() -> None:
    scheduler = new_scheduler(n_generations=1)
    scheduler.finish(take(scheduler), state=PRUNED)
    (make_retry,) = scheduler.plan(scheduler.study.trials).due
    retry = make_retry()
    for _ in range(2):
        scheduler.study.add_trial(retry)
    for value in (1.0, 2.0):
        read_anew(scheduler)
        scheduler.finish(take(scheduler), value)
    assert scheduler.claim() is None
    assert scheduler.over
    states = [trial.state for trial in scheduler.study.trials]
    assert sorted(states, key=str) == sorted([PRUNED, COMPLETE, COMPLETE, FAIL], key=str)


@pytest.mark.parametrize("value", [math.inf, -math.inf, 1e33])
def test_what_cma_es_cannot_digest_is_left_out(
    database_url: str, value: float, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = new_scheduler(open_storage(database_url), popsize=2, n_generations=3)
    scheduler.study.enqueue_trial({"theta_0": value, "theta_3": 1.0})
    optuna.logging.enable_propagation()
    while (trial := scheduler.claim()) is not None:
        theta = scheduler.sampler.suggest(trial)
        scheduler.finish(trial, -sum(x * x for x in theta))
    optuna.logging.disable_propagation()
    assert scheduler.over
    assert "Trial 0 was enqueued with theta_0" in caplog.text
    first = scheduler.sampler.read(scheduler.study).finished[0][0]
    assert first.result is not None
    values = [first.result.params[name] for name in THETA_NAMES]
    assert values == sampler(popsize=2).candidate(Slot(0, 0, scheduler.sampler.policy))


def test_a_worker_with_fewer_generations_takes_none_of_a_later_one(database_url: str) -> None:
    long, short = (
        new_scheduler(open_storage(database_url), n_generations=n, popsize=2) for n in (3, 1)
    )
    trials = [take(long), take(short)]
    for trial in trials:
        long.finish(trial, 1.0)
    assert place(take(long)) == (1, 0, 0)
    assert (short.claim(), short.over) == (None, True)
