"""The protocol of every queue: trials are handed out, taken back, and their results never lost."""

from __future__ import annotations

import itertools
import multiprocessing.pool
import threading
import time
import uuid
from typing import Any

import optuna
import psycopg
import pytest
import sqlalchemy
from filelock import FileLock
from optuna.distributions import FloatDistribution
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial
from schedulers import give_up_running, new_scheduler

from optuna_taylorglo.attributes import LOOK_AT, LOST, READY, RELEASED, WORKER
from optuna_taylorglo.queue import trial_queue
from optuna_taylorglo.queue.late_words import annotate, report
from optuna_taylorglo.queue.trial_queue import LatePlace, Look, TrialQueue
from optuna_taylorglo.storage import retry
from optuna_taylorglo.storage.first_contact import WORKER_PATIENCE
from optuna_taylorglo.storage.locks import study_lock
from optuna_taylorglo.storage.open_storage import open_storage
from optuna_taylorglo.storage.transitions import glance

WAITING, RUNNING, FAIL = TrialState.WAITING, TrialState.RUNNING, TrialState.FAIL
COMPLETE, PRUNED = TrialState.COMPLETE, TrialState.PRUNED


class Places(TrialQueue):
    """Two places, each with a parameter; one is done when a trial of it has a result."""

    def _look(self) -> Look:
        trials = self.study.trials
        done = [place for place in (0, 1) if self._states(place) & {COMPLETE, PRUNED}]
        self.over = len(done) == 2
        due = [
            create_trial(
                state=WAITING,
                params={"x": place / 2},
                distributions={"x": FloatDistribution(0, 1)},
                user_attrs={"place": place},
            )
            for place in (0, 1)
            if place not in done and not self._states(place) & {WAITING, RUNNING}
        ]
        waiting = [t for t in trials if t.state == WAITING and t.user_attrs["place"] not in done]
        not_ready = [t for t in waiting if t.user_attrs.get(READY) != t.number]
        return Look(len(trials), due, not_ready)

    def _is_repeat(self, trial: FrozenTrial) -> bool:
        return bool(self._states(trial.user_attrs["place"]))

    def _admit(self, waiting: FrozenTrial) -> dict[str, Any] | None:
        return {}

    def _place_of_late_result(self, given_up: FrozenTrial) -> LatePlace | None:
        place = given_up.user_attrs["place"]
        if self._states(place) & {COMPLETE, PRUNED}:
            return None
        others = [t for t in self.study.trials if t.user_attrs["place"] == place]
        return LatePlace({"late": True}, [t for t in others if not t.state.is_finished()])

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


def fail_commits(queue: Places, times: float) -> None:
    """Let the database be away for so many transactions."""
    left = times

    def fail(connection: Any) -> None:
        nonlocal left
        left -= 1
        if left >= 0:
            raise sqlalchemy.exc.OperationalError("COMMIT", None, Exception("gone"))

    sqlalchemy.event.listen(queue._storage.database.engine, "commit", fail)


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
    first, other, second = queue.study.trials
    assert (first.state, first.user_attrs[RELEASED]) == (FAIL, True)
    assert other.state == WAITING
    assert (second.state, RELEASED in second.user_attrs) == (RUNNING, False)


def test_releasing_a_finished_trial_changes_nothing(
    queue: Places, caplog: pytest.LogCaptureFixture
) -> None:
    trial = take(queue)
    queue.finish(trial, 0.5)
    queue.release(trial)
    assert caplog.text == ""
    stored = queue.study.trials[0]
    assert (stored.state, stored.value) == (COMPLETE, 0.5)
    assert stored.user_attrs.keys() == {"place", READY, WORKER}


def test_reports_and_notes_of_a_trial_given_up_are_no_error(
    queue: Places, caplog: pytest.LogCaptureFixture
) -> None:
    trial = take(queue)
    report(trial, 0.1, 1)
    annotate(trial, "note", "before")
    give_up_running(queue)
    report(trial, 0.2, 2)
    annotate(trial, "note", "after")
    stored = queue.study.trials[0]
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
    give_up_running(queue)
    queue.finish(trial, value, state=state)
    given_up, _, kept = queue.study.trials
    assert (given_up.state, LOST in given_up.user_attrs) == (FAIL, True)
    # Of a pruned trial, Optuna keeps the last report.
    assert (kept.state, kept.value) == (state or COMPLETE, 0.1 if state else value)
    assert (kept.params, kept.intermediate_values) == (given_up.params, {1: 0.1})
    assert kept.user_attrs == given_up.user_attrs | {"late": True}
    assert take(queue).user_attrs["place"] == 1


def test_a_late_result_takes_the_place_of_a_repetition_under_way(
    queue: Places, caplog: pytest.LogCaptureFixture
) -> None:
    """Who finishes first counts: nothing that is finished is thrown away."""
    trial = take(queue)
    give_up_running(queue)
    again = take(queue)
    assert again.user_attrs["place"] == 0
    queue.finish(trial, 0.5)
    assert [t.state for t in queue.study.trials] == [FAIL, WAITING, FAIL, COMPLETE]
    assert queue.study.trials[2].user_attrs[RELEASED]
    assert not queue.is_wanted(again)
    queue.finish(again, 0.5)
    assert len(queue.study.trials) == 4
    assert "Trial 2 was given up as lost before it ended as COMPLETE with value 0.5" in caplog.text


def test_a_late_failure_is_no_result(queue: Places) -> None:
    trial = take(queue)
    give_up_running(queue)
    queue.finish(trial, state=FAIL)
    assert [t.state for t in queue.study.trials] == [FAIL, WAITING]


def test_waiting_ends_at_the_deadline(queue: Places) -> None:
    assert queue.wait_for_trial(deadline=time.monotonic()) is None
    assert queue.study.trials == [], "a trial was taken after the deadline"
    for _ in range(2):
        take(queue)
    begin = time.monotonic()
    assert queue.wait_for_trial(deadline=begin + 0.3) is None
    assert 0.3 <= time.monotonic() - begin < 10
    assert not queue.over


def test_a_trial_is_found_soon_and_the_storage_left_in_peace_when_there_is_none(
    queue: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        take(queue)
    waits: list[float] = []
    a_minute_is_over = threading.Event()

    def wait(seconds: float, stop: threading.Event, *, if_watched: float) -> bool:
        waits.append(seconds)
        if sum(waits) > 60:
            stop.set()
        return False

    monkeypatch.setattr(queue._notices, "wait", wait)
    assert queue.wait_for_trial(a_minute_is_over) is None
    waited = itertools.accumulate(waits, initial=0.0)
    assert all(wait <= 0.05 + before / 5 for wait, before in zip(waits, waited, strict=False))
    assert max(waits) <= 2
    assert len(waits) < 100


@pytest.mark.parametrize("heard", [True, False])
def test_who_finds_trials_without_being_told_tells_the_others(
    sqlite_url: str, heard: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying, waiting = new_queue(sqlite_url), new_queue(sqlite_url)
    trials = [take(dying), take(dying)]
    told: list[int] = []

    def wait(seconds: float, stop: threading.Event, *, if_watched: float) -> bool:
        for trial in trials:
            dying.release(trial)
        look = dying._look()
        dying._add(look)
        waiting._look_first = False
        waiting._then = glance(waiting._storage, waiting._study_id, LOOK_AT).counts
        return heard

    monkeypatch.setattr(dying._notices, "send", lambda trials=0: None)
    monkeypatch.setattr(waiting._notices, "pass_on", told.append)
    monkeypatch.setattr(waiting._notices, "wait", wait)
    assert waiting.wait_for_trial() is not None
    assert told == ([] if heard else [1])


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
    assert (queue.study.trials[0].state, queue.study.trials[0].value) == (COMPLETE, 0.5)


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
    give_up_running(queue)
    fail_commits(queue, 3)
    queue.finish(trial, 0.5)
    assert len(waits) == 3
    first, _, last = queue.study.trials
    assert [(t.state, t.value) for t in (first, last)] == [(FAIL, None), (COMPLETE, 0.5)]


def test_patience_with_the_database_is_that_of_the_storage(sqlite_url: str) -> None:
    queue = new_queue(sqlite_url, outage_limit=0.1)
    trial = take(queue)
    fail_commits(queue, float("inf"))
    with pytest.raises(sqlalchemy.exc.OperationalError):
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


def test_many_workers_with_few_connections_do_not_wait_for_each_other(postgresql_url: str) -> None:
    """To open a generation up takes two connections, and three are there for twelve workers."""
    url = sqlalchemy.make_url(postgresql_url)
    role = f"worker_{uuid.uuid4().hex}"
    with psycopg.connect(postgresql_url, autocommit=True) as connection:
        # Of a database, as no limit holds for its superusers.
        connection.execute(f"CREATE ROLE {role} LOGIN")
        connection.execute(f"ALTER DATABASE {url.database} OWNER TO {role}")
        connection.execute(f"ALTER SCHEMA public OWNER TO {role}")
        connection.execute(f"ALTER DATABASE {url.database} CONNECTION LIMIT 3")
    limited = url.set(username=role).render_as_string(hide_password=False)
    new_scheduler(open_storage(limited), popsize=12)
    done: list[int] = []
    deadline = time.monotonic() + 60

    def work() -> None:
        storage = open_storage(limited, patience=WORKER_PATIENCE)
        scheduler = new_scheduler(storage, n_generations=4, popsize=12)
        while (trial := scheduler.wait_for_trial(deadline=deadline)) is not None:
            scheduler.finish(trial, 1.0)
            done.append(trial.number)

    workers = [threading.Thread(target=work) for _ in range(12)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(done) == list(range(48))
