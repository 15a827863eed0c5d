"""A database that is not ready is waited for; one that will never be is not."""

from __future__ import annotations

import threading
import time

import optuna
import psycopg
import pymysql
import pytest
import sqlalchemy
from databases import PostgreSQL

from optuna_taylorglo.errors import StopRequested, StorageUnreachable
from optuna_taylorglo.storage import first_contact, retry
from optuna_taylorglo.storage.first_contact import when_ready
from optuna_taylorglo.storage.open_storage import open_storage
from optuna_taylorglo.storage.open_study import create_study, open_study

NOBODY = "postgresql://user:secret@127.0.0.1:1/db"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_contact, "pause", lambda seconds: pytest.fail("waited"))


def test_a_database_that_starts_later(
    own_postgresql: PostgreSQL, caplog: pytest.LogCaptureFixture
) -> None:
    optuna.logging.enable_propagation()
    url = own_postgresql.new_database()
    own_postgresql.stop()
    later = threading.Timer(0.7, own_postgresql.start)
    later.start()
    create_study("a", url, patience=60)
    later.join()
    assert open_study("a", url, patience=0).study_name == "a"
    assert "Waiting for postgresql" in caplog.text


def take_all(url: str, taken: list[psycopg.Connection]) -> None:
    while True:
        taken.append(psycopg.connect(url))


def test_a_server_without_a_connection_to_spare(postgresql_url: str) -> None:
    taken: list[psycopg.Connection] = []
    try:
        with pytest.raises(psycopg.OperationalError, match="too many clients"):
            take_all(postgresql_url, taken)
        with pytest.raises(StorageUnreachable, match="too many clients"):
            open_storage(postgresql_url, patience=0.3)
        later = threading.Timer(0.5, lambda: [c.close() for c in taken[:3]])
        later.start()
        start = time.monotonic()
        assert optuna.get_all_study_names(open_storage(postgresql_url, patience=60)) == []
        assert 0.4 < time.monotonic() - start < 30
    finally:
        for connection in taken:
            connection.close()


@pytest.mark.usefixtures("impatient")
def test_what_will_never_pass_is_said_at_once(postgresql_url: str) -> None:
    host = postgresql_url.split("?host=")[1]
    for url in (
        f"postgresql://postgres@/nowhere?host={host}",
        f"postgresql://nobody@/postgres?host={host}",
    ):
        with pytest.raises(StorageUnreachable, match="does not exist"):
            open_storage(url, patience=60)


@pytest.mark.parametrize(
    ("error", "waits"),
    [
        (psycopg.errors.AdminShutdown("terminating connection"), True),
        (psycopg.errors.InvalidPassword("no"), False),
        (pymysql.err.OperationalError(1040, "Too many connections"), True),
        (pymysql.err.OperationalError(2003, "Can't connect to MySQL server"), True),
        (pymysql.err.OperationalError(1045, "Access denied for user"), False),
        (pymysql.err.OperationalError(1049, "Unknown database"), False),
        (psycopg.OperationalError("FATAL: the database system is starting up"), True),
        (psycopg.OperationalError("FATAL: sorry, too many clients already"), True),
        (psycopg.OperationalError("FATAL: remaining connection slots are reserved for x"), True),
        (psycopg.OperationalError("FATAL: password authentication failed for user"), False),
        (psycopg.OperationalError("failed to resolve host: Name or service not known"), False),
    ],
)
def test_errors_of_servers(error: Exception, waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    paused: list[float] = []
    monkeypatch.setattr(first_contact, "pause", paused.append)
    answers = [sqlalchemy.exc.OperationalError("", None, error)]

    def call() -> str:
        if answers:
            raise answers.pop()
        return "here"

    if waits:
        assert when_ready(call, "it", patience=1e9) == "here"
    else:
        with pytest.raises(sqlalchemy.exc.OperationalError):
            when_ready(call, "it", patience=1e9)
    assert bool(paused) == waits


def test_a_process_suspended_amid_its_first_call_tries_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(first_contact.time, "monotonic", lambda: now)
    monkeypatch.setattr(first_contact, "pause", lambda seconds: None)
    closed = psycopg.OperationalError("server closed the connection unexpectedly")
    calls = []

    def call() -> str:
        nonlocal now
        calls.append(now)
        if len(calls) == 1:
            now += 240
            raise sqlalchemy.exc.OperationalError("", None, closed)
        return "here"

    assert when_ready(call, "it", patience=10) == "here"
    assert len(calls) == 2


def test_a_signal_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()
    monkeypatch.setattr(retry._process, "stop", stop)
    threading.Timer(0.3, stop.set).start()
    start = time.monotonic()
    with pytest.raises(StopRequested):
        open_storage(NOBODY, patience=300)
    assert time.monotonic() - start < 60
