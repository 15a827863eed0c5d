"""Optuna's storages, made safe for many workers.

Every storage is wrapped so that its calls outlast an outage. SQLite gets transactions that lock
when they begin, servers get time limits, a journal gets a lock that dies with its holder, and calls
of a gRPC proxy get a deadline.
"""

from __future__ import annotations

import abc
import os
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import sqlalchemy
from filelock import FileLock
from optuna.exceptions import ExperimentalWarning
from optuna.storages import BaseStorage, GrpcStorageProxy, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from sqlalchemy.engine import URL

from optuna_taylorglo.errors import StorageUnreachable
from optuna_taylorglo.study.optuna_private import CachedStorage, replace_grpc_channel
from optuna_taylorglo.study.outages import OUTAGE_LIMIT, retry
from optuna_taylorglo.study.urls import hide_password, sqlite_file

T = TypeVar("T")

_CONNECT_TIMEOUT = 10
_SERVER_TIMEOUT = 30
_GRPC_DEADLINE = 60.0

_CLIENT_TIMEOUT = 15
"""Seconds after which PostgreSQL ends a transaction whose client is suspended or gone."""

_POSTGRESQL_SETTINGS = {
    "TimeZone": "UTC",
    "idle_in_transaction_session_timeout": f"{_CLIENT_TIMEOUT}s",
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": f"{_SERVER_TIMEOUT}s",
}
# MySQL and MariaDB end the whole connection of an idle client.
_MYSQL_SETTINGS = {
    "time_zone": "'+00:00'",
    "wait_timeout": 2 * _CLIENT_TIMEOUT,
    "innodb_lock_wait_timeout": 10,
}

_thread = threading.local()


class RetryingStorage(BaseStorage):
    """An Optuna storage whose every call is repeated while the storage is away.

    Repeating is harmless for reads and for writes that set something. A repeated
    ``create_new_trial`` may leave a second trial, which the queue withdraws as a duplicate.

    Args:
        inner: The storage.
        url: Its URL without the password, or the path of its file.
        outage_limit: Seconds to wait for it.
    """

    def __init__(self, inner: BaseStorage, url: str, *, outage_limit: float = OUTAGE_LIMIT) -> None:
        self.url = url
        self.outage_limit = outage_limit
        self.database = inner if isinstance(inner, RDBStorage) else None
        self._inner = CachedStorage(inner) if isinstance(inner, RDBStorage) else inner
        self._file = None if self.database is None else sqlite_file(self.database.engine.url)
        self._file_id = _file_id(self._file)

    def release_connections(self) -> None:
        """Close idle connections to a server; the next call connects again."""
        if self.database is not None and self.database.engine.dialect.name != "sqlite":
            self.database.engine.pool.dispose()

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if self._file is not None and _file_id(self._file) != self._file_id:
            # What is written to a deleted file is lost, without an error.
            raise StorageUnreachable(
                f"The database {self._file} was deleted or replaced while it was in use. Put it "
                "back and start again; what was written since then is lost."
            )
        method = getattr(self._inner, name)

        def attempt() -> Any:
            _thread.writes = not name.startswith(("get_", "check_"))
            try:
                return method(*args, **kwargs)
            finally:
                _thread.writes = False

        return retry(attempt, limit=self.outage_limit)


def _forward(name: str) -> Callable[..., Any]:
    def call(self: RetryingStorage, *args: Any, **kwargs: Any) -> Any:
        return self._call(name, *args, **kwargs)

    return call


for _name in vars(BaseStorage):
    if not _name.startswith("_"):
        setattr(RetryingStorage, _name, _forward(_name))
abc.update_abstractmethods(RetryingStorage)  # type: ignore[type-abstract]


def release_connections(storage: BaseStorage) -> None:
    """Hold no connection to a server during a training or a wait."""
    if isinstance(storage, RetryingStorage):
        storage.release_connections()


def open_database(url: URL) -> RDBStorage:
    """Open a database, creating Optuna's tables if they are missing."""
    database = RDBStorage(
        url.render_as_string(hide_password=False), engine_kwargs=_engine_kwargs(url)
    )
    if url.get_backend_name() == "sqlite":
        with database.engine.connect() as connection:
            # Readers and one writer at the same time; a read-only file is left as it is.
            try:
                connection.exec_driver_sql("PRAGMA journal_mode=WAL")
            except sqlalchemy.exc.OperationalError as error:
                if "readonly" not in str(error.orig):
                    raise
        sqlalchemy.event.listen(database.engine, "begin", _begin_sqlite)
    return database


def _begin_sqlite(connection: sqlalchemy.Connection) -> None:
    # A write that begins as a read can be overtaken between the two: two workers would both find
    # a trial waiting and claim it.
    writes = getattr(_thread, "writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _engine_kwargs(url: URL) -> dict[str, Any]:
    """Keyword arguments of `sqlalchemy.create_engine`; what the URL's query says has priority."""
    backend = url.get_backend_name()
    if backend == "sqlite":
        # Without an isolation level the driver leaves transactions to `_begin_sqlite`.
        return {"connect_args": {"timeout": 60, "isolation_level": None}}
    connect_args: dict[str, Any] = {"connect_timeout": _CONNECT_TIMEOUT}
    if backend == "postgresql":
        # A server that vanished is noticed within a minute instead of hours.
        connect_args |= {
            "keepalives_idle": 30,
            "keepalives_interval": 10,
            "keepalives_count": 3,
            "tcp_user_timeout": 1000 * _SERVER_TIMEOUT,
        }
    else:
        connect_args |= {"read_timeout": _SERVER_TIMEOUT, "write_timeout": _SERVER_TIMEOUT}
    return {
        # One connection is kept between calls until it is released; a heartbeat may need another.
        "pool_size": 1,
        "max_overflow": -1,
        "pool_pre_ping": True,
        "pool_events": [(_set_postgresql if backend == "postgresql" else _set_mysql, "connect")],
        "connect_args": {k: v for k, v in connect_args.items() if k not in url.query},
    }


# By statements: connection poolers refuse startup options.
def _set_postgresql(connection: Any, record: object) -> None:
    settings = ", ".join(
        f"set_config('{name}', '{value}', false)" for name, value in _POSTGRESQL_SETTINGS.items()
    )
    before = connection.autocommit
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {settings}")
    connection.autocommit = before


def _set_mysql(connection: Any, record: object) -> None:
    settings = ", ".join(f"SESSION {name} = {value}" for name, value in _MYSQL_SETTINGS.items())
    with connection.cursor() as cursor:
        cursor.execute(f"SET {settings}")


def open_journal(path: Path) -> JournalStorage:
    """Open an Optuna journal file, creating it if it is missing."""
    return JournalStorage(JournalFileBackend(str(path), JournalLock(path)))


class JournalLock(JournalFileOpenLock):
    """A lock that the system frees when its holder dies, on a journal of whole records.

    Optuna's own locks outlive a killed holder by 30 seconds. And a process killed while it writes
    leaves part of a record, which would make the journal unreadable from there on.

    Args:
        path: The journal.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock: FileLock | None = None

    def acquire(self) -> bool:
        # Made anew, since a storage may be pickled and a lock may not.
        self._lock = FileLock(f"{self._path}.taylorglo.lock")
        self._lock.acquire(poll_interval=0.005)
        self._cut_torn_record()
        return True

    def release(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    def _cut_torn_record(self) -> None:
        with self._path.open("r+b") as file:
            size = end = file.seek(0, os.SEEK_END)
            while end > 0:
                start = max(0, end - 65536)
                file.seek(start)
                newline = file.read(end - start).rfind(b"\n")
                if newline >= 0:
                    end = start + newline + 1
                    break
                end = start
            if end < size:
                file.truncate(end)


def open_grpc_proxy(host: str, port: int) -> GrpcStorageProxy:
    """Connect to Optuna's gRPC proxy, with a deadline for every call."""
    import grpc

    class Call(NamedTuple):
        method: str
        timeout: float | None
        metadata: Any
        credentials: Any
        wait_for_ready: bool | None
        compression: Any

    class Deadline(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
        def intercept_unary_unary(
            self, continuation: Callable[[Any, Any], T], details: Any, request: Any
        ) -> T:
            fields = {name: getattr(details, name) for name in Call._fields}
            return continuation(Call(**fields | {"timeout": _GRPC_DEADLINE}), request)

    options = [
        ("grpc.max_receive_message_length", -1),
        # By default a proxy that was away for long is tried again after two minutes only.
        ("grpc.max_reconnect_backoff_ms", 5000),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        proxy = GrpcStorageProxy(host=host, port=port)
    channel = grpc.insecure_channel(f"{host}:{port}", options)
    replace_grpc_channel(proxy, grpc.intercept_channel(channel, Deadline()))
    return proxy


def shown_storage(storage: BaseStorage) -> str | None:
    """URL or path by which a storage can be opened again, without its password."""
    if isinstance(storage, RetryingStorage):
        return storage.url
    return hide_password(storage.url) if isinstance(storage, RDBStorage) else None


def _file_id(file: Path | None) -> tuple[int, int] | None:
    try:
        status = None if file is None else file.stat()
    except FileNotFoundError:
        return None
    return None if status is None else (status.st_dev, status.st_ino)
