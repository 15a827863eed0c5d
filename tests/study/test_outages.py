"""Which errors pass by themselves, how long a call is repeated, and what ends the wait."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import optuna
import psycopg
import pymysql
import pytest
import sqlalchemy
from optuna.exceptions import StorageInternalError

from optuna_taylorglo.errors import StopRequested
from optuna_taylorglo.study import outages
from optuna_taylorglo.study.outages import is_not_ready, is_outage, outage_reason, retry


class Clock:
    """Time that passes only by waiting and by calls that take their time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.waits: list[float] = []
        monkeypatch.setattr(outages, "time", SimpleNamespace(monotonic=lambda: self.now))
        never = SimpleNamespace(is_set=lambda: False, wait=self.sleep)
        monkeypatch.setattr(outages, "stop_requested", never)

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def away() -> Any:
    raise sqlalchemy.exc.OperationalError("SELECT 1", None, Exception("server closed"))


def database(clock: Clock, *failures: float) -> Callable[[], str]:
    """Answers after some failures, each of which takes its time."""
    left = list(failures)

    def call() -> str:
        if left:
            clock.now += left.pop(0)
            away()
        return "here"

    return call


def test_an_outage_is_waited_for_with_growing_breaks(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    optuna.logging.enable_propagation()
    assert retry(database(clock, *[0.0] * 3), limit=600) == "here"
    assert caplog.text == "", "a short outage is not logged"
    clock.waits.clear()
    assert retry(database(clock, *[0.0] * 12), limit=600) == "here"
    optuna.logging.disable_propagation()
    assert len(clock.waits) == 12
    assert 0.05 <= clock.waits[0] <= 0.1
    assert 2.5 <= clock.waits[-1] <= 5.0
    assert "Storage unavailable, retrying: server closed" in caplog.text
    assert "SELECT" not in caplog.text


def test_the_limit_counts_from_the_first_failure(clock: Clock) -> None:
    assert retry(database(clock, 900.0, 100.0), limit=600) == "here", "the call itself hung"
    start = clock.now
    with pytest.raises(sqlalchemy.exc.OperationalError):
        retry(away, limit=600)
    assert 590 < clock.now - start <= 600
    clock.waits.clear()
    with pytest.raises(ValueError, match="invalid literal"):
        retry(lambda: int("x"), limit=600)
    assert clock.waits == [], "other errors are raised at once"


def test_a_stop_ends_the_wait() -> None:
    threading.Timer(0.5, outages.stop_requested.set).start()
    start = time.monotonic()
    with pytest.raises(StopRequested) as caught:
        retry(away, limit=600)
    assert 0.4 < time.monotonic() - start < 60
    assert isinstance(caught.value.__cause__, sqlalchemy.exc.OperationalError)


PASSES, REFUSED, PERMANENT = (True, True), (True, False), (False, False)
"""Whether an error in the middle of the work passes, and whether one at the opening does."""

Postgres, MySQL = psycopg.OperationalError, pymysql.err.OperationalError


@pytest.mark.parametrize(
    ("expected", "errors"),
    [
        (
            PASSES,
            [
                Postgres("FATAL: sorry, too many clients already"),
                Postgres("FATAL: the database system is starting up"),
                psycopg.errors.AdminShutdown(),
                psycopg.errors.DeadlockDetected(),
                psycopg.errors.DiskFull(),
                MySQL(1040, "Too many connections"),
                MySQL(2013, "Lost connection"),
                MySQL(1213, "Deadlock found"),
                MySQL(4031, "disconnected because of inactivity"),
                pymysql.err.InterfaceError(0, ""),
            ],
        ),
        (
            REFUSED,
            [
                Postgres("FATAL: password authentication failed"),
                Postgres('FATAL: database "x" does not exist'),
                Postgres("failed to resolve host: Name not known"),
                MySQL(1045, "Access denied for user"),
            ],
        ),
        (
            PERMANENT,
            [
                psycopg.errors.UndefinedTable(),
                psycopg.errors.UniqueViolation(),
                psycopg.errors.ReadOnlySqlTransaction(),
                pymysql.err.ProgrammingError(1146, "Table doesn't exist"),
            ],
        ),
    ],
)
def test_errors_of_servers(expected: tuple[bool, bool], errors: list[Exception]) -> None:
    for error in errors:
        base = psycopg.Error if isinstance(error, psycopg.Error) else pymysql.err.Error
        wrapped = sqlalchemy.exc.DBAPIError.instance("", None, error, base)
        assert (is_outage(wrapped), is_not_ready(wrapped)) == expected, repr(error)


def sqlite_error(path: Path, statement: str, *before: str, mode: str = "rwc") -> BaseException:
    engine = sqlalchemy.create_engine(f"sqlite:///file:{path}?mode={mode}&uri=true&timeout=0")
    try:
        with engine.connect() as connection:
            for each in (*before, statement):
                connection.execute(sqlalchemy.text(each))
    except sqlalchemy.exc.DatabaseError as error:
        return error
    raise AssertionError("no error")


def test_errors_of_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE t (x)")
    write = "INSERT INTO t VALUES (zeroblob(10000))"
    full = sqlite_error(path, write, "PRAGMA max_page_count=2")
    read_only = sqlite_error(path, write, mode="ro")
    other.execute("BEGIN IMMEDIATE")
    locked = sqlite_error(path, write)
    other.close()
    missing = sqlite_error(tmp_path / "none.db", "SELECT 1", mode="ro")
    for error, words, expected in (
        (full, "full", PASSES),
        (locked, "locked", PASSES),
        (read_only, "readonly", PERMANENT),
        (missing, "unable to open", REFUSED),
        (sqlite_error(path, "SELECT * FROM missing"), "no such table", PERMANENT),
    ):
        assert words in str(error)
        assert (is_outage(error), is_not_ready(error)) == expected, words


def test_the_cause_of_an_error_of_optuna_counts() -> None:
    wrapped = StorageInternalError("An exception is raised during the commit.")
    assert not is_outage(wrapped)
    wrapped.__cause__ = sqlalchemy.exc.OperationalError("", None, Exception("server closed"))
    assert is_outage(wrapped)
    assert outage_reason(wrapped) == "server closed"
    for error in (ValueError("x"), KeyError("x"), OSError("x")):
        assert (is_outage(error), is_not_ready(error)) == PERMANENT


class CallFailed(grpc.RpcError):
    """As gRPC raises it."""

    def __init__(self, code: grpc.StatusCode) -> None:
        self.code = lambda: code
        self.details = lambda: "no\n  answer"


def test_errors_of_a_proxy() -> None:
    passing = {"UNAVAILABLE", "DEADLINE_EXCEEDED", "UNKNOWN"}
    for name in {*passing, "NOT_FOUND", "UNIMPLEMENTED", "PERMISSION_DENIED"}:
        error = CallFailed(grpc.StatusCode[name])
        assert is_outage(error) == is_not_ready(error) == (name in passing)
        assert outage_reason(error) == "no answer"
