"""The protocol of every queue: trials are handed out, taken back, and their results never lost."""

from __future__ import annotations

import itertools
import multiprocessing.pool
import threading
import time
from typing import Any

import optuna
import pytest
import sqlalchemy
from filelock import FileLock
from optuna.distributions import FloatDistribution
from optuna.exceptions import StorageInternalError
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial
from schedulers import age_heartbeats

from optuna_taylorglo.attributes import RELEASED, WORKER
from optuna_taylorglo.queue import trial_queue
from optuna_taylorglo.queue.late_words import annotate, report
from optuna_taylorglo.queue.trial_queue import TrialQueue
from optuna_taylorglo.storage import retry
from optuna_taylorglo.storage.locks import study_lock
from optuna_taylorglo.storage.open_storage import open_storage

WAITING, RUNNING, FAIL = TrialState.WAITING, TrialState.RUNNING, TrialState.FAIL
COMPLETE, PRUNED = TrialState.COMPLETE, TrialState.PRUNED


class Places(TrialQueue):
    """Two places, each with a parameter; one is done when a trial of it has a result."""

    def _choose(self) -> FrozenTrial | None:
        done = [place for place in (0, 1) if self._states(place) & {COMPLETE, PRUNED}]
        self.over = len(done) == 2
        for place in {0, 1} - set(done):
            if WAITING in self._states(place):
                return next(t for t in self.study.trials if t.state == WAITING)
            if RUNNING not in self._states(place):
                return create_trial(
                    state=WAITING,
                    params={"x": place / 2},
                    distributions={"x": FloatDistribution(0, 1)},
                    user_attrs={"place": place},
                )
        return None

    def _admit(self, waiting: FrozenTrial) -> bool:
        return True

    def _place_of_late_result(self, given_up: FrozenTrial) -> dict[str, Any] | None:
        others = self._states(given_up.user_attrs["place"])
        return None if others & {RUNNING, COMPLETE, PRUNED} else {"late": True}

    def _states(self, place: int) -> set[TrialState]:
        return {t.state for t in self.study.trials if t.user_attrs["place"] == place}


def new_queue(url: str, **options: Any) -> Places:
    storage = open_storage(url, **options)
    return Places(optuna.create_study(study_name="a", storage=storage, load_if_exists=True))


@pytest.fixture
def queue(sqlite_url: str) -> Places:
    return new_queue(sqlite_url)


def take(queue: Places) -> Trial:
    trial = queue.claim()
    assert trial is not None
    return trial


def give_up_running_trials(queue: Places) -> None:
    """What another worker does when it hears no signs of life."""
    age_heartbeats(queue._storage)
    queue._stale_check_due = 0.0
    queue._fail_stale_trials()


def fail_commits(queue: Places, times: float) -> None:
    """Let the database be away for so many transactions."""
    left = times

    def fail(session: Any) -> None:
        nonlocal left
        left -= 1
        if left >= 0:
            raise sqlalchemy.exc.OperationalError("COMMIT", None, Exception("gone"))

    sessions = queue._storage.database.scoped_session.session_factory
    sqlalchemy.event.listen(sessions, "before_commit", fail)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waited: list[float] = []
    monkeypatch.setattr(retry.time, "sleep", waited.append)
    return waited


def test_a_queue_is_over_when_all_is_done_not_when_all_is_handed_out(queue: Places) -> None:
    trials = [take(queue), take(queue)]
    assert [trial.params["x"] for trial in trials] == [0.0, 0.5]
    assert (queue.claim(), queue.over) == (None, False)
    for trial in trials:
        queue.finish(trial, 1.0)
    assert (queue.claim(), queue.over) == (None, True)
    assert queue.wait_for_trial() is None


def test_a_released_trial_is_marked_and_its_place_handed_out_again(queue: Places) -> None:
    queue.release(take(queue))
    again = take(queue)
    assert again.user_attrs["place"] == 0
    first, second = queue.study.trials
    assert (first.state, first.user_attrs[RELEASED]) == (FAIL, True)
    assert (second.state, RELEASED in second.user_attrs) == (RUNNING, False)


def test_releasing_a_finished_trial_changes_nothing(
    queue: Places, caplog: pytest.LogCaptureFixture
) -> None:
    trial = take(queue)
    queue.finish(trial, 0.5)
    queue.release(trial)
    assert caplog.text == ""
    (stored,) = queue.study.trials
    assert (stored.state, stored.value) == (COMPLETE, 0.5)
    assert stored.user_attrs.keys() == {"place", WORKER}


def test_reports_and_notes_of_a_trial_given_up_are_no_error(
    queue: Places, caplog: pytest.LogCaptureFixture
) -> None:
    trial = take(queue)
    report(trial, 0.1, 1)
    annotate(trial, "note", "before")
    give_up_running_trials(queue)
    report(trial, 0.2, 2)
    annotate(trial, "note", "after")
    (stored,) = queue.study.trials
    assert stored.state == FAIL
    assert stored.intermediate_values == {1: 0.1}
    assert stored.user_attrs["note"] == "before"
    assert caplog.text.count("Trial 0 was given up as lost while it was running") == 2


@pytest.mark.parametrize(("value", "state"), [(0.5, None), (None, PRUNED)])
def test_a_late_result_is_kept_while_its_place_is_open(
    queue: Places, value: float | None, state: TrialState | None
) -> None:
    trial = take(queue)
    report(trial, 0.1, 1)
    give_up_running_trials(queue)
    queue.finish(trial, value, state=state)
    given_up, kept = queue.study.trials
    assert given_up.state == FAIL
    assert (kept.state, kept.value) == (state or COMPLETE, value)
    assert (kept.params, kept.intermediate_values) == (given_up.params, {1: 0.1})
    assert kept.user_attrs == given_up.user_attrs | {"late": True}
    assert take(queue).user_attrs["place"] == 1


def test_a_late_result_whose_place_is_taken_is_left_out_with_a_word(
    queue: Places, caplog: pytest.LogCaptureFixture
) -> None:
    trial = take(queue)
    give_up_running_trials(queue)
    take(queue)
    queue.finish(trial, 0.5)
    assert [t.state for t in queue.study.trials] == [FAIL, RUNNING]
    assert "Trial 0 was given up as lost before it ended as COMPLETE with value 0.5" in caplog.text


def test_a_late_failure_is_no_result(queue: Places) -> None:
    trial = take(queue)
    give_up_running_trials(queue)
    queue.finish(trial, state=FAIL)
    assert [t.state for t in queue.study.trials] == [FAIL]


def test_waiting_ends_at_the_deadline(queue: Places) -> None:
    assert queue.wait_for_trial(deadline=time.monotonic()) is None
    assert queue.study.trials == [], "a trial was taken after the deadline"
    for _ in range(2):
        take(queue)
    begin = time.monotonic()
    assert queue.wait_for_trial(deadline=begin + 0.3) is None
    assert 0.3 <= time.monotonic() - begin < 3
    assert not queue.over


class Clock(threading.Event):
    """Lets a minute pass at once and remembers the waits."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(timeout)
        return self.is_set()

    def is_set(self) -> bool:
        return sum(self.waits) > 60


def test_a_trial_is_found_soon_and_the_storage_left_in_peace_when_there_is_none(
    queue: Places,
) -> None:
    for _ in range(2):
        take(queue)
    clock = Clock()
    assert queue.wait_for_trial(clock) is None
    waited = itertools.accumulate(clock.waits, initial=0.0)
    assert all(wait <= 0.05 + before / 5 for wait, before in zip(clock.waits, waited, strict=False))
    assert max(clock.waits) <= 2
    assert len(clock.waits) < 100


def test_workers_that_find_nothing_to_do_do_not_queue_for_the_lock(queue: Places) -> None:
    for _ in range(2):
        take(queue)
    assert queue.claim() is None
    pool = multiprocessing.pool.ThreadPool(1)
    with study_lock(queue._storage, "a"):
        assert pool.apply_async(queue.claim).get(timeout=20) is None


def test_claiming_and_finishing_wait_for_the_database(queue: Places, waits: list[float]) -> None:
    fail_commits(queue, 3)
    trial = take(queue)
    assert len(waits) == 3
    fail_commits(queue, 4)
    queue.finish(trial, 0.5)
    assert len(waits) == 7
    assert [(t.state, t.value) for t in queue.study.trials] == [(COMPLETE, 0.5)]


def test_nobody_is_locked_out_while_a_worker_waits_for_the_database(
    queue: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = take(queue)
    path = queue._storage.database.engine.url.database
    entered: list[float] = []

    def enter(seconds: float) -> None:
        with FileLock(f"{path}.taylorglo.lock", timeout=0):
            entered.append(seconds)

    monkeypatch.setattr(retry.time, "sleep", enter)
    fail_commits(queue, 2)
    queue.finish(trial, 0.5)
    assert len(entered) == 2


def test_a_late_result_outlasts_an_outage_too(queue: Places, waits: list[float]) -> None:
    trial = take(queue)
    give_up_running_trials(queue)
    fail_commits(queue, 3)
    queue.finish(trial, 0.5)
    assert len(waits) == 3
    assert [(t.state, t.value) for t in queue.study.trials] == [(FAIL, None), (COMPLETE, 0.5)]


def test_patience_with_the_database_is_that_of_the_storage(sqlite_url: str) -> None:
    queue = new_queue(sqlite_url, outage_limit=0.1)
    trial = take(queue)
    fail_commits(queue, float("inf"))
    with pytest.raises(StorageInternalError):
        queue.finish(trial, 0.5)


def test_a_worker_that_is_to_stop_does_not_wait_long_for_the_database(
    queue: Places, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(trial_queue, "_RELEASE_LIMIT", 0.1)
    monkeypatch.setattr(retry.time, "sleep", lambda seconds: pytest.fail("waited"))
    trial = take(queue)
    fail_commits(queue, float("inf"))
    queue.release(trial)
    assert "Trial 0 could not be released" in caplog.text
