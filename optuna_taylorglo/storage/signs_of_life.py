"""When running trials gave their last sign of life, by the database's own clock."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy
from optuna.storages import BaseStorage

from optuna_taylorglo.storage.outage_tolerant import OutageTolerantStorage

_BEATS = sqlalchemy.table(
    "trial_heartbeats",
    sqlalchemy.column("trial_id", sqlalchemy.Integer),
    sqlalchemy.column("heartbeat", sqlalchemy.DateTime),
)


def seconds_since_last_sign(storage: BaseStorage, trial_ids: Sequence[int]) -> dict[int, float]:
    """Seconds since the last sign of life of each trial.

    A journal has no clock, and Optuna no public way to ask; trials of which nothing is known are
    left out.

    Args:
        storage: The storage.
        trial_ids: The trials, by the ids that the storage knows them by.
    """
    if not isinstance(storage, OutageTolerantStorage) or not trial_ids:
        return {}
    query = sqlalchemy.select(
        _BEATS.c.trial_id, _BEATS.c.heartbeat, sqlalchemy.func.current_timestamp()
    ).where(_BEATS.c.trial_id.in_(trial_ids))
    with storage.database.engine.connect() as connection:
        return {
            trial_id: max(0.0, (now.replace(tzinfo=None) - beat).total_seconds())
            for trial_id, beat, now in connection.execute(query)
        }
