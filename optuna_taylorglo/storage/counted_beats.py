"""Signs of life for storages without a clock."""

from __future__ import annotations

import time

from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage
from optuna.trial import TrialState

from optuna_taylorglo.attributes import BEAT, SUSPECTED
from optuna_taylorglo.storage.optuna_private import BaseHeartbeat, trial_id_of
from optuna_taylorglo.storage.retry import is_standstill, last_outage_end


class CountedBeats(BaseStorage, BaseHeartbeat):
    """What makes a storage know that a running trial has gone silent, without a common clock.

    A sign of life is a counter, and each process measures with its own clock for how long it has
    not moved: after everything was killed, the trials of before are given up one grace period
    after the restart.
    """

    heartbeat_interval: int
    grace_period: int
    _last_seen: dict[int, tuple[int, float]]

    def set_intervals(self, *, heartbeat: int, grace: int) -> None:
        """Begin to watch.

        Args:
            heartbeat: Seconds between two signs of life of a running trial.
            grace: Seconds without one after which a trial is given up.
        """
        self.heartbeat_interval = heartbeat
        self.grace_period = grace
        self._last_seen = {}

    def record_heartbeat(self, trial_id: int) -> None:
        count = self.get_trial(trial_id).user_attrs.get(BEAT, 0)
        self.set_trial_user_attr(trial_id, BEAT, count + 1)

    def silent_trials(self, study_id: int) -> dict[int, int]:
        """Running trials of which this process has heard nothing for the grace period.

        Args:
            study_id: The study.

        Returns:
            By their ids, how many signs of life there had been.
        """
        now = time.monotonic()
        seen = {}
        for trial in self.get_all_trials(study_id, deepcopy=False, states=(TrialState.RUNNING,)):
            count = trial.user_attrs.get(BEAT, 0)
            before = self._last_seen.get(trial_id_of(trial))
            same = before is not None and before[0] == count
            seen[trial_id_of(trial)] = before if before is not None and same else (count, now)
        self._last_seen = seen
        # Nobody could give signs of life while the storage was away.
        return {
            trial: count
            for trial, (count, since) in seen.items()
            if now - max(since, last_outage_end()) > self.grace_period
        }

    def is_still_silent(self, trial_id: int, count: int) -> bool:
        """Whether a trial has given no further sign of life, though everybody can write.

        Reading tells nothing of that: a journal can be read while the lock of a suspended writer
        keeps all others from it for half a minute, and whoever is held up must not be declared dead
        by the first one that comes through. So this writes something.

        Args:
            trial_id: The trial.
            count: How many signs of life there had been.
        """
        began = time.monotonic()
        try:
            self.set_trial_user_attr(trial_id, SUSPECTED, True)
        except UpdateFinishedTrialError:
            return False
        heard = self.get_trial(trial_id).user_attrs.get(BEAT, 0)
        return not is_standstill(began, self.grace_period) and bool(heard == count)

    def _get_stale_trial_ids(self, study_id: int) -> list[int]:
        return list(self.silent_trials(study_id))

    def get_heartbeat_interval(self) -> int:
        return self.heartbeat_interval

    def get_heartbeat_stale_trial_callback(self) -> None:
        return None
