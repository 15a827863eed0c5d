"""A journal file: signs of life are a counter, and every process has its own clock."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from optuna_taylorglo.attributes import BEAT
from optuna_taylorglo.storage.journal import WatchedJournalStorage

fork = multiprocessing.get_context("fork")
pytestmark = pytest.mark.filterwarnings("ignore:Heartbeat of storage is supposed")


def opened(path: str) -> WatchedJournalStorage:
    return WatchedJournalStorage(path, heartbeat=1, grace=10)


def beat(path: str, trial_id: int) -> None:
    opened(path).record_heartbeat(trial_id)


class Clock:
    """Time as a test wants it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def new_study(path: str) -> optuna.Study:
    return optuna.create_study(study_name="a", storage=opened(path))


def test_silence_is_noticed_after_the_grace_and_not_before(journal_path: str, clock: Clock) -> None:
    study = new_study(journal_path)
    trial = study.ask()._trial_id
    watcher = opened(journal_path)
    # Nobody knows how long the trial has been silent; the first look starts the clock.
    assert watcher._get_stale_trial_ids(study._study_id) == []
    clock.now += 9
    assert watcher._get_stale_trial_ids(study._study_id) == []
    clock.now += 2
    assert watcher._get_stale_trial_ids(study._study_id) == [trial]
    late = opened(journal_path)
    assert late._get_stale_trial_ids(study._study_id) == []


def test_the_beat_of_another_process_is_seen(journal_path: str, clock: Clock) -> None:
    study = new_study(journal_path)
    silent, beating = study.ask()._trial_id, study.ask()._trial_id
    watcher = opened(journal_path)
    watcher._get_stale_trial_ids(study._study_id)
    for _ in range(2):
        clock.now += 8
        process = fork.Process(target=beat, args=(journal_path, beating))
        process.start()
        process.join()
        stale = watcher._get_stale_trial_ids(study._study_id)
    assert stale == [silent]
    assert watcher.get_trial(beating).user_attrs[BEAT] == 2
    clock.now += 11
    assert watcher._get_stale_trial_ids(study._study_id) == [silent, beating]


def test_only_running_trials_can_be_silent(journal_path: str, clock: Clock) -> None:
    study = new_study(journal_path)
    study.enqueue_trial({})
    running = study.ask()
    study.enqueue_trial({})
    watcher = opened(journal_path)
    watcher._get_stale_trial_ids(study._study_id)
    study.tell(running, 1.0)
    clock.now += 100
    assert watcher._get_stale_trial_ids(study._study_id) == []


def test_optuna_gives_up_silent_trials_of_a_journal(journal_path: str, clock: Clock) -> None:
    """Optuna asks only storages that it takes for ones with signs of life."""
    study = new_study(journal_path)
    study.ask()
    optuna.storages.fail_stale_trials(study)
    clock.now += 11
    optuna.storages.fail_stale_trials(study)
    assert [trial.state for trial in study.trials] == [optuna.trial.TrialState.FAIL]


def create_over_a_lock_that_was_left(path: str) -> None:
    storage = opened(path)
    storage._backend._lock.grace_period = 1  # type: ignore[attr-defined]
    optuna.create_study(study_name="b", storage=storage)


def test_a_lock_that_was_left_behind_a_relative_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Optuna's lock is a symbolic link, and the age of one that leads nowhere is not known."""
    monkeypatch.chdir(tmp_path)
    Path("some").mkdir()
    storage = opened("some/study.log")
    storage._backend._lock.acquire()  # type: ignore[attr-defined]
    assert Path("some/study.log.lock").exists()
    process = fork.Process(target=create_over_a_lock_that_was_left, args=("some/study.log",))
    process.start()
    process.join(15)
    process.kill()
    assert optuna.get_all_study_names(storage) == ["b"]
    # Whose lock was broken goes on all the same.
    storage._backend._lock.release()  # type: ignore[attr-defined]


def test_a_relative_path_means_the_same_file_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    storage = opened("study.log")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    optuna.create_study(study_name="a", storage=storage)
    assert optuna.get_all_study_names(opened(str(tmp_path / "study.log"))) == ["a"]


PIECE = b'{"op_code":8,"worker_id":"1-2","trial_id":0,"user_attr":{"k":"'
"""What a process leaves that is killed while it writes."""


def attributes(path: str) -> dict[str, int]:
    return optuna.load_study(study_name="a", storage=opened(path)).user_attrs


def written(path: str, *keys: str) -> None:
    for key in keys:
        # Each by a process that starts anew.
        study = optuna.create_study(study_name="a", storage=opened(path), load_if_exists=True)
        study.set_user_attr(key, 1)


@pytest.mark.parametrize("piece", [PIECE, PIECE * 2, b"\0" * 100, b"{", PIECE + b"\n"])
def test_a_record_cut_off_at_the_end(
    journal_path: str, piece: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    optuna.logging.enable_propagation()
    written(journal_path, "a", "b")
    with open(journal_path, "ab") as file:
        file.write(piece)
    assert attributes(journal_path) == {"a": 1, "b": 1}
    written(journal_path, "c", "d")
    assert attributes(journal_path) == {"a": 1, "b": 1, "c": 1, "d": 1}
    assert "bytes of a record that was cut off" in caplog.text
    plain = JournalStorage(JournalFileBackend(journal_path))
    assert optuna.load_study(study_name="a", storage=plain).user_attrs.keys() == set("abcd")


def test_a_record_of_which_only_the_end_of_the_line_is_missing(journal_path: str) -> None:
    written(journal_path, "a", "b")
    with open(journal_path, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.truncate()
    written(journal_path, "c")
    assert attributes(journal_path) == {"a": 1, "b": 1, "c": 1}


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_pieces_in_the_middle(journal_path: str, end: bytes) -> None:
    """As Optuna's own class leaves them when it writes on after one."""
    written(journal_path, "a", "b", "c")
    whole = Path(journal_path).read_bytes().splitlines(keepends=True)
    pieces = PIECE + end
    Path(journal_path).write_bytes(
        b"".join([*whole[:2], pieces, whole[2], pieces, pieces, *whole[3:], pieces])
    )
    assert attributes(journal_path) == {"a": 1, "b": 1, "c": 1}
    written(journal_path, "d")
    assert attributes(journal_path) == {"a": 1, "b": 1, "c": 1, "d": 1}


def test_a_piece_is_met_by_a_process_that_is_running(journal_path: str) -> None:
    written(journal_path, "a")
    running = optuna.load_study(study_name="a", storage=opened(journal_path))
    plain = JournalStorage(JournalFileBackend(journal_path))
    other = optuna.load_study(study_name="a", storage=plain)
    with open(journal_path, "ab") as file:
        file.write(PIECE)
    for key in ("b", "c"):
        with contextlib.suppress(ValueError):
            other.set_user_attr(key, 1)
    assert running.user_attrs == {"a": 1, "b": 1, "c": 1}
    running.set_user_attr("d", 1)
    assert attributes(journal_path) == {"a": 1, "b": 1, "c": 1, "d": 1}
