"""Locks between the workers of a study, released when their holder dies."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterator
from weakref import WeakKeyDictionary

import sqlalchemy
from filelock import FileLock
from optuna.storages import BaseStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend

from optuna_taylorglo.storage.optuna_private import backend_of, path_of
from optuna_taylorglo.storage.outage_tolerant import OutageTolerantStorage

Lock = contextlib.AbstractContextManager[object]

_thread_locks: WeakKeyDictionary[BaseStorage, threading.Lock] = WeakKeyDictionary()
_thread_locks_guard = threading.Lock()


@contextlib.contextmanager
def study_lock(storage: BaseStorage, study_name: str) -> Iterator[None]:
    """Hold the only lock of a study; it is released when its holder dies.

    PostgreSQL and MySQL keep it for a connection, SQLite and journal files use a lock on a file
    beside them (one host, or a network file system with working locks), and a storage in memory
    uses a lock between threads.

    Args:
        storage: A study's storage.
        study_name: The study.
    """
    if isinstance(storage, OutageTolerantStorage):
        backend = storage.database
    else:
        backend = backend_of(storage)
    lock: Lock
    if isinstance(backend, RDBStorage):
        lock = database_lock(backend.engine, study_name)
    elif isinstance(backend, JournalFileBackend):
        lock = _file_lock(path_of(backend))
    else:
        lock = _thread_lock(storage)
    with lock:
        yield


@contextlib.contextmanager
def _thread_lock(storage: BaseStorage) -> Iterator[None]:
    with _thread_locks_guard:
        lock = _thread_locks.setdefault(storage, threading.Lock())
    with lock:
        yield


def database_lock(
    engine: sqlalchemy.Engine, name: str
) -> contextlib.AbstractContextManager[object]:
    """A named lock between all users of a database."""
    if engine.dialect.name == "postgresql":
        return _postgresql_lock(engine, name)
    if engine.dialect.name == "mysql":
        return _mysql_lock(engine, name)
    return _file_lock(engine.url.database)


@contextlib.contextmanager
def _postgresql_lock(engine: sqlalchemy.Engine, name: str) -> Iterator[None]:
    digest = hashlib.sha256(f"taylorglo:{name}".encode()).digest()
    key = int.from_bytes(digest[:8], "big", signed=True)
    # Bound to a transaction, not to a session: that also holds behind a connection pooler. The
    # host of a holder may vanish without closing its connection, hence the server's keepalives.
    query = sqlalchemy.text(
        "SELECT set_config('tcp_keepalives_idle', '30', true), "
        "set_config('tcp_keepalives_interval', '10', true), "
        "set_config('tcp_keepalives_count', '3', true), pg_advisory_xact_lock(:key)"
    )
    connection = engine.connect()
    try:
        connection.execute(query, {"key": key})
        yield
    finally:
        _release(connection.close)


@contextlib.contextmanager
def _mysql_lock(engine: sqlalchemy.Engine, name: str) -> Iterator[None]:
    # These locks are the server's, not a database's, and their names have at most 64 characters.
    digest = hashlib.sha256(f"{engine.url.database}:{name}".encode()).hexdigest()[:40]
    key = {"key": f"taylorglo:{digest}"}
    connection = engine.connect()
    try:
        while not connection.execute(sqlalchemy.text("SELECT GET_LOCK(:key, 60)"), key).scalar():
            pass
        yield
    finally:
        _release(lambda: connection.execute(sqlalchemy.text("SELECT RELEASE_LOCK(:key)"), key))
        _release(connection.close)


def _release(call: Callable[[], object]) -> None:
    """Give a lock back; with the connection gone, the server has already taken it back."""
    with contextlib.suppress(sqlalchemy.exc.SQLAlchemyError):
        call()


@contextlib.contextmanager
def _file_lock(path: str | None) -> Iterator[None]:
    if not path or path == ":memory:":
        yield
        return
    # Optuna's journal has a lock of its own at <path>.lock.
    with FileLock(f"{path}.taylorglo.lock").acquire(poll_interval=0.01):
        yield
