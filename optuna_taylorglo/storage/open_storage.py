"""From a storage URL to an Optuna storage that many workers can lean on."""

from __future__ import annotations

import contextlib
import sqlite3
import warnings
from collections.abc import Iterator

import sqlalchemy
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.storages import BaseStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from sqlalchemy.engine import URL

from optuna_taylorglo.errors import StorageUnreachable, StorageURLError, UsageError
from optuna_taylorglo.storage.engines import engine_kwargs
from optuna_taylorglo.storage.first_contact import PATIENCE, when_ready
from optuna_taylorglo.storage.journal import WatchedJournalStorage
from optuna_taylorglo.storage.locks import database_lock
from optuna_taylorglo.storage.optuna_private import backend_of, path_of
from optuna_taylorglo.storage.outage_tolerant import OutageTolerantStorage
from optuna_taylorglo.storage.reading import Database
from optuna_taylorglo.storage.remote import RemoteStorage, address_of
from optuna_taylorglo.storage.retry import (
    DEFAULT_OUTAGE_LIMIT,
    is_grpc_error,
    is_read_only,
    outage_reason,
)
from optuna_taylorglo.storage.urls import hide_password, is_proxy, parse_url, read_url

_FIRST_ERRORS = (sqlalchemy.exc.DBAPIError, StorageInternalError, sqlite3.Error)


def open_storage(
    url: str,
    *,
    heartbeat: int = 60,
    grace: int = 240,
    outage_limit: float = DEFAULT_OUTAGE_LIMIT,
    patience: float = PATIENCE,
) -> BaseStorage:
    """Open a storage for many workers, creating its tables when they are missing.

    Args:
        url: ``sqlite:///file.db``, ``postgresql://…``, ``mysql://…`` or ``mariadb://…``;
            ``grpc://host:port`` for Optuna's gRPC proxy; or the path of an Optuna journal file.
        heartbeat: Seconds between two signs of life of a running trial.
        grace: Seconds without one after which a trial is given up. It must outlast an outage of
            the database, during which nobody can give signs of life.
        outage_limit: Seconds to wait for a database that went away before giving up.
        patience: Seconds to wait for one that is not ready at first: not started, or with no
            connection to spare.

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
    if is_proxy(url):
        return _open_proxy(
            read_url(url),
            heartbeat=heartbeat,
            grace=grace,
            outage_limit=outage_limit,
            patience=patience,
        )
    parsed = parse_url(url)
    with _reachable(parsed):
        database = when_ready(
            lambda: _open_database(parsed, heartbeat=heartbeat, grace=grace),
            hide_password(parsed),
            patience=patience,
        )
    # mypy does not see the methods that are added to the class by a loop.
    storage = OutageTolerantStorage(database, outage_limit=outage_limit)  # type: ignore[abstract]
    storage.release()
    return storage


def url_of(storage: BaseStorage) -> str | None:
    """The URL or path by which a storage can be opened again, without its password.

    None for one that is in memory.
    """
    if isinstance(storage, OutageTolerantStorage):
        return hide_password(storage.database.url)
    if isinstance(storage, RemoteStorage):
        return storage.url
    backend = backend_of(storage)
    if isinstance(backend, RDBStorage):
        return hide_password(backend.url)
    return path_of(backend) if isinstance(backend, JournalFileBackend) else None


def is_served(storage: BaseStorage) -> bool:
    """Whether a server answers for a storage, to which connections are scarce."""
    if isinstance(storage, OutageTolerantStorage):
        return storage.database.engine.dialect.name != "sqlite"
    return isinstance(storage, RemoteStorage)


@contextlib.contextmanager
def _reachable(url: URL) -> Iterator[None]:
    """Turn the many errors of a first contact into one that says what was tried."""
    try:
        yield
    except (sqlalchemy.exc.NoSuchModuleError, ImportError) as error:
        raise StorageURLError(
            f"The driver of {hide_password(url)} is unknown or not installed: {error}"
        ) from error
    except Exception as error:
        if not isinstance(error, _FIRST_ERRORS) and not is_grpc_error(error):
            raise
        raise StorageUnreachable(
            f"Cannot open {hide_password(url)}: {outage_reason(error)}"
        ) from error


def _open_proxy(
    url: URL, *, heartbeat: int, grace: int, outage_limit: float, patience: float
) -> RemoteStorage:
    host, port = address_of(url)
    storage = RemoteStorage(host, port, heartbeat=heartbeat, grace=grace, outage_limit=outage_limit)
    with _reachable(url):
        when_ready(storage.check_reachable, storage.url, patience=patience)
    return storage


def _open_database(url: URL, *, heartbeat: int, grace: int) -> RDBStorage:
    def open_database(*, has_tables: bool) -> RDBStorage:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            return Database(
                url.render_as_string(hide_password=False),
                engine_kwargs=engine_kwargs(url),
                heartbeat_interval=heartbeat,
                grace_period=grace,
                skip_table_creation=has_tables,
                # Optuna checks with two connections at once; ours comes later, with one.
                skip_compatibility_check=True,
            )

    engine = sqlalchemy.create_engine(url, **engine_kwargs(url))
    try:
        if url.get_backend_name() == "sqlite":
            _use_write_ahead_log(engine)
        if not _has_tables(engine):
            # Optuna creates its tables without a lock, and several processes doing so at once
            # trip over each other.
            with database_lock(engine, "tables"):
                if not _has_tables(engine):
                    engine.pool.dispose()
                    return open_database(has_tables=False)
    finally:
        engine.dispose()
    database = open_database(has_tables=True)
    _check_version(database)
    return database


def _check_version(database: RDBStorage) -> None:
    there, ours = database.get_current_version(), database.get_head_version()
    if there == ours:
        return
    shown = hide_password(database.url)
    if there in database.get_all_versions():
        advice = f"Bring them up to date: optuna storage upgrade --storage {shown}"
    else:
        advice = "Install that version: pip install -U optuna"
    raise StorageURLError(
        f"The tables of {shown} are of another version of Optuna, {there} in place of {ours}. "
        + advice
    )


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
        if connection.execute(sqlalchemy.text("PRAGMA journal_mode")).scalar() == "wal":
            return
        try:
            connection.execute(sqlalchemy.text("PRAGMA journal_mode=WAL"))
        except sqlalchemy.exc.OperationalError as error:
            # One that may only be read can be looked at all the same.
            if not is_read_only(error):
                raise
