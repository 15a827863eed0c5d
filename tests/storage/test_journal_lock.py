"""The lock of a journal keeps everybody out but the dead."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from optuna.storages.journal import JournalFileSymlinkLock
from optuna.storages.journal._file import BaseJournalFileLock

from optuna_taylorglo.processes import this_process
from optuna_taylorglo.storage.journal_lock import JournalLock

# Seconds after which Optuna's lock is taken from whoever has it.
OPTUNAS_GRACE = 30

fork = multiprocessing.get_context("fork")
linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "study.log"
    path.touch()
    return path


def die_with(lock: BaseJournalFileLock) -> None:
    lock.acquire()
    os.kill(os.getpid(), signal.SIGKILL)


def seconds_to_acquire(lock: BaseJournalFileLock) -> float:
    began = time.monotonic()
    lock.acquire()
    return time.monotonic() - began


def holder_killed(lock: BaseJournalFileLock) -> None:
    process = fork.Process(target=die_with, args=(lock,))
    process.start()
    process.join()


@linux
def test_the_lock_of_a_dead_process_is_free_at_once(journal: Path) -> None:
    holder_killed(JournalLock(str(journal)))
    assert Path(f"{journal}.lock").is_symlink()
    lock = JournalLock(str(journal))
    assert seconds_to_acquire(lock) < OPTUNAS_GRACE - 5
    lock.release()
    assert [path.name for path in journal.parent.iterdir()] == ["study.log"]


@pytest.mark.parametrize("dead", [False, True])
def test_whoever_lives_or_is_unknown_keeps_it_for_the_time_of_grace(
    journal: Path, dead: bool
) -> None:
    """One of Optuna's own leaves no note, so that nobody knows whether it lives."""
    first = JournalFileSymlinkLock(str(journal)) if dead else JournalLock(str(journal))
    holder_killed(first) if dead else first.acquire()
    lock = JournalLock(str(journal))
    lock.grace_period = 1
    assert 1 <= seconds_to_acquire(lock) < OPTUNAS_GRACE - 5
    # Whose lock was taken away leaves it to whoever has it now.
    if not dead:
        first.release()
    assert Path(f"{journal}.lock").is_symlink()
    lock.release()
    assert not Path(f"{journal}.lock").is_symlink()


def test_a_note_speaks_of_one_link_only(journal: Path) -> None:
    """That of somebody dead, who left it and not the link, says nothing of who has the lock now."""
    first, second = JournalLock(str(journal)), JournalLock(str(journal))
    first.acquire()
    status = os.lstat(f"{journal}.lock")
    dead = asdict(replace(this_process(), started="1"))
    note = Path(f"{journal}.lock-note")
    link = [status.st_ino, status.st_mtime_ns]
    whole = json.dumps([link, dead])
    other = json.dumps([[link[0], link[1] - 1], dead])
    for said in (other, json.dumps([link, {}]), "[]", '"a"', "3", whole[:20], ""):
        note.write_text(said)
        assert not second._died_with((link[0], link[1]))
    note.write_text(whole)
    assert second._died_with((link[0], link[1])) == bool(dead["place"])


def count(journal: Path, lock: BaseJournalFileLock, rounds: int) -> None:
    for _ in range(rounds):
        lock.acquire()
        number = int(journal.read_text() or 0)
        time.sleep(0.0002)
        journal.write_text(str(number + 1))
        lock.release()


def test_nobody_comes_in_beside_another(journal: Path) -> None:
    """Processes of Optuna's own among them."""
    locks = [JournalLock, JournalLock, JournalLock, JournalFileSymlinkLock]
    processes = [
        fork.Process(target=count, args=(journal, lock(str(journal)), 50)) for lock in locks
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert int(journal.read_text()) == 200


def test_of_two_who_take_a_lock_away_the_second_takes_nothing(journal: Path) -> None:
    """Both saw that its holder is dead; meanwhile the first has taken it for itself."""
    first, second = JournalLock(str(journal)), JournalLock(str(journal))
    first.acquire()
    status = os.lstat(f"{journal}.lock")
    second._take_away((status.st_ino, status.st_mtime_ns - 1))
    second.grace_period = 1
    assert Path(f"{journal}.lock").is_symlink()
    assert seconds_to_acquire(second) >= 1
