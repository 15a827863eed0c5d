"""From a URL to a storage, and what is said about a bad one."""

from __future__ import annotations

import importlib.util
import multiprocessing
import multiprocessing.pool
from pathlib import Path
from typing import Any

import optuna
import pytest
import sqlalchemy
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from optuna_taylorglo.errors import StorageURLError
from optuna_taylorglo.storage.open_storage import open_storage
from optuna_taylorglo.storage.outage_tolerant import OutageTolerantStorage
from optuna_taylorglo.storage.urls import resolve_storage_url

fork = multiprocessing.get_context("fork")


def test_option_then_environment_then_embedded_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPTUNA_STORAGE", raising=False)
    assert resolve_storage_url() == "sqlite:///taylorglo.db"
    monkeypatch.setenv("OPTUNA_STORAGE", "sqlite:///other.db")
    assert resolve_storage_url() == "sqlite:///other.db"
    assert resolve_storage_url("mine.log") == "mine.log"


def test_sqlite_has_a_write_ahead_log(sqlite_url: str) -> None:
    storage = open_storage(sqlite_url)
    assert isinstance(storage, OutageTolerantStorage)
    with storage.database.engine.connect() as connection:
        assert connection.execute(sqlalchemy.text("PRAGMA journal_mode")).scalar() == "wal"
        assert connection.execute(sqlalchemy.text("PRAGMA busy_timeout")).scalar() == 60_000


def test_plain_path_is_a_journal_that_optuna_reads(journal_path: str) -> None:
    optuna.create_study(study_name="a", storage=open_storage(journal_path))
    plain = JournalStorage(JournalFileBackend(journal_path))
    assert optuna.get_all_study_names(plain) == ["a"]


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_ways_to_write_postgresql(postgresql_url: str, scheme: str) -> None:
    storage = open_storage(postgresql_url.replace("postgresql", scheme, 1))
    assert optuna.get_all_study_names(storage) == []


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "neither a URL such as sqlite:///taylorglo.db nor a file"),
        ("no/such/directory/x.log", "neither a URL .* nor a file in an existing directory"),
        (".", "neither a URL"),
        ("mssql://sa:secret@host/db", r"mssql://sa:\*\*\*@host/db has the unknown scheme 'mssql'"),
        ("redis://host", "unknown scheme 'redis': expected one of grpc, mariadb, mysql, postgres"),
        ("sqlite:///no/such/directory/x.db", "Directory 'no/such/directory' of .* does not exist"),
        ("postgresql://u:secret@host:port/db", "scheme 'postgresql' cannot be read: expected"),
        ("postgresql+nodriver://u:secret@h/db", r"driver of postgresql\+nodriver://u:\*\*\*@h/db"),
    ],
)
def test_bad_url_is_explained_without_its_password(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        open_storage(url)
    assert "secret" not in str(caught.value)


def test_sqlite_file_given_as_a_path(tmp_path: Path) -> None:
    open_storage(f"sqlite:///{tmp_path}/a.db")
    with pytest.raises(ValueError, match=r"a\.db is an SQLite database: write sqlite:///"):
        open_storage(f"{tmp_path}/a.db")


@pytest.mark.parametrize(("scheme", "extra"), [("postgresql", "postgres"), ("mysql", "mysql")])
def test_missing_driver_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, scheme: str, extra: str
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=rf"pip install 'optuna-taylorglo\[{extra}\]'"):
        open_storage(f"{scheme}://user:secret@host/db")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:secret@127.0.0.1:1/db",
        "mysql://user:secret@127.0.0.1:1/db",
        "postgresql://user:secret@no-such-host.invalid/db",
    ],
)
def test_unreachable_server_is_named_without_its_password(url: str) -> None:
    with pytest.raises(ConnectionError, match=r"Cannot open \w+\+\w+://user:\*\*\*@") as caught:
        open_storage(url, patience=0)
    assert "secret" not in str(caught.value)


def test_missing_database_is_named(postgresql_url: str) -> None:
    host = postgresql_url.split("?host=")[1]
    with pytest.raises(ConnectionError, match='database "nowhere" does not exist'):
        open_storage(f"postgresql://postgres@/nowhere?host={host}")


@pytest.mark.parametrize(("version", "advice"), [("v3.0.0.d", "storage upgrade"), ("v9", "-U")])
def test_tables_of_another_version(sqlite_url: str, version: str, advice: str) -> None:
    storage = open_storage(sqlite_url)
    assert isinstance(storage, OutageTolerantStorage)
    with storage.database.engine.begin() as connection:
        connection.execute(sqlalchemy.text(f"UPDATE alembic_version SET version_num = '{version}'"))
    with pytest.raises(StorageURLError, match=f"{version} in place of .* {advice}"):
        open_storage(sqlite_url)


@pytest.mark.parametrize(("heartbeat", "grace"), [(0, 1), (60, 60), (60, 30)])
def test_grace_must_outlast_the_heartbeat(heartbeat: int, grace: int) -> None:
    with pytest.raises(ValueError, match="shorter than grace, got heartbeat="):
        open_storage("sqlite://", heartbeat=heartbeat, grace=grace)


def _start(url: str, barrier: Any) -> None:
    barrier.wait()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = open_storage(url)
    optuna.create_study(study_name="a", storage=storage, load_if_exists=True).ask()


@pytest.mark.parametrize("database", ["sqlite", "postgresql", "mariadb"])
def test_many_processes_start_on_an_empty_database(
    database: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(f"{database}_url")
    barrier = fork.Barrier(10)
    processes = [fork.Process(target=_start, args=(url, barrier)) for _ in range(10)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 10
    study = optuna.load_study(study_name="a", storage=open_storage(url))
    assert [trial.number for trial in study.trials] == list(range(10))
