"""The queue by which any number of workers share the trials of a study.

Each trial carries its key in user attributes. Of several trials with one key the lowest-numbered
one that has not failed counts. Optuna numbers trials in the order in which they become visible, so
all workers derive the same plan from them without a lock.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import random
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Container, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from optuna.exceptions import UpdateFinishedTrialError
from optuna.logging import get_logger
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from optuna_taylorglo.attributes import ERROR, FIRST_TRIAL, NEWS, RELEASED, STALE, WITHDRAWN
from optuna_taylorglo.errors import UsageError
from optuna_taylorglo.study import heartbeat
from optuna_taylorglo.study.heartbeat import StaleTrials, fail_trial, write_heartbeat
from optuna_taylorglo.study.optuna_private import storage_of, study_id_of, trial_id_of
from optuna_taylorglo.study.storages import release_connections

_logger = get_logger(__name__)

# An idle worker polls one attribute of the study. Seconds between two polls grow by a factor up to
# a share of the last evaluation's time, within bounds; polling takes at most a share of the time.
FIRST_WAIT, WAIT_GROWTH = 0.05, 1.5
WAIT_SHARE, SHORTEST_WAIT, LONGEST_WAIT = 0.05, 0.1, 10.0
POLL_SHARE = 0.05

KEEP_CONNECTION = 1.0  # between longer waits the connection is closed: others may need it
READ_INTERVAL = 5.0  # seconds after which an idle worker reads all trials anyway
TAKEOVER = (3.0, 9.0)  # seconds after which a worker adds what another one should have added
MAX_LOST_RACES = 4  # after so many all trials are read again


@dataclass(frozen=True)
class Plan:
    """What the trials of a study lead to.

    Attributes:
        claimable: Waiting trials to be evaluated next; the most urgent ones only.
        due: What makes each of the trials to add; most plans are not carried out.
        superfluous: Waiting trials to withdraw: duplicates, or of a key that has its result.
        over: Whether all is done.
        attributes: User attributes that claimable trials lack, by trial id.
    """

    claimable: Sequence[FrozenTrial] = ()
    due: Sequence[Callable[[], FrozenTrial]] = ()
    superfluous: Sequence[FrozenTrial] = ()
    over: bool = False
    attributes: dict[int, dict[str, Any]] = field(default_factory=dict)


class TrialQueue(ABC):
    """Hands out the trials of a study; `over` when all was done at the last read."""

    records_usage_errors = False  # as a failure of the trial

    def __init__(
        self,
        study: Study,
        *,
        heartbeat_interval: float = heartbeat.HEARTBEAT_INTERVAL,
        grace_period: float = heartbeat.GRACE_PERIOD,
    ) -> None:
        self.study = study
        self.heartbeat_interval = heartbeat_interval
        self.over = False
        self._storage: Any = storage_of(study)
        self._stale = StaleTrials(self._storage, grace_period)
        self._plan = Plan()
        self._claimable: deque[int] = deque()  # trial ids
        self._read_interval = min(READ_INTERVAL, grace_period / 4)
        self._next_read = 0.0
        self._news: Any = None
        self._own: set[int] = set()  # trials that this worker finished or failed
        self._claimed_at, self._last_number = 0.0, 0
        self._longest_wait = LONGEST_WAIT
        self._takeover: tuple[object, float] = (None, 0.0)

    @abstractmethod
    def plan(self, trials: Sequence[FrozenTrial]) -> Plan:
        """What is to be done, as a function of all trials that count."""

    def wait_for_trial(
        self, stop: threading.Event | None = None, *, deadline: float = math.inf
    ) -> Trial | None:
        """Claim a trial, waiting for one until the queue is over, `stop` is set or time is up."""
        stop, wait = stop or threading.Event(), FIRST_WAIT
        trial = self.claim()
        while trial is None and not (self.over or stop.is_set() or time.monotonic() >= deadline):
            if wait >= KEEP_CONNECTION:
                release_connections(self._storage)
            stop.wait(min(wait * random.uniform(0.5, 1.0), deadline - time.monotonic()))
            began, wait = time.monotonic(), min(WAIT_GROWTH * wait, self._longest_wait)
            if self._has_news():
                trial = self.claim()
            else:
                wait = max(wait, min((time.monotonic() - began) / POLL_SHARE, LONGEST_WAIT))
        release_connections(self._storage)
        return trial

    def _has_news(self) -> bool:
        """Poll: whether to try to claim. Announced trials are claimed without reading all."""
        if time.monotonic() >= self._next_read:
            return True
        before, self._news = self._news, self.study.user_attrs.get(NEWS)
        if self._news == before or self._news is None:
            return False
        self._claimable = deque(self._news[0])
        # With as many workers as candidates, each begins at the index of its last one.
        self._claimable.rotate(-(self._last_number % max(1, len(self._claimable))))
        return True

    def claim(self) -> Trial | None:
        """Claim the next trial; None if all is done, or others evaluate what is left."""
        lost_races = 0
        while self._claimable or self._read():
            if (trial := self._claim(self._claimable.popleft())) is not None:
                return trial
            random.shuffle(self._claimable)  # others may try the same ones in the same order
            lost_races += 1
            if lost_races % MAX_LOST_RACES == 0:
                self._claimable.clear()
        return None

    def _claim(self, trial_id: int) -> Trial | None:
        try:
            if not self._storage.set_trial_state_values(trial_id, TrialState.RUNNING):
                return None
            for key, value in self._plan.attributes.get(trial_id, {}).items():
                self._storage.set_trial_user_attr(trial_id, key, value)
            write_heartbeat(self._storage, trial_id)
        except UpdateFinishedTrialError:
            return None  # withdrawn, or this process was too slow
        trial = Trial(self.study, trial_id)
        self._claimed_at, self._last_number = time.monotonic(), trial.number
        return trial

    def _read(self) -> bool:
        """Read all trials, fail stale ones, add and withdraw; whether any can be claimed."""
        trials = counted_trials(self.study)
        if stale := self._stale.fail(trials):
            self._own.update(stale)
            trials = counted_trials(self.study)
        plan, added = self.plan(trials), set[int]()
        # In the end every worker clears up, so that no duplicate stays behind.
        while (plan.due or plan.superfluous) and (plan.over or self._is_my_turn(trials)):
            for trial in plan.superfluous:
                self._withdraw(trial)
            newly_added = self._add(plan.due)
            added.update(newly_added)
            another_adds = bool(plan.due) and not newly_added
            trials = counted_trials(self.study)
            plan = self.plan(trials)
            if another_adds:
                break
        if added or (plan.over and not self.over):
            self._announce(plan, added)
        self.over, self._plan = plan.over, plan
        self._claimable = deque(map(trial_id_of, plan.claimable))
        self._next_read = time.monotonic() + self._read_interval
        return bool(self._claimable)

    def _is_my_turn(self, trials: Sequence[FrozenTrial]) -> bool:
        """Whether this worker has the newest result, or starts alone; others wait some seconds."""
        ended = [t for t in trials if t.datetime_complete and WITHDRAWN not in t.user_attrs]
        # Some databases store whole seconds, so several results may be the newest.
        newest = max((t.datetime_complete for t in ended if t.datetime_complete), default=None)
        if any(t.datetime_complete == newest and trial_id_of(t) in self._own for t in ended):
            return True
        if self._next_read == 0.0 and all(trial.state.is_finished() for trial in trials):
            return True
        state = (len(trials), len(ended))
        if self._takeover[0] != state:
            self._takeover = (state, time.monotonic() + random.uniform(*TAKEOVER))
        return time.monotonic() >= self._takeover[1]

    def _add(self, due: Sequence[Callable[[], FrozenTrial]]) -> list[int]:
        """Add trials; returns their ids, none if another worker adds the same ones just now."""
        added: list[int] = []
        for make in due:
            added.append(self._storage.create_new_trial(study_id_of(self.study), make()))
            if len(added) == 1:
                for trial in self.plan(counted_trials(self.study)).superfluous:
                    if trial_id_of(trial) in added:
                        self._withdraw(trial)
                        return []
        return added

    def _withdraw(self, waiting: FrozenTrial) -> None:
        """Fail a waiting trial; claimed first, so that no worker evaluates it."""
        trial_id = trial_id_of(waiting)
        with contextlib.suppress(UpdateFinishedTrialError):
            # The mark tells others what is left to do if this process dies before the end.
            self._storage.set_trial_user_attr(trial_id, WITHDRAWN, True)
            if self._storage.set_trial_state_values(trial_id, TrialState.RUNNING):
                self._storage.set_trial_state_values(trial_id, TrialState.FAIL)

    def _announce(self, plan: Plan, added: Container[int]) -> None:
        """Tell idle workers which trials were added, without duplicates, or that all is done."""
        claimable = [trial_id_of(trial) for trial in plan.claimable]
        self._news = [[each for each in claimable if each in added][:100], plan.over]
        if self.study.user_attrs.get(NEWS) != self._news:
            self.study.set_user_attr(NEWS, self._news)

    def finish(
        self, trial: Trial, value: float | None = None, *, state: TrialState | None = None
    ) -> bool:
        """Store the outcome of a trial, by default an abort if its value is not finite.

        Returns False if the trial has failed as stale in the meantime.
        """
        trial_id = trial_id_of(trial)
        if state is None:
            is_abort = value is None or not math.isfinite(value)
            state = TrialState.PRUNED if is_abort else TrialState.COMPLETE
        if state == TrialState.PRUNED:
            value = _last_report(self._storage.get_trial(trial_id))
        # Where evaluations are short, the wait for others must be short too.
        share = WAIT_SHARE * (time.monotonic() - self._claimed_at)
        self._longest_wait = min(max(SHORTEST_WAIT, share), LONGEST_WAIT)
        try:
            values = None if value is None else [value]
            stored = self._storage.set_trial_state_values(trial_id, state, values)
        except UpdateFinishedTrialError:
            # A call whose answer was lost in an outage may have succeeded.
            found = self._storage.get_trial(trial_id)
            stored = found.state == state and STALE not in found.user_attrs
        if not stored:
            _logger.warning(
                f"Trial {trial.number} ended after it had failed as stale; its result is dropped."
            )
        self._own.add(trial_id)
        if state != TrialState.COMPLETE:
            self._claimable.clear()  # the retry goes first
        return bool(stored)

    def release(self, trial: Trial) -> None:
        """Give back a trial that this worker will not finish; it does not count as a failure."""
        fail_trial(self._storage, trial_id_of(trial), RELEASED)
        self._own.add(trial_id_of(trial))
        self._claimable.clear()


def _last_report(trial: FrozenTrial) -> float | None:
    """What Optuna stores as the value of a pruned trial."""
    last = None if trial.last_step is None else trial.intermediate_values[trial.last_step]
    return None if last is None or math.isnan(last) else last


def counted_trials(study: Study, states: Container[TrialState] | None = None) -> list[FrozenTrial]:
    """The trials of a study, without those of an earlier recipe; not to be changed."""
    first = study.user_attrs.get(FIRST_TRIAL) or 0
    trials = study.get_trials(deepcopy=False, states=states)
    return [trial for trial in trials if trial.number >= first] if first else trials


def has_results(study: Study) -> bool:
    """Whether any evaluation has ended; an abort is a result, a failure is none."""
    return bool(counted_trials(study, (TrialState.COMPLETE, TrialState.PRUNED)))


@dataclass(frozen=True)
class Failure:
    """An exception as a database can hold it; a usage error has no traceback."""

    type: str
    message: str
    traceback: str = ""
    is_usage: bool = False
    worker: str = ""

    @property
    def in_words(self) -> str:
        """The exception without its traceback."""
        return self.message if self.is_usage else f"{self.type}: {self.message}"

    def __str__(self) -> str:
        return self.traceback or self.in_words


def record_failure(trial: Trial, error: Exception) -> Failure:
    """Store an exception with the trial that it ends: a message and the end of the traceback."""
    is_usage = isinstance(error, UsageError)
    lines = [] if is_usage else "".join(traceback.format_exception(error)).splitlines()
    message, end = str(error)[:4000], "\n".join(lines[-20:])[-4000:]
    worker = f"process {os.getpid()} on {platform.node()}"
    failure = Failure(type(error).__name__, message, end, is_usage, worker)
    with contextlib.suppress(UpdateFinishedTrialError):  # it has failed as stale
        trial.set_user_attr(ERROR, asdict(failure))
    return failure


def failure_of(trial: FrozenTrial) -> Failure | None:
    """The exception that a trial ended with; None if its worker was killed."""
    content = trial.user_attrs.get(ERROR)
    return None if content is None else Failure(**content)
