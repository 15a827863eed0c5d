"""Storage URLs, and Optuna's storages made safe for many workers: locks, time limits, retries."""

from __future__ import annotations

import abc
import importlib.util
import json
import mmap
import os
import sqlite3
import threading
import warnings
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy
from filelock import FileLock
from optuna.exceptions import ExperimentalWarning
from optuna.storages import BaseStorage, GrpcStorageProxy, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from sqlalchemy.engine import URL, make_url

from optuna_taylorglo.errors import StorageUnreachable, StorageURLError
from optuna_taylorglo.study import outages
from optuna_taylorglo.study.optuna_private import CachedStorage, replace_grpc_channel

DEFAULT_STORAGE = "sqlite:///taylorglo.db"

# The modules that reach a server, unless the URL names another one.
_DRIVERS = {"grpc": "grpc", "postgresql": "psycopg", "mysql": "pymysql"}
_ALIASES = {"postgres": "postgresql", "mariadb": "mysql"}


def resolve_storage_url(option: str | None = None) -> str:
    """Storage URL from the option, else ``OPTUNA_STORAGE``, else a SQLite file right here."""
    return option or os.environ.get("OPTUNA_STORAGE") or DEFAULT_STORAGE


def shown_url(url: str) -> str:
    """A storage URL or journal path for display, without its password."""
    return _read(url).render_as_string(hide_password=True) if "://" in url else url


def _read(url: str) -> URL:
    try:
        return make_url(url)
    except (sqlalchemy.exc.ArgumentError, ValueError) as error:
        # The error would quote the URL, password and all.
        raise StorageURLError(
            f"Storage URL with scheme {url.split('://')[0]!r} cannot be read: expected "
            "scheme://user:password@host:port/database, special characters percent-encoded."
        ) from error


def parse_url(url: str) -> URL:
    """Parse a storage URL and choose a driver that is installed."""
    parsed, shown = _read(url), shown_url(url)
    scheme, _, driver = parsed.drivername.partition("+")
    backend = _ALIASES.get(scheme, scheme)
    if backend not in ("sqlite", *_DRIVERS):
        raise StorageURLError(
            f"Storage URL {shown} has the unknown scheme {scheme!r}: expected one of grpc, "
            "mariadb, mysql, postgres, postgresql, sqlite, or the path of a journal file."
        )
    if backend in _DRIVERS and not driver:
        driver, extra = _DRIVERS[backend], {"postgresql": "postgres"}.get(backend, backend)
        if importlib.util.find_spec(driver) is None:
            raise StorageURLError(
                f"No driver for {shown} is installed: pip install 'optuna-taylorglo[{extra}]'."
            )
    return parsed.set(drivername="+".join(filter(None, (backend, driver))))


def file_of(url: str) -> Path | None:
    """The absolute path of a storage's file; None for a server or memory."""
    name, is_journal = url, "://" not in url
    if not is_journal:
        parsed = parse_url(url)
        # With this prefix the database is given as a URI of SQLite's own.
        name = (parsed.database or "").removeprefix("file:")
        if parsed.get_backend_name() != "sqlite" or name in ("", ":memory:"):
            return None
    file = Path(name).resolve()
    if file.is_dir() or not file.parent.is_dir():
        raise StorageURLError(
            f"Storage {url!r} is not a file in an existing directory: expected a URL such as "
            f"{DEFAULT_STORAGE}, or the path of an Optuna journal file."
        )
    if is_journal and file.is_file() and file.open("rb").read(16) == b"SQLite format 3\0":
        raise StorageURLError(f"{url} is an SQLite database: write sqlite:///{url}.")
    return file


_thread = threading.local()


class RetryingStorage(BaseStorage):
    """An Optuna storage whose every call is repeated while the storage is away.

    A repeated ``create_new_trial`` may leave a second trial, which the queue withdraws as a
    duplicate; repeating any other call is harmless. The URL, without its password, is for messages.
    """

    def __init__(
        self, inner: BaseStorage, file: Path | None = None, url: str | None = None
    ) -> None:
        self.url = url
        self.database = inner if isinstance(inner, RDBStorage) else None
        self._inner = CachedStorage(inner) if isinstance(inner, RDBStorage) else inner
        self._file, self._file_id = file, _file_id(file)

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if _file_id(self._file) != self._file_id:
            # Writes to a deleted file are lost without an error.
            raise StorageUnreachable(
                f"The database {self._file} was deleted or replaced while it was in use. Put it "
                "back and start again; what was written since then is lost."
            )

        def attempt() -> Any:
            _thread.writes = not name.startswith(("get_", "check_"))
            try:
                return getattr(self._inner, name)(*args, **kwargs)
            finally:
                _thread.writes = False

        return outages.retry(attempt, limit=outages.OUTAGE_LIMIT)


def _forward(name: str) -> Callable[..., Any]:
    return lambda self, *args, **kwargs: self._call(name, *args, **kwargs)


for _name in vars(BaseStorage):
    if not _name.startswith("_"):
        setattr(RetryingStorage, _name, _forward(_name))
abc.update_abstractmethods(RetryingStorage)  # type: ignore[type-abstract]


def _file_id(file: Path | None) -> tuple[int, int] | None:
    status = file.stat() if file is not None and file.exists() else None
    return None if status is None else (status.st_dev, status.st_ino)


def release_connections(storage: BaseStorage) -> None:
    """Hold no connection to a server during a training or a wait; the next call connects again."""
    database = storage.database if isinstance(storage, RetryingStorage) else None
    if database is not None and database.engine.dialect.name != "sqlite":
        database.engine.pool.dispose()


def connect(url: str) -> BaseStorage:
    """Open a storage as Optuna has it, creating its file or tables if they are missing."""
    file = file_of(url)
    if file is not None and "://" not in url:
        return JournalStorage(JournalFileBackend(str(file), JournalLock(file)))
    parsed = parse_url(url)
    return _open_grpc_proxy(parsed) if url.startswith("grpc:") else _open_database(parsed)


_CONNECT_ARGS: dict[str, dict[str, Any]] = {
    # Without an isolation level the driver leaves transactions to `_begin_sqlite`.
    "sqlite": {"timeout": 60, "isolation_level": None},
    # A lost server is noticed within minutes instead of hours.
    "postgresql": {"connect_timeout": 10, "keepalives_idle": 30, "tcp_user_timeout": 30_000},
    "mysql": {"connect_timeout": 10, "read_timeout": 30, "write_timeout": 30},
}

# A suspended client must not keep its locks: PostgreSQL ends its transaction, MySQL its connection.
# SQLite has readers and one writer at the same time.
_SESSION_SETTINGS = {
    "sqlite": "PRAGMA journal_mode=WAL",
    "postgresql": "SET TimeZone = 'UTC'; SET idle_in_transaction_session_timeout = '15s'",
    "mysql": "SET time_zone = '+00:00', wait_timeout = 30, innodb_lock_wait_timeout = 10",
}


def _open_database(url: URL) -> RDBStorage:
    backend = url.get_backend_name()
    # The URL's own query has priority.
    connect_args = {k: v for k, v in _CONNECT_ARGS[backend].items() if k not in url.query}
    kwargs: dict[str, Any] = {"connect_args": connect_args}
    kwargs["pool_events"] = [(partial(_set_session, _SESSION_SETTINGS[backend]), "connect")]
    if backend == "sqlite":
        kwargs["plugins"] = ["taylorglo.sqlite"]
    else:
        # One connection stays open between calls until released; a heartbeat may need another.
        kwargs |= {"pool_size": 1, "max_overflow": -1, "pool_pre_ping": True}
    return RDBStorage(url.render_as_string(hide_password=False), engine_kwargs=kwargs)


def _set_session(settings: str, connection: Any, record: object) -> None:
    # By a statement: connection poolers refuse startup options.
    with closing(connection.cursor()) as cursor, suppress(sqlite3.OperationalError):
        cursor.execute(settings)  # a read-only file is left as it is
    connection.commit()


class _SQLitePlugin(sqlalchemy.CreateEnginePlugin):
    """Sees an engine before Optuna creates tables: no table must be there without its index."""

    def update_url(self, url: URL) -> URL:
        return url

    def engine_created(self, engine: sqlalchemy.Engine) -> None:
        sqlalchemy.event.listen(engine, "begin", _begin_sqlite)


sqlalchemy.dialects.plugins.register("taylorglo.sqlite", __name__, "_SQLitePlugin")


def _begin_sqlite(connection: sqlalchemy.Connection) -> None:
    # A write that begins as a read can be overtaken between the two: two workers would both find
    # a trial waiting and claim it.
    begin = "BEGIN IMMEDIATE" if getattr(_thread, "writes", False) else "BEGIN"
    if not connection.connection.in_transaction:  # in memory all share a connection
        connection.exec_driver_sql(begin)


class JournalLock(JournalFileOpenLock):
    """A lock that the system frees when its holder dies, on a journal of whole records.

    Optuna's own locks outlive a killed holder by 30 seconds, and part of a record would make the
    journal unreadable from there on.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def acquire(self) -> bool:
        # Made anew, since a storage may be pickled and a lock may not.
        self._lock = FileLock(f"{self._path}.taylorglo.lock", poll_interval=0.005)
        self._lock.acquire()
        if size := self._path.stat().st_size:
            with self._path.open("r+b") as file:
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                    end = content.rfind(b"\n") + 1
                if end < size:  # a writer was killed
                    file.truncate(end)
        return True

    def release(self) -> None:
        self._lock.release()
        del self._lock


_GRPC_DEADLINE = "60s"


def _open_grpc_proxy(url: URL) -> GrpcStorageProxy:
    import grpc

    host, port = url.host or "localhost", url.port or 13000  # Optuna's default
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        proxy = GrpcStorageProxy(host=host, port=port)
    config = json.dumps({"methodConfig": [{"name": [{}], "timeout": _GRPC_DEADLINE}]})
    options = [
        ("grpc.service_config", config),
        ("grpc.max_receive_message_length", -1),
        # By default a proxy that was away for long is tried again after two minutes only.
        ("grpc.max_reconnect_backoff_ms", 5000),
    ]
    replace_grpc_channel(proxy, grpc.insecure_channel(f"{host}:{port}", options))
    proxy.get_all_studies()  # to see whether it answers
    return proxy
