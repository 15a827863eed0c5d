"""Locks between the workers of a study."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.pool
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
import sqlalchemy
from optuna.storages import InMemoryStorage

from optuna_taylorglo.storage import engines, locks
from optuna_taylorglo.storage.locks import study_lock
from optuna_taylorglo.storage.open_storage import open_storage

fork = multiprocessing.get_context("fork")


def _hold(url: str, held: Any) -> None:
    with study_lock(open_storage(url), "a"):
        held.set()
        time.sleep(3600)


def _count(url: str, path: Path) -> None:
    storage = open_storage(url)
    for _ in range(10):
        with study_lock(storage, "a"):
            number = int(path.read_text())
            time.sleep(0.001)
            path.write_text(str(number + 1))


@pytest.fixture(params=["sqlite_url", "postgresql_url", "mariadb_url", "journal_path"])
def any_url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(request.param)
    return url


def test_lock_lets_one_process_in_at_a_time(any_url: str, tmp_path: Path) -> None:
    open_storage(any_url)
    path = tmp_path / "number"
    path.write_text("0")
    processes = [fork.Process(target=_count, args=(any_url, path)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert path.read_text() == "40"


def test_lock_dies_with_its_holder(any_url: str) -> None:
    storage = open_storage(any_url)
    held = fork.Event()
    process = fork.Process(target=_hold, args=(any_url, held))
    process.start()
    assert held.wait(30)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    with study_lock(storage, "a"):
        pass


@contextlib.contextmanager
def suspended_process(target: Callable[[str, Any], None], url: str) -> Iterator[None]:
    """A process that has been stopped, though not ended, as soon as it holds something."""
    held = fork.Event()
    process = fork.Process(target=target, args=(url, held))
    process.start()
    assert held.wait(30)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    yield
    os.kill(process.pid, signal.SIGKILL)
    process.join()


def test_nobody_waits_for_a_suspended_holder_for_ever(
    any_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(locks, "PATIENCE", 3.0)
    monkeypatch.setattr(locks, "STUCK_PATIENCE", 0.1)
    monkeypatch.setattr(locks, "_stuck", {})
    optuna.logging.enable_propagation()
    storage = open_storage(any_url)
    study = optuna.create_study(storage=storage)
    with suspended_process(_hold, any_url):
        for longest in (60.0, 2.5):
            start = time.monotonic()
            with study_lock(storage, "a"):
                assert time.monotonic() - start < longest
                # The work that the lock protects can be done.
                study.ask()
    with study_lock(storage, "a"):
        pass
    assert caplog.text.count("going on without it") == 1


def _hold_rows(url: str, held: Any) -> None:
    storage = open_storage(url)
    with study_lock(storage, "a"), storage.database.engine.connect() as connection:
        connection.execute(sqlalchemy.text("SELECT * FROM studies FOR UPDATE"))
        held.set()
        time.sleep(3600)


@pytest.mark.parametrize("database", ["postgresql", "mariadb"])
def test_the_server_takes_the_locks_of_a_suspended_process_back(
    database: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lock on a study, and those on rows in the middle of a transaction."""
    monkeypatch.setitem(engines._POSTGRESQL_SETTINGS, "idle_in_transaction_session_timeout", "2s")
    monkeypatch.setitem(engines._MYSQL_SETTINGS, "wait_timeout", 2)
    monkeypatch.setattr(locks, "_stuck", {})
    url = request.getfixturevalue(f"{database}_url")
    storage = open_storage(url)
    study = optuna.create_study(storage=storage)
    with suspended_process(_hold_rows, url):
        start = time.monotonic()
        study.ask()
        with study_lock(storage, "a"):
            pass
        assert time.monotonic() - start < locks.PATIENCE
    assert "of study 'a'" not in locks._stuck


def _keep_busy(url: str, path: Path, end: float) -> None:
    storage = open_storage(url)
    while time.time() < end:
        with study_lock(storage, "a"):
            path.touch(exist_ok=False)
            time.sleep(0.2)
            path.unlink()


@pytest.mark.parametrize("database", ["sqlite", "postgresql", "mariadb"])
def test_a_lock_that_changes_hands_is_waited_for(
    database: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the queue for it is: nobody goes on without it."""
    url = request.getfixturevalue(f"{database}_url")
    monkeypatch.setattr(locks, "PATIENCE", 1.5)
    monkeypatch.setattr(locks, "STUCK_PATIENCE", 0.1)
    open_storage(url)
    arguments = (url, tmp_path / "inside", time.time() + 4)
    processes = [fork.Process(target=_keep_busy, args=arguments) for _ in range(6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 6


def test_lock_in_memory_is_between_threads() -> None:
    storage, counts = InMemoryStorage(), [0]

    def count(_: int) -> None:
        for _ in range(10):
            with study_lock(storage, "a"):
                number = counts[0]
                time.sleep(0.0005)
                counts[0] = number + 1

    with multiprocessing.pool.ThreadPool(4) as pool:
        pool.map(count, range(4))
    assert counts == [40]
