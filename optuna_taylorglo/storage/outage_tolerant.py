"""A database storage that outlasts outages."""

from __future__ import annotations

import abc
from typing import Any

from optuna.storages import BaseStorage, RDBStorage

from optuna_taylorglo.storage.optuna_private import BaseHeartbeat, CachedStorage
from optuna_taylorglo.storage.retry import DEFAULT_OUTAGE_LIMIT, retry_during_outage


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

    def remove_session(self) -> None:
        """Give the connection of this thread back."""
        self.database.remove_session()


def _delegate(name: str) -> None:
    def call(self: OutageTolerantStorage, *args: Any, **kwargs: Any) -> Any:
        method = getattr(self._cached, name)
        return retry_during_outage(lambda: method(*args, **kwargs), limit=self.outage_limit)

    call.__name__ = name
    setattr(OutageTolerantStorage, name, call)


for _name in vars(CachedStorage):
    # The cache's methods are those of Optuna's two interfaces, one of which has a hidden name.
    if not _name.startswith("_") or _name == "_get_stale_trial_ids":
        _delegate(_name)
abc.update_abstractmethods(OutageTolerantStorage)  # type: ignore[type-abstract]
