"""What a worker held that was seen to die is given back at once, and nothing else."""

from __future__ import annotations

import json
import math
import os
import sqlite3
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
import sqlalchemy
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from schedulers import FAIL, age_heartbeats, new_scheduler, place, take

from optuna_taylorglo.attributes import LOST, RELEASED, TAKER, WORKER
from optuna_taylorglo.processes import start_of
from optuna_taylorglo.queue import trial_queue
from optuna_taylorglo.queue.identity import (
    TOKEN_VARIABLE,
    WorkerIdentity,
    own_identity,
    worker_in,
    worker_of,
)
from optuna_taylorglo.queue.lost_workers import MAX_LOSSES, SilenceWatch, give_up_trials_of
from optuna_taylorglo.search import generations
from optuna_taylorglo.search.generations import rank
from optuna_taylorglo.storage import retry, transitions
from optuna_taylorglo.storage.open_storage import open_storage
from optuna_taylorglo.storage.optuna_private import storage_of, trial_id_of
from optuna_taylorglo.storage.transitions import beat, end


def claimed_by(worker: WorkerIdentity, monkeypatch: pytest.MonkeyPatch, scheduler):
    monkeypatch.setattr(trial_queue, "own_identity", lambda: worker)
    return take(scheduler)


@pytest.mark.parametrize("kind", ["sqlite", "journal"])
def test_only_trials_of_the_very_worker_are_given_up(kind, tmp_path, monkeypatch):
    url = f"sqlite:///{tmp_path}/a.db" if kind == "sqlite" else str(tmp_path / "a.log")
    scheduler = new_scheduler(open_storage(url), popsize=4)
    dead = WorkerIdentity("here", 17, "a")
    others = [replace(dead, host="there"), replace(dead, pid=18), replace(dead, token="b")]
    lost, *kept = [claimed_by(w, monkeypatch, scheduler) for w in (dead, *others)]
    assert give_up_trials_of(scheduler.study, dead, "killed") == [lost.number]
    trials = scheduler.study.trials
    assert [t.state == FAIL for t in trials] == [True, False, False, False]
    assert trials[0].user_attrs[LOST] == "killed"
    # Another takes its place at once: the same candidate, attempt and so the same seed.
    again = take(scheduler)
    assert (place(again), again.params) == (place(lost), lost.params)
    assert give_up_trials_of(scheduler.study, dead, "killed") == []
    assert [t.state == FAIL for t in scheduler.study.trials[1:4]] == [False] * len(kept)


def test_what_kills_its_worker_every_time_comes_to_an_end(sqlite_url, monkeypatch, caplog):
    monkeypatch.setattr(generations, "MAX_LOSSES", 5)
    scheduler = new_scheduler(open_storage(sqlite_url), popsize=2, max_failures=0)
    dead = WorkerIdentity("here", 17, "a")
    for _ in range(6):
        trial = claimed_by(dead, monkeypatch, scheduler)
        assert place(trial) == (0, 0, 0)
        give_up_trials_of(scheduler.study, dead, "out of memory")
    assert not any(RELEASED in t.user_attrs for t in scheduler.study.trials)
    optuna.logging.enable_propagation()
    other = take(scheduler)
    optuna.logging.disable_propagation()
    assert place(other) == (0, 1, 0)
    assert "Candidate 1 of generation 1 has cost 6 workers their lives" in caplog.text
    scheduler.finish(other, 0.1)
    ((killer, survivor),) = scheduler.sampler.read(scheduler.study).finished
    assert (killer.kills_workers, survivor.kills_workers) == (True, False)
    assert rank([killer, survivor], maximize=True) == [1, 0]


def test_deaths_of_workers_are_not_charged_to_the_candidate(sqlite_url, monkeypatch):
    scheduler = new_scheduler(open_storage(sqlite_url), popsize=2, max_failures=3)
    dead = WorkerIdentity("here", 17, "a")
    for _ in range(MAX_LOSSES):
        trial = claimed_by(dead, monkeypatch, scheduler)
        give_up_trials_of(scheduler.study, dead, "killed")
    for _ in range(3):
        trial = take(scheduler)
        assert place(trial) == (0, 0, 0)
        scheduler.finish(trial, state=FAIL)
    trial = take(scheduler)
    assert place(trial) == (0, 0, 0)
    scheduler.finish(trial, 0.5)
    slot = scheduler.sampler.read(scheduler.study).current_slots()[0]
    assert (slot.losses, slot.failures, slot.result.value) == (MAX_LOSSES, 3, 0.5)


def test_a_trial_says_who_evaluates_it(sqlite_url, monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, "of the supervisor")
    scheduler = new_scheduler(open_storage(sqlite_url))
    number = take(scheduler).number
    worker = worker_of(scheduler.study.trials[number])
    assert worker == own_identity()
    assert worker.token == "of the supervisor"


def test_who_waits_says_for_whom(sqlite_url, monkeypatch, caplog):
    scheduler = new_scheduler(open_storage(sqlite_url), popsize=2)
    for pid in (17, 18):
        claimed_by(WorkerIdentity("here", pid, "a"), monkeypatch, scheduler)
    monkeypatch.setattr(trial_queue, "_FIRST_WORD", 0.0)
    import time

    with caplog.at_level("INFO"):
        trial_queue._logger.addHandler(caplog.handler)
        assert scheduler.wait_for_trial(deadline=time.monotonic() + 0.5) is None
        trial_queue._logger.removeHandler(caplog.handler)
    (line,) = {record.message for record in caplog.records}
    assert line.startswith("waiting for 2 trainings of generation 1: on here:17 since ")
    assert ", on here:18 since " in line


@pytest.fixture
def silent_trial(tmp_path, monkeypatch):
    """A trial in SQLite whose sign of life is old, and a watch that has known it for a while."""
    url = f"sqlite:///{tmp_path}/a.db"
    monkeypatch.setattr(retry._process, "last_end", -math.inf)
    scheduler = new_scheduler(open_storage(url, heartbeat=1, grace=2), popsize=2)
    trial = take(scheduler)
    age_heartbeats(storage_of(scheduler.study))
    watch = SilenceWatch(scheduler.study, watch=0.5)
    assert watch.give_up() == []
    time.sleep(0.6)
    return trial, watch


def test_nobody_is_given_up_when_nobody_could_write(silent_trial, tmp_path):
    """A process that is suspended amid a write to SQLite keeps all others from signs of life."""
    trial, watch = silent_trial
    suspended = sqlite3.connect(tmp_path / "a.db", check_same_thread=False, isolation_level=None)
    suspended.execute("BEGIN IMMEDIATE")
    threading.Timer(2.0, suspended.execute, ["COMMIT"]).start()
    began = time.monotonic()
    assert watch.give_up() == []
    assert time.monotonic() - began > 1.5
    # It has half a second for its next sign of life, another once it is suspected, and gives none.
    assert watch.give_up() == []
    time.sleep(0.6)
    assert watch.give_up() == []
    given_up: list[int] = []
    deadline = time.monotonic() + 60
    while not given_up and time.monotonic() < deadline:
        time.sleep(0.1)
        given_up = watch.give_up()
    assert given_up == [trial_id_of(trial)]
    suspended.close()


def test_who_did_not_notice_a_standstill_is_not_the_first_to_act_after_it(silent_trial):
    """Nobody could write until a moment ago, and this process had nothing to write."""
    trial, watch = silent_trial
    assert watch.give_up() == []
    # It gets through at last.
    assert beat(storage_of(trial.study), trial_id_of(trial))
    time.sleep(0.6)
    assert watch.give_up() == []


def test_a_standstill_that_another_call_noticed_counts(silent_trial, tmp_path):
    """Suspected, then nobody could write for a while: the suspicion proves nothing any more."""
    trial, watch = silent_trial
    assert watch.give_up() == []
    suspended = sqlite3.connect(tmp_path / "a.db", check_same_thread=False, isolation_level=None)
    suspended.execute("BEGIN IMMEDIATE")
    threading.Timer(1.5, suspended.execute, ["COMMIT"]).start()
    trial.study.set_user_attr("anything", 1)
    assert watch.give_up() == []
    suspended.close()


@pytest.mark.parametrize("kind", ["sqlite", "journal"])
def test_a_slow_storage_is_not_one_that_stands_still(kind, tmp_path, monkeypatch):
    """A continent away each call takes seconds, and the dead must be given up there too."""
    url = f"sqlite:///{tmp_path}/a.db" if kind == "sqlite" else str(tmp_path / "a.log")
    monkeypatch.setattr(retry._process, "last_end", -math.inf)
    scheduler = new_scheduler(open_storage(url), popsize=2)
    elsewhere = WorkerIdentity("elsewhere", 17, "a")
    lost = claimed_by(elsewhere, monkeypatch, scheduler)
    storage = storage_of(scheduler.study)
    if kind == "sqlite":
        age_heartbeats(storage)
    clock, passed = time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock() + passed[0])

    def be_slow(call):
        def slow(*args):
            passed[0] += 3
            return call(*args)

        return slow

    watch = SilenceWatch(scheduler.study)
    for owner, name in [
        (transitions, "_is_still_silent"),
        (JournalFileBackend, "append_logs"),
        (sqlalchemy.engine.default.DefaultDialect, "do_begin"),
    ]:
        monkeypatch.setattr(owner, name, be_slow(getattr(owner, name)))
    given_up: list[int] = []
    began = time.monotonic()
    while not given_up and time.monotonic() < began + 3600:
        passed[0] += 15
        given_up = watch.give_up()
    assert given_up == [trial_id_of(lost)]
    grace_and_suspicion = 240 + 15
    assert time.monotonic() - began < grace_and_suspicion + 60


@pytest.mark.parametrize(("grace", "seconds"), [(4, 1), (60, 7.5), (240, 30)])
def test_what_counts_as_a_standstill_follows_the_grace(grace, seconds, monkeypatch):
    """A worker that is silent for the grace because of it must not be given up."""
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(retry._process, "last_end", -math.inf)

    def takes(seconds: float) -> None:
        clock[0] += seconds

    retry.noting_standstill(lambda: takes(seconds - 0.1), grace)
    assert retry.last_outage_end() == -math.inf
    retry.noting_standstill(lambda: takes(seconds + 0.1), grace)
    assert retry.last_outage_end() == clock[0]


@pytest.fixture
def trial_in_journal(journal_path, monkeypatch):
    """A trial in a journal that gives no sign of life, and a watch that has seen it."""
    monkeypatch.setattr(retry._process, "last_end", -math.inf)
    storage = open_storage(journal_path)
    storage.grace_period = 1
    scheduler = new_scheduler(storage, popsize=2)
    trial = take(scheduler)
    watch = SilenceWatch(scheduler.study, watch=0.5)
    assert watch.give_up() == []
    return trial, watch


@pytest.mark.parametrize("is_alive", [True, False])
def test_nobody_is_given_up_while_a_dead_writer_has_the_lock_of_a_journal(
    trial_in_journal, journal_path, is_alive
):
    """All can read that time, and the first to write after it must not be the one who suspects."""
    trial, watch = trial_in_journal
    lock = Path(f"{journal_path}.lock")
    lock.symlink_to(journal_path)
    threading.Timer(2.5, lock.unlink).start()
    time.sleep(1.1)
    assert watch.give_up() == []
    time.sleep(0.6)
    assert watch.give_up() == []
    assert not lock.is_symlink()
    if is_alive:
        assert beat(storage_of(trial.study), trial_id_of(trial))
    given_up: list[int] = []
    deadline = time.monotonic() + (0.8 if is_alive else 60)
    while not given_up and time.monotonic() < deadline:
        time.sleep(0.1)
        given_up = watch.give_up()
    assert given_up == ([] if is_alive else [trial_id_of(trial)])


def test_who_comes_through_after_it_was_suspected_is_not_given_up(trial_in_journal, journal_path):
    trial, watch = trial_in_journal
    storage = storage_of(trial.study)
    time.sleep(1.1)
    (seen,) = storage.silent_trials(trial.study._study_id).values()
    assert watch.give_up() == []
    # Between the last look and the decision.
    assert beat(open_storage(journal_path), trial_id_of(trial))
    assert not end(storage, trial_id_of(trial), FAIL, seen=seen)
    assert storage.get_trial(trial_id_of(trial)).state == TrialState.RUNNING


def ended_process() -> WorkerIdentity:
    """A process of this machine that has come to its end, as it named itself."""
    query = "import json; from optuna_taylorglo.queue.identity import own_identity as own; "
    query += "print(json.dumps(own().to_dict()))"
    said = subprocess.run([sys.executable, "-c", query], capture_output=True, check=True).stdout
    worker = worker_in(json.loads(said))
    assert worker is not None
    return worker


linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")


@linux
@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "journal"])
def test_the_dead_of_this_machine_are_given_up_without_waiting_for_their_silence(
    kind, request, monkeypatch
):
    url = request.getfixturevalue("journal_path" if kind == "journal" else f"{kind}_url")
    scheduler = new_scheduler(open_storage(url), popsize=3)
    gone = claimed_by(ended_process(), monkeypatch, scheduler)
    alive = claimed_by(own_identity(), monkeypatch, scheduler)
    # The same numbers in another container, or before the machine was started anew.
    elsewhere = replace(ended_process(), place="elsewhere")
    far = claimed_by(elsewhere, monkeypatch, scheduler)
    assert SilenceWatch(scheduler.study).give_up() == [trial_id_of(gone)]
    trials = scheduler.study.trials
    assert trials[gone.number].user_attrs[LOST] == "its worker has died"
    assert trials[alive.number].state == trials[far.number].state == TrialState.RUNNING
    # Taken up by the next one who comes.
    assert place(take(scheduler)) == place(gone)


@linux
@pytest.mark.parametrize("kind", ["sqlite", "journal"])
def test_who_came_too_late_for_a_trial_and_died_does_not_count_as_its_worker(kind, request):
    url = request.getfixturevalue("journal_path" if kind == "journal" else f"{kind}_url")
    scheduler = new_scheduler(open_storage(url))
    trial_id = trial_id_of(take(scheduler))
    late = {WORKER: ended_process().to_dict()}
    assert transitions.take(open_storage(url), trial_id, late) is None
    assert worker_of(scheduler.study.trials[0]) == own_identity()
    assert SilenceWatch(scheduler.study).give_up() == []


@linux
def test_who_died_before_it_could_say_that_it_had_taken_a_trial(journal_path):
    """Neither its name nor a sign of life is there, and nobody waits for the grace period."""
    scheduler = new_scheduler(open_storage(journal_path), popsize=2)
    take(scheduler)
    storage, halfway = storage_of(scheduler.study), trial_id_of(scheduler.study.trials[1])
    storage.set_trial_user_attr(halfway, TAKER, own_identity().to_dict())
    assert storage.set_trial_state_values(halfway, TrialState.RUNNING)
    watch = SilenceWatch(scheduler.study, watch=0.2)
    for _ in range(3):
        assert watch.give_up() == [], "its taker is alive, and about to say so"
        time.sleep(0.2)
    storage.set_trial_user_attr(halfway, TAKER, ended_process().to_dict())
    assert watch.give_up() == [], "another may have taken it at the same moment"
    time.sleep(0.3)
    assert watch.give_up() == [halfway]


@linux
def test_a_process_number_that_was_used_again():
    assert not own_identity().has_died
    assert replace(own_identity(), started="1").has_died


@linux
def test_a_process_that_nobody_has_buried_yet():
    child = subprocess.Popen(["sleep", "600"])
    started = start_of(child.pid)
    worker = replace(own_identity(), pid=child.pid, started=started)
    assert not worker.has_died
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert worker.has_died
    child.wait()


@pytest.mark.parametrize(
    "content",
    [
        None,
        {"host": "a", "pid": 1},
        {"host": "a", "pid": "1", "token": "t"},
        {"host": "a", "pid": -1, "token": "t"},
        {"host": 3, "pid": 1, "token": "t"},
        {"host": "a", "pid": 1, "token": "t", "more": 1},
    ],
)
def test_what_names_no_worker(content):
    assert worker_in(content) is None


def test_workers_of_an_earlier_version_are_known():
    assert worker_in({"host": "a", "pid": 1, "token": "t"}) == WorkerIdentity("a", 1, "t")
