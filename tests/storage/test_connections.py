"""How many connections a worker has, and what each session is told."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator

import optuna
import pytest
import sqlalchemy
from sqlalchemy.engine import make_url

from optuna_taylorglo.attributes import WORKER
from optuna_taylorglo.storage.locks import study_lock
from optuna_taylorglo.storage.open_storage import open_storage
from optuna_taylorglo.storage.outage_tolerant import OutageTolerantStorage
from optuna_taylorglo.storage.transitions import last_signs
from optuna_taylorglo.storage.urls import parse_url

pytestmark = pytest.mark.filterwarnings("ignore:Heartbeat of storage is supposed")


class Server:
    """What a database's server says about us, asked from another database."""

    def __init__(self, url: str) -> None:
        self.name = make_url(url).database
        elsewhere = "postgres" if url.startswith("postgres") else "mysql"
        self._engine = sqlalchemy.create_engine(parse_url(url).set(database=elsewhere))

    def ask(self, query: str) -> list[tuple[object, ...]]:
        with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            result = connection.execute(sqlalchemy.text(query), {"name": self.name})
            return [tuple(row) for row in result] if result.returns_rows else []

    def has_connections(self, number: int) -> bool:
        """Whether so many are open, or will be as soon as the server has closed others."""
        deadline = time.monotonic() + 5
        while self.connections() > number and time.monotonic() < deadline:
            time.sleep(0.02)
        return self.connections() == number

    def connections(self) -> int:
        table, column = "information_schema.processlist", "db"
        if self._engine.dialect.name == "postgresql":
            table, column = "pg_stat_activity", "datname"
        ((count,),) = self.ask(f"SELECT count(*) FROM {table} WHERE {column} = :name")
        assert isinstance(count, int)
        return count

    def close(self) -> None:
        self._engine.dispose()


@pytest.fixture(params=["postgresql", "mariadb"])
def server_url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def server(server_url: str) -> Iterator[Server]:
    server = Server(server_url)
    yield server
    server.close()


def opened(url: str, grace: int = 240) -> OutageTolerantStorage:
    storage = open_storage(url, heartbeat=1, grace=grace)
    assert isinstance(storage, OutageTolerantStorage)
    return storage


def test_one_connection_at_work_two_with_the_lock_and_none_after_release(
    server_url: str, server: Server
) -> None:
    storage = opened(server_url)
    assert server.has_connections(0)
    study = optuna.create_study(storage=storage)
    trial = study.ask()
    assert server.has_connections(1)
    with study_lock(storage, study.study_name):
        trial.report(1.0, 1)
        study.get_trials()
        assert server.has_connections(2)
    assert server.has_connections(1)
    storage.release()
    assert server.has_connections(0)
    study.tell(trial, 1.0)
    assert study.trials[0].value == 1.0


def test_release_leaves_the_connections_of_other_threads_alone(
    server_url: str, server: Server
) -> None:
    """Among them the lock's own, which would be lost with its connection."""
    storage = opened(server_url)
    inside, go_on = threading.Event(), threading.Event()
    answers: list[object] = []

    def work() -> None:
        with storage.database.engine.connect() as connection:
            inside.set()
            go_on.wait(30)
            answers.append(connection.execute(sqlalchemy.text("SELECT 1")).scalar())

    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(30)
    for _ in range(5):
        storage.get_all_studies()
        storage.release()
    assert server.has_connections(1)
    go_on.set()
    thread.join()
    storage.release()
    assert answers == [1]
    assert server.has_connections(0)


def test_release_while_many_threads_work(server_url: str, server: Server) -> None:
    storage = opened(server_url)
    study = optuna.create_study(storage=storage)
    errors: list[Exception] = []

    def work() -> None:
        try:
            for _ in range(10):
                study.ask().report(1.0, 1)
                storage.release()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    storage.release()
    assert errors == []
    assert server.has_connections(0)
    assert [trial.number for trial in study.trials] == list(range(40))


def test_a_storage_in_memory_is_not_released() -> None:
    storage = opened("sqlite://")
    optuna.create_study(study_name="a", storage=storage)
    storage.release()
    assert optuna.get_all_study_names(storage) == ["a"]


def other_zone(server: Server, zone: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next sessions begin with another time zone, unless they are told otherwise."""
    monkeypatch.setenv("PGTZ", f"Etc/GMT{-zone:+d}")
    if server._engine.dialect.name == "mysql":
        server.ask(f"SET GLOBAL time_zone = '{zone:+03d}:00'")


def test_hosts_in_other_time_zones_agree_about_silence(
    server_url: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        other_zone(server, -5, monkeypatch)
        there = opened(server_url, grace=100)
        study = optuna.create_study(storage=there)
        trial = study.ask()._trial_id
        there.record_heartbeat(trial)
        other_zone(server, 9, monkeypatch)
        here = opened(server_url, grace=100)
        assert here._get_stale_trial_ids(study._study_id) == []
        assert 0 <= last_signs(here, study._study_id, WORKER)[trial].age < 60
        # What another one sees who lives there.
        other_zone(server, -9, monkeypatch)
        assert 0 <= last_signs(opened(server_url), study._study_id, WORKER)[trial].age < 60
    finally:
        if server._engine.dialect.name == "mysql":
            server.ask("SET GLOBAL time_zone = 'SYSTEM'")


def test_the_users_own_options_stay(postgresql_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGOPTIONS", "-c work_mem=7MB -c TimeZone=Asia/Tokyo")
    by_url = f"{postgresql_url}&options=-c%20work_mem%3D9MB&keepalives_idle=77"
    for url, memory in ((postgresql_url, "7MB"), (by_url, "9MB")):
        with opened(url).database.engine.connect() as connection:
            settings = [
                connection.execute(sqlalchemy.text(f"SHOW {name}")).scalar()
                for name in ("work_mem", "TimeZone", "idle_in_transaction_session_timeout")
            ]
        assert settings == [memory, "UTC", "15s"]


@contextlib.contextmanager
def over_tcp(url: str) -> Iterator[str]:
    """The same database behind a port of this machine; our server has a socket in a file only."""
    parsed = make_url(url)
    path = f"{parsed.query['host']}/.s.PGSQL.5432"
    port = socket.create_server(("127.0.0.1", 0))

    def carry(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        target.close()

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = port.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(path)
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=carry, args=pair, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    tcp = parsed.set(host="127.0.0.1", port=port.getsockname()[1], query={})
    yield tcp.render_as_string(hide_password=False)
    port.close()


def test_a_connection_that_nobody_answers_is_given_up_soon(postgresql_url: str) -> None:
    """By default a system repeats what it sends for a quarter of an hour."""
    with over_tcp(postgresql_url) as url:
        storage = opened(url)
        with storage.database.engine.connect() as connection:
            number = connection.connection.dbapi_connection.pgconn.socket  # type: ignore[union-attr]
            tcp = socket.socket(fileno=os.dup(number))
            assert tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
            assert tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
            tcp.close()
        storage.release()
