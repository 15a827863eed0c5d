"""Optuna's journal file as a storage for many workers."""

from __future__ import annotations

import time
from pathlib import Path

from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from optuna_taylorglo.attributes import BEAT
from optuna_taylorglo.errors import StorageURLError
from optuna_taylorglo.storage.optuna_private import BaseHeartbeat, trial_id_of
from optuna_taylorglo.storage.urls import DEFAULT_STORAGE


class WatchedJournalStorage(JournalStorage, BaseHeartbeat):
    """A JournalStorage that knows when a running trial has gone silent.

    A journal has no clock that all hosts share. A sign of life is therefore a counter, and each
    process measures with its own clock for how long it has not moved: after everything was killed,
    the trials of before are given up one grace period after the restart.

    Args:
        path: The journal file.
        heartbeat: Seconds between two signs of life of a running trial.
        grace: Seconds without one after which a trial is given up.
    """

    def __init__(self, path: str, *, heartbeat: int, grace: int) -> None:
        super().__init__(JournalFileBackend(str(_checked(path))))
        self.heartbeat_interval = heartbeat
        self.grace_period = grace
        self._last_seen: dict[int, tuple[int, float]] = {}

    def record_heartbeat(self, trial_id: int) -> None:
        count = self.get_trial(trial_id).user_attrs.get(BEAT, 0)
        self.set_trial_user_attr(trial_id, BEAT, count + 1)

    def _get_stale_trial_ids(self, study_id: int) -> list[int]:
        now = time.monotonic()
        seen = {}
        for trial in self.get_all_trials(study_id, deepcopy=False, states=(TrialState.RUNNING,)):
            count = trial.user_attrs.get(BEAT, 0)
            before = self._last_seen.get(trial_id_of(trial))
            same = before is not None and before[0] == count
            seen[trial_id_of(trial)] = before if before is not None and same else (count, now)
        self._last_seen = seen
        return [trial for trial, (_, since) in seen.items() if now - since > self.grace_period]

    def get_heartbeat_interval(self) -> int:
        return self.heartbeat_interval

    def get_heartbeat_stale_trial_callback(self) -> None:
        return None


def _checked(path: str) -> Path:
    """The path, if a journal can lie there."""
    file = Path(path)
    if not path or file.is_dir() or not file.parent.is_dir():
        raise StorageURLError(
            f"Storage {path!r} is neither a URL such as {DEFAULT_STORAGE} nor a file in an "
            "existing directory (a plain path is an Optuna journal file)."
        )
    if file.is_file() and file.open("rb").read(16) == b"SQLite format 3\0":
        raise StorageURLError(f"{path} is an SQLite database: write sqlite:///{path}.")
    return file
