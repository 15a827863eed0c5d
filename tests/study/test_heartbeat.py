"""Heartbeats, and when a running trial without one fails."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
import sqlalchemy
from optuna.storages import InMemoryStorage
from optuna.trial import FrozenTrial, Trial, TrialState
from schedulers import FAIL, fail_running, new_scheduler, place, read_anew, take
from searches import wait_until

from optuna_taylorglo.attributes import STALE, SUSPECT, WITHDRAWN, WORKER
from optuna_taylorglo.evolution import scheduler
from optuna_taylorglo.study import heartbeat
from optuna_taylorglo.study.heartbeat import (
    CLAIM_LIMIT,
    StaleTrials,
    WorkerProcess,
    fail_trial,
    heartbeats,
    write_heartbeat,
)
from optuna_taylorglo.study.optuna_private import storage_of, trial_id_of

RUNNING = TrialState.RUNNING
GRACE = 40.0
ELSEWHERE = {"host": "elsewhere", "pid": 17, "heartbeat": 1.0}

linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")


@pytest.fixture
def study() -> optuna.Study:
    return optuna.create_study(storage=InMemoryStorage())


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    optuna.logging.enable_propagation()
    yield caplog
    optuna.logging.disable_propagation()


def stored(trial: Trial) -> FrozenTrial:
    return trial.study.trials[trial.number]


@linux
def test_dead_processes_of_this_machine() -> None:
    child = subprocess.Popen(["sleep", "600"])
    this = WorkerProcess.current()
    assert (this.pid, this.has_died, str(this)) == (os.getpid(), False, f"{this.host}:{this.pid}")
    worker = replace(this, pid=child.pid, started=heartbeat._start_time(child.pid))
    assert not worker.has_died
    assert replace(worker, started="1").has_died, "its id is used by another process now"
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert worker.has_died, "it is a zombie"
    child.wait()
    assert worker.has_died
    # The same ids on another machine, in another container, or before this machine was restarted.
    assert not replace(worker, system="elsewhere").has_died
    assert not replace(worker, system="").has_died


def test_heartbeats_are_written_while_the_body_runs(study: optuna.Study) -> None:
    trial, told = study.ask(), threading.Event()

    def entry() -> WorkerProcess | None:
        return WorkerProcess.of(stored(trial))

    with heartbeats(trial, interval=0.05, on_stale=told.set):
        wait_until(lambda: entry() is not None)
        first = entry()
        wait_until(lambda: entry() != first)
    last = entry()
    assert last is not None
    assert (last.pid, last.silent_seconds < 60) == (os.getpid(), True)
    time.sleep(0.15)
    assert entry() == last
    assert not told.is_set()


def test_a_worker_is_told_that_its_trial_failed(study: optuna.Study) -> None:
    trial, told = study.ask(), threading.Event()
    with heartbeats(trial, interval=0.05, on_stale=told.set):
        study.tell(trial, state=FAIL)
        assert told.wait(30)


def outage(*args: object) -> None:
    raise sqlalchemy.exc.OperationalError("UPDATE", None, Exception("gone"))


def test_an_error_does_not_end_the_heartbeats_and_the_body_waits_for_none(
    study: optuna.Study, monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture
) -> None:
    written, go_on = list[int](), threading.Event()

    def unsteady(storage: object, trial_id: int) -> None:
        written.append(trial_id)
        if len(written) == 1:
            outage()
        go_on.wait(60)

    monkeypatch.setattr(heartbeat, "write_heartbeat", unsteady)
    with heartbeats(study.ask(), interval=0.01):
        wait_until(lambda: len(written) == 2)
        start = time.monotonic()
    assert time.monotonic() - start < 10
    go_on.set()
    assert logged.text.count("No heartbeat: ") == 1


class Watch:
    """An observer of one study, with a clock of its own."""

    def __init__(self, study: optuna.Study, monkeypatch: pytest.MonkeyPatch) -> None:
        self.study, self.now = study, 1000.0
        self.stale = StaleTrials(storage_of(study), GRACE)
        clock = SimpleNamespace(monotonic=lambda: self.now, time=time.time)
        monkeypatch.setattr(heartbeat, "time", clock)

    def after(self, seconds: float) -> list[int]:
        """Numbers of the trials that fail at a read after some more seconds."""
        self.now += seconds
        trials = self.study.get_trials(deepcopy=False)
        failed = self.stale.fail(trials)
        return [trial.number for trial in trials if trial_id_of(trial) in failed]


@pytest.fixture
def watch(study: optuna.Study, monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(study, monkeypatch)


def running(study: optuna.Study, entry: Any = ELSEWHERE) -> Trial:
    trial = study.ask()
    trial.set_user_attr(WORKER, entry)
    return trial


def test_silence_makes_suspect_first_and_then_fails(study: optuna.Study, watch: Watch) -> None:
    trial = running(study)
    assert watch.after(10_000) == [], "how long it was silent before is not known"
    assert watch.after(GRACE - 1) == []
    assert SUSPECT not in stored(trial).user_attrs
    # The observer itself may have been suspended: there are always two steps.
    assert watch.after(100 * GRACE) == []
    assert stored(trial).user_attrs[SUSPECT] is True
    assert watch.after(GRACE / 2 - 1) == []
    assert stored(trial).state == RUNNING
    assert watch.after(1) == [0]
    assert stored(trial).state == FAIL
    assert stored(trial).user_attrs[STALE] == "its worker wrote no heartbeat"
    assert watch.after(1) == []


@pytest.mark.parametrize("moment", [GRACE / 2, GRACE + 1])
def test_a_heartbeat_clears_the_suspicion(study: optuna.Study, watch: Watch, moment: float) -> None:
    trial = running(study)
    watch.after(0)
    watch.after(moment)
    # Any change counts, whatever the clock of the other machine says.
    trial.set_user_attr(WORKER, ELSEWHERE | {"heartbeat": 0.0})
    assert watch.after(GRACE / 2) == []
    assert watch.after(GRACE - 1) == []
    assert watch.after(1) == []
    assert watch.after(GRACE / 2) == [0], "the clock has started anew"


def test_no_trial_fails_in_an_outage(
    study: optuna.Study, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All workers may be silent because nothing can be written, or the mark waits for the end."""
    trials = [running(study), running(study)]
    watch.after(0)
    with monkeypatch.context() as away:
        away.setattr(storage_of(study), "set_trial_user_attr", outage)
        for _ in range(3):
            with pytest.raises(sqlalchemy.exc.OperationalError):
                watch.after(2 * GRACE)
    trials[0].set_user_attr(WORKER, ELSEWHERE | {"heartbeat": 2.0})
    write = storage_of(study).set_trial_user_attr

    def outlast(*args: Any) -> None:
        watch.now += 500
        write(*args)

    with monkeypatch.context() as away:
        away.setattr(storage_of(study), "set_trial_user_attr", outlast)
        assert watch.after(0) == []
    assert watch.after(GRACE / 2 - 1) == []
    assert watch.after(1) == [1]
    assert stored(trials[0]).state == RUNNING


def test_each_kind_of_running_trial_has_its_limit(study: optuna.Study, watch: Watch) -> None:
    running(study, None)  # claimed
    study.ask()  # of another program
    for entry in (None, ELSEWHERE):  # being withdrawn; evaluated in spite of the mark
        running(study, entry).set_user_attr(WITHDRAWN, True)
    study.tell(running(study), 1.0)
    study.enqueue_trial({})
    assert watch.after(0) == [2], "its withdrawer died over it"
    assert STALE not in study.trials[2].user_attrs
    assert watch.after(CLAIM_LIMIT) == []
    assert watch.after(CLAIM_LIMIT / 2) == [0]
    assert watch.after(GRACE - 1.5 * CLAIM_LIMIT) == []
    assert watch.after(GRACE / 2) == [1, 3]
    assert watch.after(10 * GRACE) == watch.after(10 * GRACE) == []
    assert [t.state.name for t in study.trials[4:]] == ["COMPLETE", "WAITING"]


@linux
def test_the_trial_of_a_dead_process_fails_at_once(study: optuna.Study, watch: Watch) -> None:
    this = WorkerProcess.current()
    dead = running(study, asdict(replace(this, started="1")))
    alive, elsewhere = running(study, asdict(this)), running(study)
    assert watch.after(0) == [dead.number]
    assert stored(dead).user_attrs[STALE] == f"its worker {this} has died"
    assert stored(alive).state == stored(elsewhere).state == RUNNING


def test_a_trial_that_ends_at_the_same_moment_has_its_result(
    study: optuna.Study, watch: Watch
) -> None:
    trial = running(study)
    watch.after(0)
    watch.after(GRACE)
    seen = study.get_trials(deepcopy=True)
    study.tell(trial, 1.0)
    watch.now += GRACE
    assert watch.stale.fail(seen) == []
    assert not fail_trial(storage_of(study), trial_id_of(trial), STALE)
    assert stored(trial).value == 1.0
    assert STALE not in stored(trial).user_attrs
    with pytest.raises(optuna.exceptions.UpdateFinishedTrialError):
        write_heartbeat(storage_of(study), trial_id_of(trial))


def test_a_candidate_that_crashes_its_workers_counts_as_the_worst(
    monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(scheduler, "MAX_STALE", 3)
    queue = new_scheduler(InMemoryStorage(), popsize=2, max_failures=1)
    for outcome in ("stale", FAIL, "stale", "stale", "stale"):
        trial = take(queue)
        assert place(trial) == (0, 0, 0)
        if outcome == FAIL:
            queue.finish(trial, state=FAIL)
        else:
            fail_running(queue)
        read_anew(queue)
    other = take(queue)
    assert place(other) == (0, 1, 0)
    slot = queue.sampler.read(queue.study).current_slots()[0]
    assert (slot.stale, slot.failures) == (4, 1), "a lost worker is not a failure"
    message = "Candidate 1 of generation 1 crashed 4 workers, perhaps for lack of memory."
    assert logged.text.count(message) == 1, "once for each worker"
    queue.finish(other, 0.1)
    ((crasher, survivor),) = queue.sampler.read(queue.study).finished
    assert crasher.sort_key(maximize=True) > survivor.sort_key(maximize=True)
