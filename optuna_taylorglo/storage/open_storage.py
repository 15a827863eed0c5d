"""From a storage URL to an Optuna storage that many workers can lean on."""

from __future__ import annotations

import contextlib
import sqlite3
import warnings
from collections.abc import Iterator
from typing import Any

import sqlalchemy
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.storages import BaseStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from sqlalchemy.engine import URL

from optuna_taylorglo.errors import StorageUnreachable, StorageURLError, UsageError
from optuna_taylorglo.storage.journal import WatchedJournalStorage
from optuna_taylorglo.storage.locks import database_lock
from optuna_taylorglo.storage.optuna_private import backend_of, path_of
from optuna_taylorglo.storage.outage_tolerant import OutageTolerantStorage
from optuna_taylorglo.storage.retry import DEFAULT_OUTAGE_LIMIT
from optuna_taylorglo.storage.urls import hide_password, parse_url

_CONNECT_TIMEOUT = 10


def open_storage(
    url: str, *, heartbeat: int = 60, grace: int = 240, outage_limit: float = DEFAULT_OUTAGE_LIMIT
) -> BaseStorage:
    """Open a storage for many workers, creating its tables when they are missing.

    Args:
        url: ``sqlite:///file.db``, ``postgresql://…``, ``mysql://…`` or ``mariadb://…``, or the
            path of an Optuna journal file.
        heartbeat: Seconds between two signs of life of a running trial.
        grace: Seconds without one after which a trial is given up. It must outlast an outage of
            the database, during which nobody can give signs of life.
        outage_limit: Seconds to wait for a database that went away before giving up.

    Returns:
        A storage for ``optuna.create_study`` and ``optuna.load_study``.

    Raises:
        StorageURLError: The URL is wrong or its driver is not installed.
        StorageUnreachable: The database cannot be reached or refuses us.
    """
    if not 0 < heartbeat < grace:
        raise UsageError(
            "heartbeat must be positive and shorter than grace, got "
            f"heartbeat={heartbeat!r} and grace={grace!r}."
        )
    if "://" not in url:
        return WatchedJournalStorage(url, heartbeat=heartbeat, grace=grace)
    parsed = parse_url(url)
    with _reachable(parsed):
        database = _open_database(parsed, heartbeat=heartbeat, grace=grace)
    # mypy does not see the methods that are added to the class by a loop.
    return OutageTolerantStorage(database, outage_limit=outage_limit)  # type: ignore[abstract]


def url_of(storage: BaseStorage) -> str | None:
    """The URL or path by which a storage can be opened again, without its password.

    None for one that is in memory.
    """
    if isinstance(storage, OutageTolerantStorage):
        return hide_password(storage.database.url)
    backend = backend_of(storage)
    if isinstance(backend, RDBStorage):
        return hide_password(backend.url)
    return path_of(backend) if isinstance(backend, JournalFileBackend) else None


@contextlib.contextmanager
def _reachable(url: URL) -> Iterator[None]:
    """Turn the many errors of a first contact into one that says what was tried."""
    try:
        yield
    except (sqlalchemy.exc.NoSuchModuleError, ImportError) as error:
        raise StorageURLError(
            f"The driver of {hide_password(url)} is unknown or not installed: {error}"
        ) from error
    except (sqlalchemy.exc.DBAPIError, StorageInternalError, sqlite3.Error) as error:
        cause = error.__cause__ if isinstance(error, StorageInternalError) else error
        reason = getattr(cause, "orig", None) or cause
        raise StorageUnreachable(
            f"Cannot open {hide_password(url)}: {' '.join(str(reason).split())}"
        ) from error


def _open_database(url: URL, *, heartbeat: int, grace: int) -> RDBStorage:
    engine_kwargs = _engine_kwargs(url)
    engine = sqlalchemy.create_engine(url, **engine_kwargs)
    try:
        # Optuna creates its tables without a lock, and several processes doing so at once trip
        # over each other.
        lock = contextlib.nullcontext() if _has_tables(engine) else database_lock(engine, "tables")
        with lock, warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            if url.get_backend_name() == "sqlite":
                _use_write_ahead_log(engine)
            return RDBStorage(
                url.render_as_string(hide_password=False),
                engine_kwargs=engine_kwargs,
                heartbeat_interval=heartbeat,
                grace_period=grace,
            )
    finally:
        engine.dispose()


def _engine_kwargs(url: URL) -> dict[str, Any]:
    backend = url.get_backend_name()
    if backend == "sqlite":
        return {"connect_args": {"timeout": 60}}
    connect_args: dict[str, Any] = {"connect_timeout": _CONNECT_TIMEOUT}
    if backend == "postgresql":
        # A server that vanishes without a word is noticed within a minute, not within hours.
        connect_args |= {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
    connect_args = {k: v for k, v in connect_args.items() if k not in url.query}
    return {"pool_pre_ping": True, "connect_args": connect_args}


def _has_tables(engine: sqlalchemy.Engine) -> bool:
    # The last thing that Optuna writes when it sets up a database.
    with engine.connect() as connection:
        if not sqlalchemy.inspect(connection).has_table("alembic_version"):
            return False
        query = sqlalchemy.text("SELECT version_num FROM alembic_version")
        return connection.execute(query).first() is not None


def _use_write_ahead_log(engine: sqlalchemy.Engine) -> None:
    """Let readers and a writer work at the same time; the setting stays with the file."""
    with engine.connect() as connection:
        connection.execute(sqlalchemy.text("PRAGMA journal_mode=WAL"))
