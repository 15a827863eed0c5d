"""Locks between the workers of a study, released when their holder dies.

A holder may also be suspended, by SIGSTOP, a batch system or a container's pause, and then nobody
knows when it will wake. No wait is therefore without limit: the protocol of the queue bears two
processes that claim at once, and the lock only spares them the trouble.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from weakref import WeakKeyDictionary

import sqlalchemy
from filelock import FileLock, Timeout
from optuna.logging import get_logger
from optuna.storages import BaseStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend

from optuna_taylorglo.storage.optuna_private import backend_of, path_of
from optuna_taylorglo.storage.outage_tolerant import OutageTolerantStorage
from optuna_taylorglo.storage.remote import RemoteStorage
from optuna_taylorglo.storage.retry import is_contention

PATIENCE = 20.0
"""Seconds that one holder may keep a lock before those who wait go on without it."""

STUCK_PATIENCE = 1.0
"""The same for a holder that was waited for in vain before."""

# Seconds between two looks at who holds a lock; a lock that changes hands is worth waiting for.
_BETWEEN_LOOKS = 0.5

# A process that waits for longer than this until its next try holds no connection meanwhile.
_LONG_PAUSE = 0.1
_LONGEST_PAUSE = 0.5

Lock = contextlib.AbstractContextManager[object]

_logger = get_logger(__name__)


class _ThreadLock:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.holders = 0


_thread_locks: WeakKeyDictionary[BaseStorage, _ThreadLock] = WeakKeyDictionary()
_thread_locks_guard = threading.Lock()
_stuck: dict[str, object] = {}


@contextlib.contextmanager
def study_lock(storage: BaseStorage, study_name: str) -> Iterator[None]:
    """Hold the only lock of a study; it is released when its holder dies.

    PostgreSQL and MySQL keep it for a connection, SQLite and journal files use a lock on a file
    beside them (one host, or a network file system with working locks), behind a gRPC proxy it is
    a lease, and a storage in memory uses a lock between threads. Whoever waits for the same holder
    for longer than `PATIENCE` goes on without it.

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
    elif isinstance(storage, RemoteStorage):
        lock = storage.leases.held(study_name)
    else:
        lock = _thread_lock(storage)
    with lock:
        yield


@contextlib.contextmanager
def study_lock_if_free(storage: BaseStorage, study_name: str) -> Iterator[bool]:
    """Hold the lock of a study unless somebody else on the same server does.

    For work that only one needs to do: hundreds who wait for a lock cost a server more than the
    work itself. It takes a lock back from a process that is suspended. In a file, or in memory,
    the lock is waited for.

    Yields:
        Whether to go on.
    """
    if isinstance(storage, RemoteStorage):
        with storage.leases.held_if_free(study_name) as is_mine:
            yield is_mine
        return
    database = storage.database if isinstance(storage, OutageTolerantStorage) else None
    kind = None if database is None else _DATABASE_LOCKS.get(database.engine.dialect.name)
    if database is None or kind is None:
        with study_lock(storage, study_name):
            yield True
        return
    lock = kind(database.engine, study_name)
    with lock.engine.connect() as connection:
        if is_mine := lock.take(connection, 0.0):
            try:
                yield True
            finally:
                _release(lambda: lock.give_back(connection))
    if not is_mine:
        # With no connection in hand, which somebody who has the lock may need.
        yield False


def database_lock(
    engine: sqlalchemy.Engine, name: str
) -> contextlib.AbstractContextManager[object]:
    """A named lock between all users of a database."""
    if (kind := _DATABASE_LOCKS.get(engine.dialect.name)) is not None:
        return _held(kind(engine, name), f"of study {name!r}")
    return _file_lock(engine.url.database)


class _Patience:
    """How long to wait for a lock: as long as it changes hands, and not for one holder alone.

    Args:
        name: The lock, in words.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._holder: object = None
        self._since = self._next_look = time.monotonic()

    @property
    def wants_a_look(self) -> bool:
        """Whether it is time to see who holds the lock."""
        return time.monotonic() >= self._next_look

    def is_over(self, holder: object) -> bool:
        """Whether to go on without the lock, as somebody holds it who has not just got it.

        Args:
            holder: What tells this time of holding the lock from any other.
        """
        now = time.monotonic()
        self._next_look = now + min(_BETWEEN_LOOKS, PATIENCE / 4)
        if holder != self._holder:
            self._holder, self._since = holder, now
        stuck = self._name in _stuck and _stuck[self._name] == holder
        if now - self._since < (min(PATIENCE, STUCK_PATIENCE) if stuck else PATIENCE):
            return False
        if not stuck:
            _stuck[self._name] = holder
            _logger.warning(
                f"The lock {self._name} was not given back for {PATIENCE:.0f} s, perhaps by a "
                "process that is suspended; going on without it."
            )
        return True


@contextlib.contextmanager
def _thread_lock(storage: BaseStorage) -> Iterator[None]:
    with _thread_locks_guard:
        shared = _thread_locks.setdefault(storage, _ThreadLock())
    patience = _Patience(f"of a storage in memory, {id(storage)}")
    while not (held := shared.lock.acquire(timeout=min(_BETWEEN_LOOKS, PATIENCE / 4))):
        if patience.is_over(shared.holders):
            break
    try:
        shared.holders += held
        yield
    finally:
        if held:
            shared.lock.release()


@contextlib.contextmanager
def _file_lock(path: str | None) -> Iterator[None]:
    if not path or path == ":memory:":
        yield
        return
    # Optuna's journal has a lock of its own at <path>.lock.
    lock = FileLock(f"{path}.taylorglo.lock")
    patience = _Patience(lock.lock_file)
    while not lock.is_locked:
        try:
            lock.acquire(timeout=min(_BETWEEN_LOOKS, PATIENCE / 4), poll_interval=0.01)
            # Its time says to others that the lock has changed hands.
            with contextlib.suppress(OSError):
                os.utime(lock.lock_file)
        except Timeout:
            if patience.is_over(_time_of(lock.lock_file)):
                break
    try:
        yield
    finally:
        lock.release()


def _time_of(path: str) -> int | None:
    try:
        return os.stat(path).st_mtime_ns
    except FileNotFoundError:
        return None


class _DatabaseLock(ABC):
    """A lock that a database keeps, and how it is asked for.

    Args:
        engine: The database.
    """

    def __init__(self, engine: sqlalchemy.Engine) -> None:
        self.engine = engine

    @abstractmethod
    def take(self, connection: sqlalchemy.Connection, wait: float) -> bool:
        """Take the lock, waiting for some seconds in the server's own queue."""

    @abstractmethod
    def look(self, connection: sqlalchemy.Connection) -> tuple[object, bool]:
        """Who holds it, and whether the server has room for those who wait in its queue."""

    @abstractmethod
    def give_back(self, connection: sqlalchemy.Connection) -> None:
        """Give the lock back."""


class _PostgreSQLLock(_DatabaseLock):
    def __init__(self, engine: sqlalchemy.Engine, name: str) -> None:
        super().__init__(engine)
        digest = hashlib.sha256(f"taylorglo:{name}".encode()).digest()
        self._key = int.from_bytes(digest[:8], "big", signed=True)
        self._high, self._low = int.from_bytes(digest[:4]), int.from_bytes(digest[4:8])

    def take(self, connection: sqlalchemy.Connection, wait: float) -> bool:
        # Bound to a transaction, not to a session: that also holds behind a connection pooler.
        if wait == 0:
            query = sqlalchemy.text("SELECT pg_try_advisory_xact_lock(:key)")
            return bool(connection.execute(query, {"key": self._key}).scalar())
        limit = sqlalchemy.text("SELECT set_config('lock_timeout', :limit, true)")
        query = sqlalchemy.text("SELECT pg_advisory_xact_lock(:key)")
        try:
            connection.execute(limit, {"limit": f"{round(1000 * wait)}ms"})
            connection.execute(query, {"key": self._key})
        except sqlalchemy.exc.OperationalError as error:
            if not is_contention(error):
                raise
            connection.rollback()
            return False
        return True

    def look(self, connection: sqlalchemy.Connection) -> tuple[object, bool]:
        # A transaction has a number of its own; the same one means the same holder, still.
        query = sqlalchemy.text(
            "SELECT (SELECT virtualtransaction FROM pg_locks WHERE locktype = 'advisory' "
            "AND granted AND classid = :high AND objid = :low AND objsubid = 1 AND database = "
            "(SELECT oid FROM pg_database WHERE datname = current_database())), "
            "(SELECT 4 * sum(numbackends) < current_setting('max_connections')::int "
            "FROM pg_stat_database)"
        )
        holder, has_room = connection.execute(query, {"high": self._high, "low": self._low}).one()
        return holder, bool(has_room)

    def give_back(self, connection: sqlalchemy.Connection) -> None:
        connection.rollback()


class _MySQLLock(_DatabaseLock):
    def __init__(self, engine: sqlalchemy.Engine, name: str) -> None:
        super().__init__(engine)
        # These locks are the server's, not a database's, and their names have at most 64
        # characters.
        digest = hashlib.sha256(f"{engine.url.database}:{name}".encode()).hexdigest()[:40]
        self._key = {"key": f"taylorglo:{digest}"}

    def take(self, connection: sqlalchemy.Connection, wait: float) -> bool:
        query = sqlalchemy.text(f"SELECT GET_LOCK(:key, {wait:.3f})")
        return bool(connection.execute(query, self._key).scalar())

    def look(self, connection: sqlalchemy.Connection) -> tuple[object, bool]:
        query = sqlalchemy.text(
            "SELECT IS_USED_LOCK(:key), 4 * count(*) < @@max_connections "
            "FROM information_schema.processlist"
        )
        holder, has_room = connection.execute(query, self._key).one()
        return holder, bool(has_room)

    def give_back(self, connection: sqlalchemy.Connection) -> None:
        connection.execute(sqlalchemy.text("SELECT RELEASE_LOCK(:key)"), self._key)


_DATABASE_LOCKS: dict[str, type[_PostgreSQLLock | _MySQLLock]] = {
    "postgresql": _PostgreSQLLock,
    "mysql": _MySQLLock,
}


@contextlib.contextmanager
def _held(lock: _DatabaseLock, name: str) -> Iterator[None]:
    connection = _connection_with(lock, name)
    try:
        yield
    finally:
        if connection is not None:
            _release(lambda: lock.give_back(connection))
            _release(connection.close)


def _connection_with(lock: _DatabaseLock, name: str) -> sqlalchemy.Connection | None:
    """A connection that holds a lock, or None when patience is over.

    The server's own queue is quick and fair, but whoever stands in it keeps a connection busy.
    Where these are scarce, the lock is tried for again and again instead.
    """
    patience = _Patience(name)
    pause, has_room = 0.005, False
    while True:
        connection = lock.engine.connect()
        try:
            if lock.take(connection, min(_BETWEEN_LOOKS, PATIENCE / 4) if has_room else 0):
                return connection
            over = False
            if patience.wants_a_look:
                holder, has_room = lock.look(connection)
                over = patience.is_over(holder)
        except BaseException:
            # Nobody knows whether it holds the lock; the server takes that back with it.
            connection.invalidate()
            raise
        connection.close()
        if over:
            return None
        if has_room:
            continue
        if pause > _LONG_PAUSE:
            lock.engine.pool.dispose()
        time.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(1.5 * pause, _LONGEST_PAUSE)


def _release(call: Callable[[], object]) -> None:
    """Give a lock back; with the connection gone, the server has already taken it back."""
    with contextlib.suppress(sqlalchemy.exc.SQLAlchemyError):
        call()
