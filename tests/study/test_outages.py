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
from optuna_taylorglo.study.outages import (
    is_not_ready,
    is_outage,
    outage_reason,
    retry,
    stop_waiting_when,
)


class Clock:
    """Time that passes only by waiting and by calls that take their time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.waits: list[float] = []
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep)
        monkeypatch.setattr(outages, "time", clock)
        never = SimpleNamespace(is_set=lambda: False, wait=self.sleep)
        monkeypatch.setattr(outages, "_stop", never)

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def outage() -> Exception:
    return sqlalchemy.exc.OperationalError("SELECT 1", None, Exception("server closed"))


def away() -> Any:
    raise outage()


def database(clock: Clock, *failures: float) -> Callable[[], str]:
    """Answers after some failures, each of which takes its time."""
    left = list(failures)

    def call() -> str:
        if left:
            clock.now += left.pop(0)
            raise outage()
        return "here"

    return call


def test_an_outage_is_waited_for_with_growing_breaks(clock: Clock) -> None:
    assert retry(database(clock, *[0.0] * 12)) == "here"
    assert len(clock.waits) == 12
    assert 0.05 <= clock.waits[0] <= 0.1
    assert clock.waits[4] > clock.waits[0]
    assert 2.5 <= clock.waits[-1] <= 5.0


def test_the_limit_counts_from_the_first_failure(clock: Clock) -> None:
    assert retry(database(clock, 900.0, 100.0), limit=600) == "here", "the call itself hung"
    start = clock.now
    with pytest.raises(sqlalchemy.exc.OperationalError):
        retry(away, limit=600)
    assert 590 < clock.now - start <= 600


def test_other_errors_are_raised_at_once(clock: Clock) -> None:
    error = sqlalchemy.exc.ProgrammingError("SELEC 1", None, Exception("syntax"))

    def wrong() -> None:
        raise error

    with pytest.raises(sqlalchemy.exc.ProgrammingError):
        retry(wrong)
    assert clock.waits == []
    with pytest.raises(sqlalchemy.exc.OperationalError):
        retry(away, passes=lambda error: False)
    assert clock.waits == []


def test_a_long_outage_is_logged_in_the_words_of_the_storage(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    optuna.logging.enable_propagation()
    retry(database(clock, *[0.0] * 3))
    assert caplog.text == "", "a short outage is not logged"
    retry(database(clock, *[0.0] * 6))
    optuna.logging.disable_propagation()
    assert "Storage unavailable, retrying: server closed" in caplog.text
    assert "SELECT" not in caplog.text


def test_a_stop_is_heard_during_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outages, "STOP_LIMIT", 0.1)
    stop = threading.Event()
    stop_waiting_when(stop)
    threading.Timer(0.5, stop.set).start()
    start = time.monotonic()
    with pytest.raises(StopRequested) as caught:
        retry(away)
    assert 0.4 < time.monotonic() - start < 10
    assert isinstance(caught.value.__cause__, sqlalchemy.exc.OperationalError)


def test_a_stopped_process_still_gives_the_storage_a_moment(clock: Clock) -> None:
    stop = threading.Event()
    stop.set()
    stop_waiting_when(stop)
    assert retry(database(clock, 0.1, 0.1)) == "here"
    start = clock.now
    with pytest.raises(StopRequested):
        retry(away)
    assert 1 < clock.now - start <= outages.STOP_LIMIT


def driver_error(error: Exception, base: type[Exception]) -> BaseException:
    """An error of a driver as SQLAlchemy passes it on."""
    return sqlalchemy.exc.DBAPIError.instance("", None, error, base)


@pytest.mark.parametrize(
    ("error", "passes", "not_ready"),
    [
        (psycopg.OperationalError("FATAL: sorry, too many clients already"), True, True),
        (psycopg.OperationalError("FATAL: the database system is starting up"), True, True),
        (psycopg.OperationalError("FATAL: remaining connection slots are reserved"), True, True),
        (psycopg.OperationalError("consuming input failed: Connection timed out"), True, True),
        (psycopg.errors.AdminShutdown(), True, True),
        (psycopg.errors.CannotConnectNow(), True, True),
        (psycopg.errors.SerializationFailure(), True, True),
        (psycopg.errors.DeadlockDetected(), True, True),
        (psycopg.errors.DiskFull(), True, True),
        (psycopg.OperationalError("FATAL: password authentication failed"), True, False),
        (psycopg.OperationalError('FATAL: database "x" does not exist'), True, False),
        (psycopg.OperationalError("failed to resolve host: Name not known"), True, False),
        (psycopg.errors.UndefinedTable(), False, False),
        (psycopg.errors.UniqueViolation(), False, False),
        (psycopg.errors.ReadOnlySqlTransaction(), False, False),
    ],
)
def test_errors_of_postgresql(error: Exception, passes: bool, not_ready: bool) -> None:
    wrapped = driver_error(error, psycopg.Error)
    assert (is_outage(wrapped), is_not_ready(wrapped)) == (passes, not_ready)


@pytest.mark.parametrize(
    ("error", "passes", "not_ready"),
    [
        (pymysql.err.OperationalError(1040, "Too many connections"), True, True),
        (pymysql.err.OperationalError(2003, "Can't connect to MySQL server"), True, True),
        (pymysql.err.OperationalError(2013, "Lost connection"), True, True),
        (pymysql.err.OperationalError(1205, "Lock wait timeout exceeded"), True, True),
        (pymysql.err.OperationalError(1213, "Deadlock found"), True, True),
        (pymysql.err.OperationalError(4031, "disconnected because of inactivity"), True, True),
        (pymysql.err.OperationalError(1045, "Access denied for user"), True, False),
        (pymysql.err.OperationalError(1049, "Unknown database"), True, False),
        (pymysql.err.InterfaceError(0, ""), True, True),
        (pymysql.err.ProgrammingError(1146, "Table doesn't exist"), False, False),
    ],
)
def test_errors_of_mysql(error: Exception, passes: bool, not_ready: bool) -> None:
    wrapped = driver_error(error, pymysql.err.Error)
    assert (is_outage(wrapped), is_not_ready(wrapped)) == (passes, not_ready)


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
    for error, words, passes, not_ready in (
        (full, "full", True, True),
        (locked, "locked", True, True),
        (read_only, "readonly", False, False),
        (missing, "unable to open", True, False),
        (sqlite_error(path, "SELECT * FROM missing"), "no such table", False, False),
    ):
        assert words in str(error)
        assert (is_outage(error), is_not_ready(error)) == (passes, not_ready), words


def test_the_cause_of_an_error_of_optuna_counts() -> None:
    wrapped = StorageInternalError("An exception is raised during the commit.")
    assert not is_outage(wrapped)
    wrapped.__cause__ = outage()
    assert is_outage(wrapped)
    assert outage_reason(wrapped) == "server closed"


class CallFailed(grpc.RpcError):
    """As gRPC raises it."""

    def __init__(self, code: grpc.StatusCode) -> None:
        self.code = lambda: code
        self.details = lambda: "no\n  answer"


@pytest.mark.parametrize(
    ("name", "passes"),
    [
        ("UNAVAILABLE", True),
        ("DEADLINE_EXCEEDED", True),
        ("UNKNOWN", True),
        ("NOT_FOUND", False),
        ("UNIMPLEMENTED", False),
        ("PERMISSION_DENIED", False),
    ],
)
def test_errors_of_a_proxy(name: str, passes: bool) -> None:
    error = CallFailed(grpc.StatusCode[name])
    assert (is_outage(error), is_not_ready(error)) == (passes, passes)
    assert outage_reason(error) == "no answer"


def test_errors_of_the_program_are_no_outages() -> None:
    for error in (ValueError("x"), KeyError("x"), OSError("x")):
        assert not is_outage(error)
        assert not is_not_ready(error)
