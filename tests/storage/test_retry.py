"""What is an outage, how long one is waited for, and who may end the wait."""

from __future__ import annotations

import math
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
import sqlalchemy
from optuna.exceptions import StorageInternalError

from optuna_taylorglo.errors import StopRequested
from optuna_taylorglo.storage import retry
from optuna_taylorglo.storage.retry import (
    is_outage,
    last_outage_end,
    retry_during_outage,
    stop_waiting_when,
    without_retry,
)


class Clock:
    """Time that passes only by waiting and by calls that take their time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(retry.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(retry.time, "sleep", self.pass_)

    def pass_(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has seen no outage yet, and whose signals reach nobody else's tests."""
    monkeypatch.setattr(retry, "_process", retry._Outage())


def outage() -> Exception:
    return sqlalchemy.exc.OperationalError("SELECT 1", None, Exception("server closed"))


class Database:
    """Answers after some failures, each of which takes its time."""

    def __init__(self, clock: Clock, *failures: float, error: Exception | None = None) -> None:
        self.clock, self.failures, self.error = clock, list(failures), error
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.failures:
            self.clock.now += self.failures.pop(0)
            raise self.error or outage()
        return "here"


def test_a_call_that_hung_for_longer_than_the_limit_is_made_again(clock: Clock) -> None:
    assert retry_during_outage(Database(clock, 900), limit=600) == "here"
    assert retry_during_outage(Database(clock, 900, 100, 100), limit=600) == "here"


def test_patience_counts_from_the_first_failure(clock: Clock) -> None:
    database = Database(clock, *[100.0] * 20)
    with pytest.raises(sqlalchemy.exc.OperationalError):
        retry_during_outage(database, limit=600)
    # The first failure is at 100 s; six more fit between it and the end of patience.
    assert database.calls == 7
    assert clock.now <= 1000 + 100 + 600 + 100


def test_the_end_of_an_outage_is_remembered(clock: Clock) -> None:
    assert last_outage_end() == -math.inf
    retry_during_outage(Database(clock), limit=10)
    assert last_outage_end() == -math.inf
    retry_during_outage(Database(clock, 1, 1), limit=10)
    end = last_outage_end()
    assert end == clock.now
    clock.now += 50
    retry_during_outage(Database(clock), limit=10)
    assert last_outage_end() == end


def test_an_outage_that_only_a_heartbeat_met_is_remembered(clock: Clock) -> None:
    database = Database(clock, 1)
    with without_retry():
        with pytest.raises(sqlalchemy.exc.OperationalError):
            retry_during_outage(database, limit=10)
        clock.now += 30
        retry_during_outage(database, limit=10)
    assert last_outage_end() == clock.now


@pytest.mark.parametrize(
    "error",
    [psycopg.errors.DeadlockDetected(), pymysql.err.OperationalError(1213, "Deadlock found")],
)
def test_a_deadlock_is_repeated_but_silences_nobody(clock: Clock, error: Exception) -> None:
    wrapped = StorageInternalError()
    wrapped.__cause__ = sqlalchemy.exc.OperationalError("", None, error)
    assert retry_during_outage(Database(clock, 0, error=wrapped), limit=10) == "here"
    assert last_outage_end() == -math.inf


def away() -> Any:
    raise outage()


def test_a_signal_is_heard_in_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "STOP_PATIENCE", 0.1)
    stop = threading.Event()
    stop_waiting_when(stop)
    threading.Timer(1.0, stop.set).start()
    start = time.monotonic()
    with pytest.raises(StopRequested) as caught:
        retry_during_outage(away, limit=600)
    assert 0.9 < time.monotonic() - start < 60
    assert isinstance(caught.value.__cause__, sqlalchemy.exc.OperationalError)


def test_who_was_told_to_stop_still_gives_the_database_a_moment(clock: Clock) -> None:
    """What it holds is to be given back, also through a hiccup."""
    stop = threading.Event()
    stop.set()
    stop_waiting_when(stop)
    assert retry_during_outage(Database(clock, 0.1, 0.1), limit=600) == "here"
    start = clock.now
    with pytest.raises(StopRequested):
        retry_during_outage(away, limit=600)
    assert clock.now - start <= retry.STOP_PATIENCE


def driver_error(error: Exception, base: type[Exception]) -> BaseException:
    """An error of a driver as SQLAlchemy passes it on."""
    return sqlalchemy.exc.DBAPIError.instance("", None, error, base)


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (psycopg.OperationalError("FATAL: sorry, too many clients already"), True),
        (psycopg.OperationalError("consuming input failed: Connection timed out"), True),
        (psycopg.errors.AdminShutdown(), True),
        (psycopg.errors.CannotConnectNow(), True),
        (psycopg.errors.SerializationFailure(), True),
        (psycopg.errors.DeadlockDetected(), True),
        (psycopg.errors.LockNotAvailable(), True),
        (psycopg.errors.DiskFull(), True),
        (psycopg.errors.UndefinedTable(), False),
        (psycopg.errors.UniqueViolation(), False),
        (psycopg.errors.ReadOnlySqlTransaction(), False),
    ],
)
def test_errors_of_postgresql(error: Exception, passes: bool) -> None:
    assert is_outage(driver_error(error, psycopg.Error)) == passes


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (pymysql.err.OperationalError(1205, "Lock wait timeout exceeded"), True),
        (pymysql.err.OperationalError(1213, "Deadlock found"), True),
        (pymysql.err.OperationalError(1040, "Too many connections"), True),
        (pymysql.err.OperationalError(2013, "Lost connection"), True),
        (pymysql.err.OperationalError(4031, "disconnected because of inactivity"), True),
        (pymysql.err.InterfaceError(0, ""), True),
        (pymysql.err.ProgrammingError(1146, "Table doesn't exist"), False),
    ],
)
def test_errors_of_mysql(error: Exception, passes: bool) -> None:
    assert is_outage(driver_error(error, pymysql.err.Error)) == passes


def sqlite_error(path: Path, statement: str, *before: str, mode: str = "rwc") -> BaseException:
    engine = sqlalchemy.create_engine(f"sqlite:///file:{path}?mode={mode}&uri=true&timeout=0")
    with engine.connect() as connection:
        for each in before:
            connection.execute(sqlalchemy.text(each))
        with pytest.raises(sqlalchemy.exc.DatabaseError) as caught:
            connection.execute(sqlalchemy.text(statement))
    return caught.value


def test_errors_of_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE t (x)")
    write = "INSERT INTO t VALUES (zeroblob(10000))"
    full = sqlite_error(path, write, "PRAGMA max_page_count=2")
    assert "full" in str(full)
    assert is_outage(full)
    read_only = sqlite_error(path, write, mode="ro")
    assert "readonly" in str(read_only)
    assert not is_outage(read_only)
    assert not is_outage(sqlite_error(path, "SELECT * FROM nothing"))
    other.execute("BEGIN IMMEDIATE")
    locked = sqlite_error(path, write)
    assert "locked" in str(locked)
    assert is_outage(locked)
    other.close()
    io_error = sqlite3.OperationalError("disk I/O error")
    io_error.sqlite_errorname = "SQLITE_IOERR_WRITE"  # type: ignore[misc]
    assert is_outage(driver_error(io_error, sqlite3.Error))
