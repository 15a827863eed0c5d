"""A database storage that outlasts outages."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from optuna.storages import BaseStorage, RDBStorage
from optuna.trial import FrozenTrial

from optuna_taylorglo.errors import StorageUnreachable
from optuna_taylorglo.storage.optuna_private import BaseHeartbeat, CachedStorage, trial_id_of
from optuna_taylorglo.storage.retry import (
    DEFAULT_OUTAGE_LIMIT,
    noting_standstill,
    retry_during_outage,
)
from optuna_taylorglo.storage.urls import sqlite_file


class OutageTolerantStorage(BaseStorage, BaseHeartbeat):
    """Optuna's database storage, with its cache, whose every call outlasts an outage.

    A call is repeated as a whole. That is harmless for reads and for writes that set something; a
    repeated ``create_new_trial`` whose first try did reach the database leaves a second trial.

    Args:
        database: The database.
        outage_limit: Seconds to wait for it before giving up.
    """

    def __init__(self, database: RDBStorage, *, outage_limit: float = DEFAULT_OUTAGE_LIMIT) -> None:
        self.database = database
        self.outage_limit = outage_limit
        self._cached = CachedStorage(database)
        self._file = sqlite_file(database.engine.url)
        self._identity = None if self._file is None else _identity(self._file)
        self._known: FrozenTrial | None = None

    def remove_session(self) -> None:
        """Give the connection of this thread back."""
        self.database.remove_session()

    def check_file(self) -> None:
        """Make sure that the file of an SQLite database is still the one that was opened.

        One that was deleted or replaced goes on taking what is written, and nobody finds it again.

        Raises:
            StorageUnreachable: If it is not.
        """
        if self._file is not None and _identity(self._file) != self._identity:
            raise StorageUnreachable(
                f"The database {self._file} was deleted or replaced while it was in use. Put it "
                "back and start again; what was written since then is lost."
            )

    @property
    def grace_period(self) -> float:
        """Seconds without a sign of life after which a trial is given up."""
        return float(self.database.grace_period or 0)

    @contextlib.contextmanager
    def knowing(self, trial: FrozenTrial) -> Iterator[None]:
        """Answer with a trial that was read a moment ago while the body runs."""
        self._known = trial
        try:
            yield
        finally:
            self._known = None

    def get_trial(self, trial_id: int) -> FrozenTrial:
        """A trial, from the database unless it is known."""
        known = self._known
        if known is not None and trial_id_of(known) == trial_id:
            return known
        self.check_file()
        read = self._cached.get_trial
        return retry_during_outage(lambda: read(trial_id), limit=self.outage_limit)

    def release(self) -> None:
        """Close the connections to a server that no thread is using right now.

        The next call connects again. A worker calls it before it trains or waits, so that others
        find room.
        """
        if self.database.engine.dialect.name != "sqlite":
            # The pool is used again afterwards, which it allows: it has no limit to keep count of.
            self.database.engine.pool.dispose()


def _identity(file: Path) -> tuple[int, int] | None:
    try:
        status = file.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def release_connections(storage: BaseStorage) -> None:
    """Hold no connection to a database while nothing is asked of it."""
    if isinstance(storage, OutageTolerantStorage):
        storage.release()


def _delegate(name: str) -> None:
    def call(self: OutageTolerantStorage, *args: Any, **kwargs: Any) -> Any:
        self.check_file()
        method = getattr(self._cached, name)
        return retry_during_outage(
            lambda: noting_standstill(lambda: method(*args, **kwargs), self.grace_period),
            limit=self.outage_limit,
        )

    call.__name__ = name
    setattr(OutageTolerantStorage, name, call)


for _name in vars(CachedStorage):
    # The cache's methods are those of Optuna's two interfaces, one of which has a hidden name.
    _is_public = not _name.startswith("_") or _name == "_get_stale_trial_ids"
    if _is_public and _name not in vars(OutageTolerantStorage):
        _delegate(_name)
abc.update_abstractmethods(OutageTolerantStorage)  # type: ignore[type-abstract]
