"""Notices between workers: at once on PostgreSQL, not at all elsewhere, and never a nuisance."""

from __future__ import annotations

import multiprocessing.pool
import threading
import time
from collections.abc import Iterator

import optuna
import psycopg
import pytest
import sqlalchemy
from databases import PostgreSQL

from optuna_taylorglo.storage import bell
from optuna_taylorglo.storage import notices as module
from optuna_taylorglo.storage.notices import Notices
from optuna_taylorglo.storage.open_storage import open_storage

# Seconds of a wait that is ended, and within which it is: machines stall now and then.
LONG, SOON = 300, 60


@pytest.fixture
def stop() -> threading.Event:
    return threading.Event()


@pytest.fixture
def listener(postgresql_url: str) -> Iterator[Notices]:
    notices = Notices(open_storage(postgresql_url), "a")
    yield notices
    notices.close()


def has_connections(url: str, number: int) -> bool:
    """Whether others come to have so many: a server takes its time to end a closed one."""
    query = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    deadline = time.monotonic() + SOON
    with psycopg.connect(url, autocommit=True) as connection:
        while True:
            (count,) = connection.execute(query).fetchone()  # type: ignore[misc]
            if count == number or time.monotonic() > deadline:
                return bool(count == number)
            time.sleep(0.05)


def waited(notices: Notices, seconds: float, stop: threading.Event) -> tuple[bool, float]:
    start = time.monotonic()
    return notices.wait(seconds, stop), time.monotonic() - start


def test_a_notice_ends_the_wait_of_another(
    listener: Notices, postgresql_url: str, stop: threading.Event
) -> None:
    sender = Notices(open_storage(postgresql_url), "a")
    sending = threading.Timer(0.5, sender.send)
    sending.start()
    heard, seconds = waited(listener, LONG, stop)
    sending.join()
    assert heard
    assert 0.3 < seconds < SOON
    # Nobody listens while there is work, and nobody's connection stays.
    for notices in (sender, listener):
        notices._engine.pool.dispose()  # type: ignore[union-attr]
    assert has_connections(postgresql_url, 0)


def test_what_is_done_after_a_notice_needs_no_new_connection(
    postgresql_url: str, stop: threading.Event
) -> None:
    storage = open_storage(postgresql_url)
    notices = Notices(storage, "a")
    assert not notices.wait(0.3, stop)
    backend = sqlalchemy.text("SELECT pg_backend_pid()")
    listening = notices._connection.execute(backend).scalar()  # type: ignore[union-attr]
    Notices(open_storage(postgresql_url), "a").send()
    assert notices.wait(LONG, stop)
    with storage.database.engine.begin() as connection:  # type: ignore[attr-defined]
        assert connection.execute(backend).scalar() == listening
        # Others' transactions must not be autocommitted because this one listened.
        assert not connection.connection.dbapi_connection.autocommit  # type: ignore[union-attr]
        channels = sqlalchemy.text("SELECT count(*) FROM pg_listening_channels()")
        assert connection.execute(channels).scalar() == 0


def test_a_notice_between_two_waits_is_not_lost(
    listener: Notices, postgresql_url: str, stop: threading.Event
) -> None:
    assert not listener.wait(0.3, stop)
    Notices(open_storage(postgresql_url), "a").send()
    assert waited(listener, LONG, stop)[0]
    assert not listener.wait(0.3, stop)


def test_notices_of_other_studies_are_not_ours(
    listener: Notices, postgresql_url: str, stop: threading.Event
) -> None:
    assert not listener.wait(0.2, stop)
    Notices(open_storage(postgresql_url), "b").send()
    assert not listener.wait(0.3, stop)


def test_an_event_of_this_process_ends_the_wait(listener: Notices, stop: threading.Event) -> None:
    threading.Timer(0.3, stop.set).start()
    heard, seconds = waited(listener, LONG, stop)
    assert not heard
    assert seconds < SOON


def test_only_part_of_the_connections_may_listen(
    postgresql_url: str, stop: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = [psycopg.connect(postgresql_url) for _ in range(65)]
    try:
        notices = Notices(open_storage(postgresql_url), "a")
        heard, seconds = waited(notices, 0.3, stop)
        assert not heard
        assert seconds >= 0.3
        assert has_connections(postgresql_url, 65)
        # It is not asked for again and again.
        monkeypatch.setattr(notices, "_engine", None)
        notices.wait(0.3, stop)
    finally:
        for connection in taken:
            connection.close()


def test_a_short_wait_needs_no_connection(postgresql_url: str, stop: threading.Event) -> None:
    notices = Notices(open_storage(postgresql_url), "a")
    notices.wait(module._SHORT_WAIT / 2, stop)
    assert has_connections(postgresql_url, 0)


def test_a_server_that_goes_away_is_no_error(
    own_postgresql: PostgreSQL, stop: threading.Event
) -> None:
    storage = open_storage(own_postgresql.new_database())
    notices = Notices(storage, "a")
    threading.Timer(0.5, own_postgresql.stop).start()
    heard, seconds = waited(notices, 2, stop)
    assert not heard
    assert 1.9 < seconds < SOON
    notices.send()
    assert waited(notices, 0.3, stop) >= (False, 0.3)
    notices.close()


@pytest.mark.parametrize("kind", ["sqlite_url", "journal_path", "mariadb_url", "postgresql_url"])
def test_on_one_machine_all_hear_a_bell(
    kind: str, request: pytest.FixtureRequest, stop: threading.Event
) -> None:
    url = request.getfixturevalue(kind)
    sender, *waiting = (Notices(open_storage(url), "a") for _ in range(4))
    stranger = Notices(open_storage(url), "b")
    with multiprocessing.pool.ThreadPool(4) as pool:
        answers = [pool.apply_async(waited, (each, LONG, stop)) for each in waiting]
        unheard = pool.apply_async(waited, (stranger, 1.5, stop))
        time.sleep(1)
        sender.send()
        for answer in answers:
            heard, seconds = answer.get()
            assert heard
            assert seconds < SOON
        assert not unheard.get()[0]
    # The one who sends is not woken by it; those who do not wait yet hear of it when they do.
    sender.send()
    assert waited(sender, 0.3, stop) >= (False, 0.3)
    assert waited(waiting[0], LONG, stop) < (True, SOON)
    for each in (sender, stranger, *waiting):
        each.close()


def test_one_of_a_machine_listens_for_all(postgresql_url: str, stop: threading.Event) -> None:
    first, second, third = (Notices(open_storage(postgresql_url), "a") for _ in range(3))
    for each in (first, second, third):
        assert not each.wait(0.3, stop)
    assert has_connections(postgresql_url, 1)
    # A notice from another machine, which does not ring this one's bell.
    with multiprocessing.pool.ThreadPool(3) as pool:
        answers = [pool.apply_async(waited, (each, LONG, stop)) for each in (first, second, third)]
        time.sleep(0.5)
        with psycopg.connect(postgresql_url, autocommit=True) as connection:
            connection.execute("SELECT pg_notify(%s, '3')", [first._channel])
        for answer in answers:
            heard, seconds = answer.get()
            assert heard
            assert seconds < SOON
    # When the listener has something else to do, another takes its place.
    assert not third.wait(0.3, stop)
    assert not first.wait(0.3, stop)
    assert (third._connection is None, first._connection is None) == (False, True)
    third.close()
    assert not first.wait(1.5, stop)
    assert first._connection is not None
    first.close()


def test_while_another_listens_nobody_need_look(
    listener: Notices, postgresql_url: str, stop: threading.Event
) -> None:
    assert not listener.wait(0.3, stop)
    other = Notices(open_storage(postgresql_url), "a")
    start = time.monotonic()
    assert not other.wait(0.3, stop, if_watched=2)
    assert time.monotonic() - start >= 2
    listener.close()
    # Who listens himself may have missed what was said before.
    start = time.monotonic()
    assert not other.wait(0.3, stop, if_watched=LONG)
    assert time.monotonic() - start < SOON
    other.close()


def test_hundreds_who_are_woken_keep_apart(
    listener: Notices, postgresql_url: str, stop: threading.Event
) -> None:
    assert not listener.wait(0.3, stop)
    waiting = [Notices(open_storage(postgresql_url), "a") for _ in range(6)]
    with multiprocessing.pool.ThreadPool(6) as pool:
        answers = [pool.apply_async(waited, (each, LONG, stop)) for each in waiting]
        time.sleep(0.5)
        Notices(open_storage(postgresql_url), "a").send(trials=500)
        seconds = [answer.get()[1] for answer in answers]
    # Over 500 times the time of a claim, and not only over that between two looks at the bell.
    assert max(seconds) - min(seconds) > 0.06 * 500 * module._CLAIM > module._BELL_HEARD
    assert max(seconds) < SOON


def test_in_memory_one_just_waits(stop: threading.Event) -> None:
    notices = Notices(optuna.storages.InMemoryStorage(), "a")
    notices.send()
    assert waited(notices, 0.3, stop) >= (False, 0.3)
    stop.set()
    assert waited(notices, LONG, stop)[1] < SOON
    notices.close()


def test_without_a_bell_everybody_listens(
    postgresql_url: str, stop: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bell, "_file_of", lambda name: None)
    waiting = [Notices(open_storage(postgresql_url), "a") for _ in range(2)]
    for each in waiting:
        assert not each.wait(0.3, stop)
    assert has_connections(postgresql_url, 2)
    sender = Notices(open_storage(postgresql_url), "a")
    sender.send()
    assert all(waited(each, LONG, stop) < (True, SOON) for each in waiting)


def test_what_others_have_told_is_not_told_again(sqlite_url: str) -> None:
    first, second, third = (Notices(open_storage(sqlite_url), "a") for _ in range(3))
    first.pass_on(3)
    assert third._was_rung()
    # It has not heard of it yet, but the bell has.
    second.pass_on(2)
    assert not third._was_rung()
    second.pass_on(2)
    assert third._was_rung()
