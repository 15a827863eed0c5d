from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported; the tests share the cores

import signal
from collections.abc import Iterator

import optuna
import pytest
from databases import (
    database_url,
    journal_path,
    mariadb,
    mariadb_url,
    own_postgresql,
    postgresql,
    postgresql_url,
    sqlite_url,
)
from forked import start_fork_server
from optuna.storages._rdb.storage import _VersionManager

from optuna_taylorglo.study.outages import stop_requested

__all__ = [
    "database_url",
    "journal_path",
    "mariadb",
    "mariadb_url",
    "own_postgresql",
    "postgresql",
    "postgresql_url",
    "sqlite_url",
]


@pytest.fixture(scope="session", autouse=True)
def _migrations_are_read_once() -> Iterator[None]:
    """Optuna reads its migrations at each opening of a database, which is most of what it costs.

    They are the same for all databases, of which the tests open thousands.
    """
    read, kept = _VersionManager._create_alembic_script, []

    def read_once(manager: _VersionManager) -> object:
        if not kept:
            script = read(manager)
            script.get_current_head()  # which reads them, before several threads ask for it at once
            kept.append(script)
        return kept[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_VersionManager, "_create_alembic_script", read_once)
        yield


@pytest.fixture(scope="session", autouse=True)
def _signals_are_heard() -> None:
    """Also if nohup or a shell's & started the tests: commands and the fork server inherit it."""
    for number, heard in (
        (signal.SIGHUP, signal.SIG_DFL),
        (signal.SIGINT, signal.default_int_handler),
    ):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, heard)


@pytest.fixture(scope="session", autouse=True)
def _fork_server(_migrations_are_read_once: None, _signals_are_heard: None) -> None:
    start_fork_server()


@pytest.fixture(autouse=True)
def quiet_optuna() -> None:
    """Trials are told one by one in tests; warnings and errors are still shown."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)


@pytest.fixture(autouse=True)
def nobody_asked_to_stop() -> Iterator[None]:
    """What a command sets up for its process must not outlast the test that ran it."""
    yield
    stop_requested.clear()
