"""Giving back what workers held that are dead: seen to die, or silent for too long."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from optuna.logging import get_logger
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from optuna_taylorglo.attributes import LOST, TAKER, WORKER
from optuna_taylorglo.queue.heartbeat import heartbeat_interval
from optuna_taylorglo.queue.identity import WorkerIdentity, worker_in, worker_of
from optuna_taylorglo.storage.counted_beats import CountedBeats
from optuna_taylorglo.storage.notices import Notices
from optuna_taylorglo.storage.optuna_private import storage_of, study_id_of, trial_id_of
from optuna_taylorglo.storage.outage_tolerant import OutageTolerantStorage
from optuna_taylorglo.storage.retry import last_outage_end, retry_during_outage
from optuna_taylorglo.storage.transitions import end, is_still_silent, last_signs

_logger = get_logger(__name__)

WATCH = 30.0
"""Seconds for which a process must itself have heard nothing of a trial before it gives it up.
Longer than a worker needs, after the database was away, to give its next sign of life."""

SETTLE = 2.0
"""Seconds between the suspicion and the decision, in which whoever was held up by a standstill of
the database gets its sign of life through; or this part of the grace period, if that is more."""

SETTLE_OF_GRACE = 1 / 16

MAX_LOSSES = 20
"""Workers that may be lost over one evaluation; with one more, it is taken for what kills them."""

# Whoever looks after workers must not be held up; a trial that stays is found by its silence.
_LIMIT = 10.0


class SilenceWatch:
    """Gives up running trials whose workers are dead, or silent for the grace period.

    That a worker has died is seen by any process on its machine. Silence is measured by the
    database's clock, and besides by this process's own, from the moment at which it could first
    have heard something: nobody is given up for an outage of the database. Nor for a standstill, in
    which no call fails and nobody can write: a trial is suspected first, by a process that could
    just write, and given up if it stays silent after that. A trial that never gave a sign of life,
    as one of another tool, is given up when this process has seen it run for the grace period.

    Args:
        study: The study.
        watch: Seconds for which this process must have heard nothing; `WATCH`, or the grace period
            if that is shorter, unless given.
    """

    def __init__(self, study: Study, watch: float | None = None) -> None:
        self._study = study
        self._storage = storage_of(study)
        self._watch = WATCH if watch is None else watch
        self._settle = min(SETTLE, self._watch)
        self._heard: dict[int, tuple[datetime | None, float]] = {}
        self._halfway: dict[int, float] = {}
        self._suspected: dict[int, tuple[datetime | int | None, float]] = {}

    def give_up(self) -> list[int]:
        """Give up what nobody is at work on any more; returns the ids of the trials."""
        if heartbeat_interval(self._storage) is None:
            return []
        silent, dead = self._silent_and_dead()
        self._suspected = {
            trial_id: (seen, since)
            for trial_id, (seen, since) in self._suspected.items()
            if trial_id in silent and silent[trial_id] == seen
        }
        lost = {LOST: "its worker has died"}
        given_up = [t for t in dead if end(self._storage, t, TrialState.FAIL, attributes=lost)]
        lost = {LOST: "its worker gave no sign of life"}
        return given_up + [
            trial_id
            for trial_id, seen in silent.items()
            if self._has_been_suspected(trial_id, seen)
            and end(self._storage, trial_id, TrialState.FAIL, attributes=lost, seen=seen)
        ]

    def _has_been_suspected(self, trial_id: int, seen: datetime | int | None) -> bool:
        """Whether it was long enough ago; else it is now, if signs of life can be written."""
        if not self._settle:
            return True
        if trial_id in self._suspected:
            grace = getattr(self._storage, "grace_period", None) or 0
            settle = min(max(self._settle, SETTLE_OF_GRACE * grace), self._watch)
            return time.monotonic() - self._suspected[trial_id][1] >= settle
        if seen is None or is_still_silent(self._storage, trial_id, seen):
            self._suspected[trial_id] = (seen, time.monotonic())
        return False

    def _silent_and_dead(self) -> tuple[Mapping[int, datetime | int | None], list[int]]:
        """Trials that are silent, with their last sign of life, and trials of the dead."""
        study_id = study_id_of(self._study)
        if not isinstance(self._storage, OutageTolerantStorage):
            running = self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
            dead = [
                trial_id_of(trial)
                for trial in running
                if _has_died(worker_of(trial)) or self._was_left_halfway(trial)
            ]
            stale = _silent_trials(self._storage, study_id)
            return {trial: seen for trial, seen in stale.items() if trial not in dead}, dead
        grace = self._storage.grace_period
        watch = min(grace, self._watch)
        now = time.monotonic()
        heard: dict[int, tuple[datetime | None, float]] = {}
        silent, dead = {}, []
        for trial_id, sign in last_signs(self._storage, study_id, WORKER).items():
            before = self._heard.get(trial_id)
            is_new = before is None or before[0] != sign.when
            heard[trial_id] = (sign.when, now) if before is None or is_new else before
            quiet = now - max(heard[trial_id][1], last_outage_end())
            if _has_died(worker_in(sign.attribute)):
                dead.append(trial_id)
            elif sign.age > grace and quiet >= (grace if sign.when is None else watch):
                silent[trial_id] = sign.when
        self._heard = heard
        return silent, dead

    def _was_left_halfway(self, trial: FrozenTrial) -> bool:
        """Whether who was about to take a trial has died before it could say that it had.

        Another may have taken it at the same moment, and says so in the next one.
        """
        said, trial_id = trial.user_attrs, trial_id_of(trial)
        if WORKER in said or not _has_died(worker_in(said.get(TAKER))):
            self._halfway.pop(trial_id, None)
            return False
        since = self._halfway.setdefault(trial_id, time.monotonic())
        return time.monotonic() - since >= self._settle


def _silent_trials(storage: Any, study_id: int) -> Mapping[int, int | None]:
    """Silent trials of a storage that watches for itself, with what is known of their last sign."""
    if isinstance(storage, CountedBeats):
        return storage.silent_trials(study_id)
    # A database as Optuna opens it.
    return dict.fromkeys(storage._get_stale_trial_ids(study_id))


def _has_died(worker: WorkerIdentity | None) -> bool:
    return worker is not None and worker.has_died


def give_up_trials_of(study: Study, dead: WorkerIdentity, cause: str) -> list[int]:
    """Give up the running trials of a worker that has died, so that another takes them at once.

    Args:
        study: A study that it may have worked on.
        dead: The worker.
        cause: How it died.

    Returns:
        Numbers of the trials.
    """
    try:
        given_up = retry_during_outage(lambda: _give_up(study, dead, cause), limit=_LIMIT)
        if given_up:
            Notices(storage_of(study), study.study_name).send(len(given_up))
        return given_up
    except Exception as error:
        _logger.warning(f"What worker {dead} held could not be given back: {error}")
        return []


def _give_up(study: Study, dead: WorkerIdentity, cause: str) -> list[int]:
    storage = storage_of(study)
    return [
        trial.number
        for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        if worker_of(trial) == dead
        and end(storage, trial_id_of(trial), TrialState.FAIL, attributes={LOST: cause})
    ]
