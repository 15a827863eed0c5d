"""The one protocol by which workers share the trials of a study.

All workers of a study hand out trials to themselves under one lock, from what the trials in the
storage say. A trial is added WAITING, with all its parameters; it gets its first sign of life; then
it is set RUNNING. Whatever step a worker dies at, the next one finds a state it can go on from.
"""

from __future__ import annotations

import math
import random
import threading
import time
from abc import ABC, abstractmethod
from datetime import datetime
from typing import Any, ClassVar

from optuna.exceptions import UpdateFinishedTrialError
from optuna.logging import get_logger
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from optuna_taylorglo.attributes import RELEASED, WORKER
from optuna_taylorglo.queue.heartbeat import heartbeat_interval
from optuna_taylorglo.queue.identity import own_identity, worker_of
from optuna_taylorglo.queue.late_words import with_late_words
from optuna_taylorglo.queue.lost_workers import give_up_silent_trials
from optuna_taylorglo.storage.locks import study_lock
from optuna_taylorglo.storage.optuna_private import storage_of, trial_id_of
from optuna_taylorglo.storage.retry import DEFAULT_OUTAGE_LIMIT, retry_during_outage

_logger = get_logger(__name__)

# A worker told to stop has little time; a trial it cannot release is found by its silence.
_RELEASE_LIMIT = 10.0

# Seconds after which a worker says that it waits, and until it says so again.
_FIRST_WORD, _BETWEEN_WORDS = 10.0, 30.0

# Trials of others that it names.
_NAMED = 3


class TrialQueue(ABC):
    """Hands out the trials of a study, watches over them and takes them back.

    ```
    while (trial := queue.wait_for_trial(stop)) is not None:
        with Heartbeat(trial):
            value = evaluate(trial)
        queue.finish(trial, value)
    ```

    Which trial comes next is for subclasses to say. Every method waits for a database that went
    away.

    Args:
        study: The study.

    Attributes:
        over: Whether there will be nothing to do any more.
        tells_of_failures: Whether somebody waits for each trial, and is to be told that it failed.
    """

    tells_of_failures: ClassVar[bool] = False

    def __init__(self, study: Study) -> None:
        self.study = study
        self.over = False
        self._storage: Any = storage_of(study)
        self._outage_limit: float = getattr(self._storage, "outage_limit", DEFAULT_OUTAGE_LIMIT)
        self._stale_check_due = 0.0
        self._idle = True

    @abstractmethod
    def _choose(self) -> FrozenTrial | None:
        """Look at the study, change nothing, and say what to do next.

        Returns:
            A trial of the study that waits, or a new one to be added to it; None if there is
            nothing to do now. Sets `over`.
        """

    @abstractmethod
    def _admit(self, waiting: FrozenTrial) -> bool:
        """Make a trial that waits ready to run, under the lock; False if it must not run."""

    @abstractmethod
    def _place_of_late_result(self, given_up: FrozenTrial) -> dict[str, Any] | None:
        """Where the result of a trial that was given up too early still belongs.

        Returns:
            User attributes of a new trial that holds the result; None if nobody waits for it.
        """

    def wait_for_trial(
        self,
        stop: threading.Event | None = None,
        *,
        longest_wait: float = 2.0,
        deadline: float = math.inf,
    ) -> Trial | None:
        """Claim a trial, waiting for one as long as it takes.

        Args:
            stop: Ends the wait when set.
            longest_wait: Seconds between two looks at the storage, at most.
            deadline: Ends the wait, in terms of `time.monotonic`.

        Returns:
            A running trial, or None when the queue is over, ``stop`` was set or time is up.
        """
        stop = stop or threading.Event()
        wait = 0.05
        silent_until = time.monotonic() + _FIRST_WORD
        while not stop.is_set() and time.monotonic() < deadline:
            trial = self.claim()
            if trial is not None or self.over:
                return trial
            if time.monotonic() >= silent_until:
                _logger.info(self._awaited())
                silent_until = time.monotonic() + _BETWEEN_WORDS
            stop.wait(wait * random.uniform(0.5, 1.0))
            # So slowly that a trial is found within a tenth of the time waited for it.
            wait = min(1.1 * wait, longest_wait)
        return None

    def _awaited(self) -> str:
        """For what a worker with nothing to do waits, in words."""
        running = self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        if not running:
            return "waiting for work"
        now = datetime.now()
        by = []
        for trial in running[:_NAMED]:
            worker = worker_of(trial)
            began = trial.datetime_start or now
            age = max(0, round((now - began).total_seconds()))
            by.append(f"on {worker or 'an unknown worker'} since {age} s")
        if len(running) > _NAMED:
            by.append(f"and {len(running) - _NAMED} more")
        trainings = "1 training" if len(running) == 1 else f"{len(running)} trainings"
        return f"waiting for {trainings}{self._of_what()}: {', '.join(by)}"

    def _of_what(self) -> str:
        """What the trials that run belong to, for the log."""
        return ""

    def claim(self) -> Trial | None:
        """Take the next trial, if there is one to take.

        Returns:
            A running trial, or None: ``over`` tells whether the queue is, or whether others are
            still busy.
        """
        trial_id = retry_during_outage(self._claim, limit=self._outage_limit)
        self._idle = trial_id is None
        return None if trial_id is None else Trial(self.study, trial_id)

    def _claim(self) -> int | None:
        # Waiting workers look in often; they must not queue for the lock to find nothing.
        # The first look, at a long study, takes its time.
        if self._idle:
            nothing = self._choose() is None
            if nothing and time.monotonic() < self._stale_check_due:
                return None
        with study_lock(self._storage, self.study.study_name):
            self._fail_stale_trials()
            while (chosen := self._choose()) is not None:
                if chosen.number < 0:
                    # The next look finds it waiting, in whatever place it has got: the lock can
                    # be lost with its connection, and not everybody who adds trials asks for it.
                    self.study.add_trial(chosen)
                elif self._admit(chosen) and self._start(trial_id_of(chosen)):
                    return trial_id_of(chosen)
        return None

    def _start(self, trial_id: int) -> bool:
        """Set a trial running; False if somebody else was faster."""
        # Before it runs, so that no outage leaves a running trial without its worker's name.
        self._storage.set_trial_user_attr(trial_id, WORKER, own_identity().to_dict())
        # The sign of life comes first, so that the trial never runs unwatched.
        if heartbeat_interval(self._storage) is not None:
            self._storage.record_heartbeat(trial_id)
        return bool(self._storage.set_trial_state_values(trial_id, TrialState.RUNNING))

    def _withdraw(self, waiting: FrozenTrial) -> None:
        """Take a trial that waits, and must never run, out of the queue."""
        self._storage.set_trial_user_attr(trial_id_of(waiting), RELEASED, True)
        self._storage.set_trial_state_values(trial_id_of(waiting), TrialState.FAIL)

    def _fail_stale_trials(self) -> None:
        """Give up trials without signs of life, but do not ask the database at every claim."""
        if time.monotonic() < self._stale_check_due:
            return
        give_up_silent_trials(self.study)
        interval = heartbeat_interval(self._storage) or 60
        self._stale_check_due = time.monotonic() + interval / 4

    def finish(
        self, trial: Trial, value: float | None = None, *, state: TrialState | None = None
    ) -> None:
        """Record the outcome of a trial, however long the database takes.

        A trial given up in the meantime is no error: its result is used if somebody still waits
        for it, else a line in the log says so.

        Args:
            trial: A trial from :meth:`claim`.
            value: The objective's value; one that is not finite counts as an abort.
            state: PRUNED for an abort, FAIL for a failure; otherwise a value is needed.
        """
        if state is None:
            if value is None:
                raise ValueError("value must be a number unless state is PRUNED or FAIL.")
            state = TrialState.COMPLETE if math.isfinite(value) else TrialState.PRUNED
        elif state not in (TrialState.PRUNED, TrialState.FAIL) or value is not None:
            raise ValueError(f"state must be PRUNED or FAIL, without a value, got {state!r}.")
        told = value if state == TrialState.COMPLETE else None
        retry_during_outage(lambda: self._finish(trial, told, state), limit=self._outage_limit)

    def _finish(self, trial: Trial, value: float | None, state: TrialState) -> None:
        # SQLite reads and writes a state in two steps; without the lock, giving up a trial and
        # finishing it could both succeed.
        with study_lock(self._storage, self.study.study_name):
            stored = self.study.tell(trial, value, state, skip_if_finished=True)
            if stored.state == state and (value is None or stored.value == value):
                return
            place = self._place_of_late_result(stored)
            if place is None:
                _logger.warning(
                    f"Trial {trial.number} was given up as lost before it ended as {state.name} "
                    f"with value {value}; its evaluation is repeated."
                )
                return
            late = with_late_words(trial, stored)
            self.study.add_trial(
                create_trial(
                    state=state,
                    value=value,
                    params=late.params,
                    distributions=late.distributions,
                    user_attrs=late.user_attrs | place,
                    intermediate_values=late.intermediate_values,
                )
            )

    def release(self, trial: Trial) -> None:
        """Give back a trial that this worker will not finish; it does not count as a failure."""

        def give_back() -> None:
            trial.set_user_attr(RELEASED, True)
            self._finish(trial, None, TrialState.FAIL)

        try:
            retry_during_outage(give_back, limit=min(_RELEASE_LIMIT, self._outage_limit))
        except UpdateFinishedTrialError:
            pass
        except Exception as error:
            _logger.warning(f"Trial {trial.number} could not be released: {error}")
