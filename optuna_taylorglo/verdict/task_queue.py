"""Trainings for verdicts and sweeps as trials of a companion study, which any worker can pull.

A task is a trial that waits in a study of its own, the companion study. Its key, a hash of all that
matters, tells whether it was done before, so nothing is ever trained twice.
"""

from __future__ import annotations

import math
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from optuna.logging import get_logger
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState, create_trial

from optuna_taylorglo.attributes import ASKED_ANEW, KEY, LOST, READY, RELEASED, TASK
from optuna_taylorglo.errors import TrainingFailed, UsageError
from optuna_taylorglo.queue.counted import first_counted
from optuna_taylorglo.queue.failures import failure_of
from optuna_taylorglo.queue.lost_workers import MAX_LOSSES
from optuna_taylorglo.queue.trial_queue import LatePlace, Look, TrialQueue
from optuna_taylorglo.storage.locks import study_lock
from optuna_taylorglo.storage.outage_tolerant import release_connections
from optuna_taylorglo.storage.retry import retry_during_outage
from optuna_taylorglo.verdict.tasks import Task

_logger = get_logger(__name__)

MAX_FAILURES = 3
"""Exceptions of one task after which it is given up."""

IDLE_SECONDS = 30.0
"""Time without a task waiting or running after which a verdict counts as complete."""

_OPEN, _DIVERGED, _GIVEN_UP = "open", "diverged", "given up"


class TaskQueue(TrialQueue):
    """The tasks of a companion study.

    Args:
        study: The companion study.
        idle_seconds: Time without a task waiting or running after which the queue is over;
            `IDLE_SECONDS` unless given.

    Attributes:
        until: Tasks whose end is the end of the queue, in place of that time.
    """

    tells_of_failures = True

    def __init__(self, study: Study, idle_seconds: float | None = None) -> None:
        super().__init__(study)
        self.until: Sequence[Task] | None = None
        self._idle_seconds = idle_seconds
        self._nothing_since = math.inf
        # Keys of tasks that were open at some time since this queue was made.
        self._seen_open: set[str] = set()

    def enqueue(self, tasks: Iterable[Task]) -> None:
        """Queue the tasks that are neither done, nor running, nor waiting.

        What was given up before this queue was made is asked for anew: its cause may be mended.
        """
        by_key = {task.key: task for task in tasks}
        seen = set(self._seen_open)

        def add_missing() -> None:
            with study_lock(self._storage, self.study.study_name):
                while (look := self._look_for(by_key, seen)).due:
                    self._add(look)

        retry_during_outage(add_missing, limit=self._outage_limit)
        self._seen_open.update(by_key)
        self._notices.send()
        release_connections(self._storage)

    def _look_for(self, by_key: Mapping[str, Task], seen: Container[str]) -> Look:
        """Which of some tasks have to be added."""
        trials = self.study.get_trials(deepcopy=False)
        known = self._by_key(trials)
        due = []
        for key, task in by_key.items():
            if key not in known:
                due.append(_new_trial(task))
            elif _outcome(known[key]) == _GIVEN_UP and key not in seen:
                due.append(_new_trial(task, {ASKED_ANEW: True}))
        return Look(len(trials), due)

    def results(self, tasks: Sequence[Task]) -> list[float | None] | None:
        """Values of tasks in order, None for one that diverged; None while any is open.

        Raises:
            UsageError: If one ended with wrong usage, which no second attempt mends.
            TrainingFailed: If one ended with an exception too often.
        """
        outcomes = self._outcomes(tasks)
        if _GIVEN_UP in outcomes:
            raise self._reason(tasks[outcomes.index(_GIVEN_UP)])
        if _OPEN in outcomes:
            return None
        return [None if isinstance(outcome, str) else outcome for outcome in outcomes]

    def count_done(self, tasks: Sequence[Task]) -> int:
        """How many tasks have come to an end, good or bad."""
        return sum(self.which_done(tasks))

    def which_done(self, tasks: Sequence[Task]) -> list[bool]:
        """Whether each task has come to an end, good or bad."""
        return [outcome != _OPEN for outcome in self._outcomes(tasks)]

    def _look(self) -> Look:
        trials = self.study.get_trials(deepcopy=False)
        by_key = self._by_key(trials)
        counted = [trial for trial in trials if trial.number >= first_counted(self.study)]
        waiting = [trial for trial in counted if trial.state == TrialState.WAITING]
        # Repeats come first: if all trainings end with the same exception, three are enough.
        due = [
            create_trial(state=TrialState.WAITING, user_attrs=_lasting_attrs(trials_of_it[0]))
            for trials_of_it in by_key.values()
            if _outcome(trials_of_it) == _OPEN
            and all(trial.state == TrialState.FAIL for trial in trials_of_it)
        ]
        busy = due or waiting or any(trial.state == TrialState.RUNNING for trial in counted)
        now = time.monotonic()
        if busy:
            self._nothing_since = math.inf
        elif self._nothing_since == math.inf:
            self._nothing_since = now
        again_at = math.inf
        if self.until is None:
            longest = IDLE_SECONDS if self._idle_seconds is None else self._idle_seconds
            self.over = now - self._nothing_since > longest
            again_at = self._nothing_since + longest
        else:
            self.over = self.results(self.until) is not None
            if self.over:
                return Look(len(trials))
        not_ready = [
            trial
            for trial in waiting
            if trial.user_attrs.get(READY) != trial.number
            or _outcome(by_key.get(trial.user_attrs.get(KEY), [])) != _OPEN
        ]
        # Apart from what fails, only the end of a round is worth a look.
        in_hand = [
            trials_of_it for trials_of_it in by_key.values() if _outcome(trials_of_it) == _OPEN
        ]
        return Look(len(trials), due, not_ready, results_needed=len(in_hand), again_at=again_at)

    def _is_repeat(self, trial: FrozenTrial) -> bool:
        return True  # what is new comes from `enqueue`

    def _admit(self, waiting: FrozenTrial) -> dict[str, Any] | None:
        try:
            Task.of(waiting)
        except Exception as error:
            _logger.warning(
                f"Trial {waiting.number} of study {self.study.study_name!r} is no training of a "
                f"verdict, and is left out: {type(error).__name__}: {error}"
            )
            return None
        trials = self._trials_by_key().get(waiting.user_attrs.get(KEY), [])
        # Otherwise a result that came late has made it needless.
        return {} if _outcome(trials) == _OPEN else None

    def _place_of_late_result(self, given_up: FrozenTrial) -> LatePlace | None:
        trials = self._trials_by_key().get(given_up.user_attrs.get(KEY), [])
        if _outcome(trials) not in (_OPEN, _GIVEN_UP):
            return None
        return LatePlace({}, [trial for trial in trials if not trial.state.is_finished()])

    def _outcomes(self, tasks: Sequence[Task]) -> list[float | str]:
        known = self._trials_by_key()
        found = []
        for key in (task.key for task in tasks):
            outcome = _outcome(known.get(key, []))
            if outcome == _OPEN:
                self._seen_open.add(key)
            elif outcome == _GIVEN_UP and key not in self._seen_open:
                outcome = _OPEN  # it failed before our time, and is no result
            found.append(outcome)
        return found

    def _reason(self, task: Task) -> UsageError | TrainingFailed:
        """Why a task was given up."""
        trials = self._trials_by_key()[task.key]
        failures = _failures(trials)
        told = [failure for trial in failures if (failure := failure_of(trial)) is not None]
        usage = [failure for failure in told if failure.is_usage]
        if usage:
            return UsageError(f"{usage[-1].message} ({usage[-1].worker})")
        training = f"the training of {task.loss.label} with seed {task.seed}"
        if told:
            last = told[-1]
            heading = f"{training} failed {len(failures)} times"
            lines = [f"{heading}, last ({last.worker}) with {last.in_words}", last.traceback]
        else:
            lines = [
                f"{training} has cost {len(_losses(trials)) or len(failures)} workers their lives, "
                "perhaps for lack of memory."
            ]
        return TrainingFailed(
            "\n".join(lines)
            + "\nNone of it counts as a result: when the cause is mended, the same "
            "command trains it again."
        )

    def _trials_by_key(self) -> dict[object, list[FrozenTrial]]:
        return self._by_key(self.study.get_trials(deepcopy=False))

    def _by_key(self, trials: Sequence[FrozenTrial]) -> dict[object, list[FrozenTrial]]:
        first = first_counted(self.study)
        found: dict[object, list[FrozenTrial]] = {}
        for trial in trials:
            if trial.number >= first and KEY in trial.user_attrs:
                found.setdefault(trial.user_attrs[KEY], []).append(trial)
        return found


def _new_trial(task: Task, further_attrs: dict[str, Any] | None = None) -> FrozenTrial:
    attrs = {TASK: task.to_dict(), KEY: task.key, "loss": task.loss.label}
    return create_trial(state=TrialState.WAITING, user_attrs=attrs | (further_attrs or {}))


def _lasting_attrs(trial: FrozenTrial) -> dict[str, Any]:
    """What a trial says about its task, and not about its own fate."""
    return {
        name: trial.user_attrs[name] for name in (TASK, KEY, "loss") if name in trial.user_attrs
    }


def _outcome(trials: Sequence[FrozenTrial]) -> float | str:
    """What became of a task: its value, or `_DIVERGED`, `_GIVEN_UP` or `_OPEN`."""
    for trial in trials:
        if trial.state == TrialState.COMPLETE:
            return float(trial.values[0])
    if any(trial.state == TrialState.PRUNED for trial in trials):
        return _DIVERGED  # and would do so again
    if not trials or any(not trial.state.is_finished() for trial in trials):
        return _OPEN
    failures = _failures(trials)
    told = [failure for trial in failures if (failure := failure_of(trial)) is not None]
    hopeless = (
        len(failures) >= MAX_FAILURES
        or any(failure.is_usage for failure in told)
        or len(_losses(trials)) > MAX_LOSSES
    )
    return _GIVEN_UP if hopeless else _OPEN


def _failures(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Trials of a task that ended with an exception since it was last asked for."""
    failed = _failed_since_asked(trials)
    return [t for t in failed if not t.user_attrs.get(RELEASED) and LOST not in t.user_attrs]


def _losses(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Trials of a task that were lost with their workers since it was last asked for."""
    return [trial for trial in _failed_since_asked(trials) if LOST in trial.user_attrs]


def _failed_since_asked(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    anew = max((t.number for t in trials if t.user_attrs.get(ASKED_ANEW)), default=0)
    return [trial for trial in trials if trial.state == TrialState.FAIL and trial.number >= anew]
