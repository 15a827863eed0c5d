"""Signs of life for storages without a clock."""

from __future__ import annotations

import time

from optuna.storages import BaseStorage
from optuna.trial import TrialState

from optuna_taylorglo.attributes import BEAT
from optuna_taylorglo.storage.optuna_private import BaseHeartbeat, trial_id_of
from optuna_taylorglo.storage.retry import last_outage_end


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

    def _get_stale_trial_ids(self, study_id: int) -> list[int]:
        now = time.monotonic()
        seen = {}
        for trial in self.get_all_trials(study_id, deepcopy=False, states=(TrialState.RUNNING,)):
            count = trial.user_attrs.get(BEAT, 0)
            before = self._last_seen.get(trial_id_of(trial))
            same = before is not None and before[0] == count
            seen[trial_id_of(trial)] = before if before is not None and same else (count, now)
        self._last_seen = seen
        # Nobody could give signs of life while the storage was away.
        silence = {trial: now - max(since, last_outage_end()) for trial, (_, since) in seen.items()}
        return [trial for trial, seconds in silence.items() if seconds > self.grace_period]

    def get_heartbeat_interval(self) -> int:
        return self.heartbeat_interval

    def get_heartbeat_stale_trial_callback(self) -> None:
        return None
