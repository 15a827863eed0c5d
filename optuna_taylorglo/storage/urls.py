"""From a storage URL to an Optuna storage that many workers can lean on.

Two things are added to Optuna's own storages: engine settings that suit many processes, and
patience (a database that goes away is waited for, in every call).
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sqlite3
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage

# Optuna looks for this class, which it does not publish, before it asks for heartbeats.
from optuna.storages._heartbeat import BaseHeartbeat
from optuna.storages.journal import BaseJournalBackend, JournalFileBackend
from optuna.trial import TrialState
from sqlalchemy.engine import URL, make_url

from optuna_taylorglo.storage.database import PatientRDBStorage
from optuna_taylorglo.storage.locks import database_lock
from optuna_taylorglo.storage.retry import DEFAULT_OUTAGE_LIMIT

DEFAULT_STORAGE = "sqlite:///taylorglo.db"


# Drivers in the order of preference, and the extra that installs the last of them.
_DRIVERS = {
    "postgresql": (("psycopg2", "psycopg"), "postgres"),
    "mysql": (("MySQLdb", "pymysql"), "mysql"),
}
_BACKENDS = {
    "sqlite": "sqlite",
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "mysql": "mysql",
    "mariadb": "mysql",
}
_CONNECT_TIMEOUT = 10
_BEAT = "taylorglo:beat"


def resolve_storage_url(option: str | None = None) -> str:
    """Storage URL from the option, else ``OPTUNA_STORAGE``, else a SQLite file right here."""
    return option or os.environ.get("OPTUNA_STORAGE") or DEFAULT_STORAGE


def open_storage(
    url: str, *, heartbeat: int = 60, grace: int = 240, patience: float = DEFAULT_OUTAGE_LIMIT
) -> BaseStorage:
    """Open a storage for many workers, creating its tables when they are missing.

    Args:
        url: ``sqlite:///file.db``, ``postgresql://…``, ``mysql://…`` or ``mariadb://…``, or the
            path of an Optuna journal file.
        heartbeat: Seconds between two signs of life of a running trial.
        grace: Seconds without one after which a trial is given up. It must outlast an outage of
            the database, during which nobody can give signs of life.
        patience: Seconds to wait for a database that went away before giving up.

    Returns:
        A storage for ``optuna.create_study`` and ``optuna.load_study``.

    Raises:
        ValueError: The URL is wrong or its driver is not installed.
        ConnectionError: The database cannot be reached or refuses us.
    """
    if not 0 < heartbeat < grace:
        raise ValueError(
            "heartbeat must be positive and shorter than grace, got "
            f"heartbeat={heartbeat!r} and grace={grace!r}."
        )
    if "://" not in url:
        backend = JournalFileBackend(str(_journal_path(url)))
        return WatchedJournalStorage(backend, heartbeat=heartbeat, grace=grace)
    parsed = _parse(url)
    if parsed.get_backend_name() == "sqlite":
        _check_sqlite(parsed)
    with _reachable(parsed):
        return _open_rdb(parsed, heartbeat=heartbeat, grace=grace, patience=patience)


def _journal_path(url: str) -> Path:
    path = Path(url)
    if not url or path.is_dir() or not path.parent.is_dir():
        raise ValueError(
            f"Storage {url!r} is neither a URL such as {DEFAULT_STORAGE} nor a file in an existing "
            "directory (a plain path is an Optuna journal file)."
        )
    if path.is_file() and path.open("rb").read(16) == b"SQLite format 3\0":
        raise ValueError(f"{url} is an SQLite database: write sqlite:///{url}.")
    return path


def _parse(url: str) -> URL:
    """Parse a URL and choose a driver that is installed."""
    try:
        parsed = make_url(url)
    except (sqlalchemy.exc.ArgumentError, ValueError) as error:
        # The error would quote the URL, password and all.
        raise ValueError(
            f"Storage URL with scheme {url.split('://')[0]!r} cannot be read: expected "
            "scheme://user:password@host:port/database, special characters percent-encoded."
        ) from error
    scheme = parsed.get_backend_name()
    if scheme not in _BACKENDS:
        raise ValueError(
            f"Storage URL {hide_password(parsed)} has the unknown scheme {scheme!r}: expected one "
            f"of {', '.join(sorted(_BACKENDS))}, or the path of a journal file."
        )
    backend = _BACKENDS[scheme]
    if backend == "sqlite" or "+" in parsed.drivername:
        return parsed.set(drivername=parsed.drivername.replace(scheme, backend, 1))
    modules, extra = _DRIVERS[backend]
    for module in modules:
        if importlib.util.find_spec(module) is not None:
            return parsed.set(drivername=f"{backend}+{module.lower()}")
    raise ValueError(
        f"No driver for {hide_password(parsed)} is installed: "
        f"pip install 'optuna-taylorglo[{extra}]'."
    )


def hide_password(url: URL | str) -> str:
    """The URL for people to read: the password is masked."""
    return make_url(url).render_as_string(hide_password=True)


def shown_url(url: str) -> str:
    """A storage URL or journal path for people to read: without a password."""
    return hide_password(url) if "://" in url else url


def _check_sqlite(url: URL) -> None:
    directory = Path(url.database or ".").parent
    if not directory.is_dir():
        raise ValueError(f"Directory {str(directory)!r} of {hide_password(url)} does not exist.")


@contextlib.contextmanager
def _reachable(url: URL) -> Iterator[None]:
    """Turn the many errors of a first contact into one that says what was tried."""
    try:
        yield
    except (sqlalchemy.exc.NoSuchModuleError, ImportError) as error:
        raise ValueError(
            f"The driver of {hide_password(url)} is unknown or not installed: {error}"
        ) from error
    except (sqlalchemy.exc.DBAPIError, StorageInternalError, sqlite3.Error) as error:
        cause = error.__cause__ if isinstance(error, StorageInternalError) else error
        reason = getattr(cause, "orig", None) or cause
        raise ConnectionError(
            f"Cannot open {hide_password(url)}: {' '.join(str(reason).split())}"
        ) from error


def _open_rdb(url: URL, *, heartbeat: int, grace: int, patience: float) -> RDBStorage:
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
            return PatientRDBStorage(
                url.render_as_string(hide_password=False),
                engine_kwargs=engine_kwargs,
                heartbeat_interval=heartbeat,
                grace_period=grace,
                patience=patience,
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


class WatchedJournalStorage(JournalStorage, BaseHeartbeat):
    """A JournalStorage that knows when a running trial has gone silent.

    A journal has no clock that all hosts share. A sign of life is therefore a counter, and each
    process measures with its own clock for how long it has not moved: after everything was killed,
    the trials of before are given up one grace period after the restart.
    """

    def __init__(self, backend: BaseJournalBackend, *, heartbeat: int, grace: int) -> None:
        super().__init__(backend)
        self.heartbeat_interval = heartbeat
        self.grace_period = grace
        self._last_seen: dict[int, tuple[int, float]] = {}

    def record_heartbeat(self, trial_id: int) -> None:
        count = self.get_trial(trial_id).user_attrs.get(_BEAT, 0)
        self.set_trial_user_attr(trial_id, _BEAT, count + 1)

    def _get_stale_trial_ids(self, study_id: int) -> list[int]:
        now = time.monotonic()
        seen = {}
        for trial in self.get_all_trials(study_id, deepcopy=False, states=(TrialState.RUNNING,)):
            count = trial.user_attrs.get(_BEAT, 0)
            before = self._last_seen.get(trial._trial_id)
            same = before is not None and before[0] == count
            seen[trial._trial_id] = before if before is not None and same else (count, now)
        self._last_seen = seen
        return [trial for trial, (_, since) in seen.items() if now - since > self.grace_period]

    def get_heartbeat_interval(self) -> int:
        return self.heartbeat_interval

    def get_heartbeat_stale_trial_callback(self) -> None:
        return None
