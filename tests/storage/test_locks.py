"""Locks between the workers of a study."""

from __future__ import annotations

import multiprocessing
import multiprocessing.pool
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from optuna.storages import InMemoryStorage

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
