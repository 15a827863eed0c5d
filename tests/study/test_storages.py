"""Storages as many workers need them: transactions, time limits, locks and outages."""

from __future__ import annotations

import json
import multiprocessing
import multiprocessing.pool
import os
import shutil
import signal
import sqlite3
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import optuna
import pytest
import sqlalchemy
from databases import GrpcProxy, unpooled
from optuna.storages import BaseStorage, InMemoryStorage
from optuna.storages._grpc.server import make_server
from optuna.testing.pytest_storages import StorageTestCase
from sqlalchemy.engine import make_url

from optuna_taylorglo.errors import StorageUnreachable, StorageURLError
from optuna_taylorglo.study import outages, storages
from optuna_taylorglo.study.open import create_study, open_storage, open_study
from optuna_taylorglo.study.outages import is_outage, outage_reason
from optuna_taylorglo.study.storages import (
    JournalLock,
    RetryingStorage,
    parse_url,
    release_connections,
)

fork = multiprocessing.get_context("fork")


@pytest.fixture(scope="module")
def kept_sqlite(tmp_path_factory: pytest.TempPathFactory) -> RetryingStorage:
    return open_storage(f"sqlite:///{tmp_path_factory.mktemp('conformance')}/a.db")


class TestConformance(StorageTestCase):
    """What Optuna asks of every storage."""

    @pytest.fixture(params=["sqlite", "journal", "grpc"])
    def storage(self, request: pytest.FixtureRequest, journal_path: str) -> Iterator[BaseStorage]:
        if request.param == "sqlite":
            # Opened once, since that takes longer than all the rest.
            storage = request.getfixturevalue("kept_sqlite")
            yield storage
            for study in storage.get_all_studies():
                storage.delete_study(study._study_id)
        elif request.param == "journal":
            yield open_storage(journal_path)
        else:
            if request.node.originalname == "test_get_all_trials_params_order":
                pytest.skip("a map has no order on the wire; nothing here depends on one")
            server = make_server(InMemoryStorage(), "127.0.0.1", 0)
            port = server.add_insecure_port("127.0.0.1:0")
            server.start()
            yield open_storage(f"grpc://127.0.0.1:{port}")
            server.stop(None)


def test_every_call_is_repeated_during_an_outage(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each method of Optuna's storages fails at its first call."""
    storage = open_storage(sqlite_url)
    inner, failed = storage._inner, set()
    monkeypatch.setattr(outages.random, "uniform", lambda *args: 0.0)

    class Unsteady:
        def __getattr__(self, name: str) -> Any:
            if name not in failed:
                failed.add(name)
                raise sqlalchemy.exc.OperationalError("BEGIN", None, Exception("gone"))
            return getattr(inner, name)

    storage._inner = Unsteady()  # type: ignore[assignment]
    study = optuna.create_study(storage=storage)
    trial = study.ask()
    trial.suggest_float("x", 0, 1)
    trial.report(0.5, 1)
    trial.set_user_attr("b", 2)
    study.tell(trial, 1.0)
    (kept,) = study.trials
    assert (kept.value, kept.intermediate_values, kept.user_attrs) == (1.0, {1: 0.5}, {"b": 2})
    assert failed >= {"create_new_study", "create_new_trial", "set_trial_param", "get_trial"}


def test_sqlite_readers_do_not_wait_for_a_writer(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outages, "OUTAGE_LIMIT", 0.0)
    study = optuna.create_study(study_name="a", storage=open_storage(sqlite_url))
    study.ask()
    reader = optuna.load_study(study_name="a", storage=open_storage(sqlite_url))
    path = make_url(sqlite_url).database
    assert path is not None
    with sqlite3.connect(path, isolation_level=None) as writer:
        assert writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("DELETE FROM trials")
        assert len(reader.trials) == 1
        writer.execute("ROLLBACK")


def test_a_file_that_is_deleted_or_replaced_is_missed(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    study = create_study("a", f"sqlite:///{path}")
    trial = study.ask()
    shutil.copy(path, tmp_path / "copy.db")
    path.unlink()
    for call in (lambda: study.tell(trial, 1.0), study.ask, lambda: study.trials):
        with pytest.raises(StorageUnreachable, match=r"study\.db was deleted or replaced"):
            call()
    (tmp_path / "copy.db").replace(path)
    with pytest.raises(StorageUnreachable, match="deleted or replaced"):
        study.ask()
    open_storage(f"sqlite:///{path}").get_all_studies()


def test_the_working_directory_may_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    for url in ("sqlite:///study.db", "study.log"):
        monkeypatch.chdir(tmp_path)
        study = create_study("a", url)
        monkeypatch.chdir(tmp_path / "other")
        # A heartbeat has a thread, and so a connection, of its own.
        multiprocessing.pool.ThreadPool(1).apply(study.set_user_attr, ("b", 1))
        monkeypatch.chdir(tmp_path)
        assert optuna.load_study(study_name="a", storage=open_storage(url)).user_attrs == {"b": 1}
    assert list((tmp_path / "other").iterdir()) == []


def look_at(url: str) -> None:
    """Read a study, and fail at once to write into it."""
    study = open_study("a", url)
    assert [trial.value for trial in study.trials] == [1.0]
    with pytest.raises(Exception, match=r"read-?only|permission denied|commit"):
        study.set_user_attr("a", 1)


def filled(url: str) -> None:
    study = create_study("a", url)
    study.set_user_attr("taylorglo:recipe", {})
    study.tell(study.ask(), 1.0)


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_a_database_for_reading_only(tmp_path: Path, journal: str) -> None:
    path = tmp_path / "study.db"
    filled(f"sqlite:///{path}")
    copy = tmp_path / "copy.db"
    with sqlite3.connect(path) as source, sqlite3.connect(copy) as target:
        source.backup(target)
        target.execute(f"PRAGMA journal_mode={journal}")
    target.close()
    look_at(f"sqlite:///file:{copy}?mode=ro&uri=true")
    look_at(f"sqlite:///file:{copy}?immutable=1&uri=true")


def ask_server(url: str, query: str) -> list[Any]:
    """Ask a server about one of its databases from another one."""
    elsewhere = "postgres" if url.startswith("postgres") else "mysql"
    with unpooled(parse_url(url).set(database=elsewhere)).connect() as connection:
        name = {"name": make_url(url).database}
        return list(connection.execute(sqlalchemy.text(query), name).scalars())


def n_connections(url: str, expected: int) -> int:
    """Connections to a database; the server may need a moment to close some."""
    table, column = "information_schema.processlist", "db"
    if url.startswith("postgres"):
        table, column = "pg_stat_activity", "datname"
    deadline = time.monotonic() + 5
    while True:
        (count,) = ask_server(url, f"SELECT count(*) FROM {table} WHERE {column} = :name")
        if count == expected or time.monotonic() > deadline:
            return int(count)
        time.sleep(0.02)


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_worker_holds_one_connection_and_none_after_release(
    kind: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(f"{kind}_url")
    storage = open_storage(url)
    assert n_connections(url, 0) == 0
    study = optuna.create_study(storage=storage)
    trial = study.ask()
    assert n_connections(url, 1) == 1
    # A connection that another thread is using is left alone.
    assert storage.database is not None
    with storage.database.engine.connect() as connection:
        release_connections(storage)
        assert connection.execute(sqlalchemy.text("SELECT 1")).scalar() == 1
    release_connections(storage)
    assert n_connections(url, 0) == 0
    study.tell(trial, 1.0)
    assert study.trials[0].value == 1.0


def test_settings_of_sessions(postgresql_url: str, mariadb_url: str) -> None:
    by_url = f"{postgresql_url}&options=-c%20TimeZone%3DAsia/Tokyo&connect_timeout=3"
    timeout = "current_setting('idle_in_transaction_session_timeout')"
    for url, query, expected in (
        (by_url, f"SELECT current_setting('TimeZone'), {timeout}", ("UTC", "15s")),
        (
            mariadb_url,
            "SELECT @@time_zone, @@wait_timeout, @@innodb_lock_wait_timeout",
            ("+00:00", 30, 10),
        ),
    ):
        database = open_storage(url).database
        assert database is not None
        with database.engine.connect() as connection:
            connection.rollback()  # must not undo them
            assert tuple(connection.execute(sqlalchemy.text(query)).one()) == expected


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_the_server_ends_a_transaction_whose_client_is_suspended(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind_, settings in storages._SESSION_SETTINGS.items():
        shorter = settings.replace("15s", "1s").replace("wait_timeout = 30", "wait_timeout = 1")
        monkeypatch.setitem(storages._SESSION_SETTINGS, kind_, shorter)
    url = request.getfixturevalue(f"{kind}_url")
    study = optuna.create_study(storage=open_storage(url))
    suspended = open_storage(url).database
    assert suspended is not None
    with suspended.engine.connect() as connection:
        connection.execute(sqlalchemy.text("SELECT * FROM studies FOR UPDATE"))
        start = time.monotonic()
        study.ask()
        assert 0.5 < time.monotonic() - start < 10
        with pytest.raises(sqlalchemy.exc.DBAPIError) as caught:
            connection.execute(sqlalchemy.text("SELECT 1"))
        assert is_outage(caught.value), "the suspended client retries when it resumes"
        connection.invalidate()


PIECE = b'{"op_code":8,"worker_id":"1-2","trial_id":0,"user_attr":{"k":"'
"""What a process leaves that is killed while it writes."""


def attributes(path: str) -> dict[str, Any]:
    attrs: dict[str, Any] = optuna.load_study(study_name="a", storage=open_storage(path)).user_attrs
    return attrs


def written(path: str, *keys: str) -> None:
    for key in keys:
        create_study("a", path).set_user_attr(key, 1)


@pytest.mark.parametrize("piece", [PIECE + b"x" * 200_000, b"\0" * 100])
def test_a_torn_record_is_cut_by_the_next_writer(journal_path: str, piece: bytes) -> None:
    written(journal_path, "a")
    running = optuna.load_study(study_name="a", storage=open_storage(journal_path))
    with open(journal_path, "ab") as file:
        file.write(piece)
    assert attributes(journal_path) == running.user_attrs == {"a": 1}
    written(journal_path, "b")
    running.set_user_attr("c", 1)
    assert attributes(journal_path) == running.user_attrs == {"a": 1, "b": 1, "c": 1}
    for line in Path(journal_path).read_bytes().splitlines():
        json.loads(line)


def test_the_lock_of_a_killed_process_is_free_at_once(tmp_path: Path) -> None:
    path = tmp_path / "study.log"
    path.touch()

    def die_with_the_lock() -> None:
        JournalLock(path).acquire()
        os.kill(os.getpid(), signal.SIGKILL)

    process = fork.Process(target=die_with_the_lock)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    lock = JournalLock(path)
    start = time.monotonic()
    lock.acquire()
    assert time.monotonic() - start < 5
    lock.release()


def test_a_proxy_that_hangs_is_an_outage(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = GrpcProxy(sqlite_url)
    monkeypatch.setattr(storages, "_GRPC_DEADLINE", "3s")
    storage = open_storage(proxy.url)
    monkeypatch.setattr(outages, "OUTAGE_LIMIT", 0.0)
    with proxy.hanging(), pytest.raises(grpc.RpcError) as caught:
        storage.get_all_studies()
    proxy.stop()
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert is_outage(caught.value)
    assert "eadline" in outage_reason(caught.value)


def test_the_library_of_the_proxy_is_needed_for_it_only(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    storage = open_storage(sqlite_url)
    with pytest.raises(KeyError):
        storage.get_all_trials(4711)
    with pytest.raises(StorageURLError, match="No driver for grpc://localhost"):
        open_storage("grpc://localhost")
