"""Trainings for verdicts and sweeps as trials of a companion study, which any worker can pull.

A task is a trial that waits in a study of its own, the companion study. Its key, a hash of all that
matters, tells whether it was done before, so nothing is ever trained twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState, create_trial

from optuna_taylorglo.attributes import KEY, RELEASED, TASK
from optuna_taylorglo.queue.counted import counted_trials
from optuna_taylorglo.queue.trial_queue import TrialQueue
from optuna_taylorglo.storage.locks import study_lock
from optuna_taylorglo.storage.retry import retry_during_outage
from optuna_taylorglo.verdict.tasks import Task

MAX_FAILURES = 3
"""Crashes of one task after which it counts as failed."""

IDLE_SECONDS = 30.0
"""Time without a task waiting or running after which a verdict counts as complete."""

_OPEN, _FAILED = "open", "failed"


class TaskQueue(TrialQueue):
    """The tasks of a companion study.

    Args:
        study: The companion study.
        idle_seconds: Time without a task waiting or running after which the queue is over;
            `IDLE_SECONDS` unless given.

    Attributes:
        until: Tasks whose end is the end of the queue, in place of that time.
    """

    def __init__(self, study: Study, idle_seconds: float | None = None) -> None:
        super().__init__(study)
        self.until: Sequence[Task] | None = None
        self._idle_seconds = idle_seconds
        self._nothing_since: float | None = None

    def enqueue(self, tasks: Iterable[Task]) -> None:
        """Queue the tasks that are neither done, nor running, nor waiting."""
        tasks = list(tasks)

        def add_missing() -> None:
            with study_lock(self._storage, self.study.study_name):
                known = set(self._trials_by_key())
                for task in tasks:
                    if task.key not in known:
                        known.add(task.key)
                        self.study.add_trial(_new_trial(task))

        retry_during_outage(add_missing, limit=self._outage_limit)

    def results(self, tasks: Sequence[Task]) -> list[float | None] | None:
        """Values of tasks in order, None for one that failed; None while any is open."""
        outcomes = self._outcomes(tasks)
        if _OPEN in outcomes:
            return None
        return [None if isinstance(outcome, str) else outcome for outcome in outcomes]

    def count_done(self, tasks: Sequence[Task]) -> int:
        """How many tasks have come to an end, good or bad."""
        return sum(self.which_done(tasks))

    def which_done(self, tasks: Sequence[Task]) -> list[bool]:
        """Whether each task has come to an end, good or bad."""
        return [outcome != _OPEN for outcome in self._outcomes(tasks)]

    def _choose(self) -> FrozenTrial | None:
        by_key = self._trials_by_key()
        waiting = counted_trials(self.study, (TrialState.WAITING,))
        lost = (
            trials[0]
            for trials in by_key.values()
            if _outcome(trials) == _OPEN and all(t.state == TrialState.FAIL for t in trials)
        )
        chosen = waiting[0] if waiting else next(lost, None)
        running = counted_trials(self.study, (TrialState.RUNNING,))
        now = time.monotonic()
        if chosen is not None or running or self._nothing_since is None:
            self._nothing_since = now
        if self.until is None:
            longest = IDLE_SECONDS if self._idle_seconds is None else self._idle_seconds
            self.over = now - self._nothing_since > longest
        else:
            self.over = self.results(self.until) is not None
            if self.over:
                return None
        if chosen is None or chosen.state == TrialState.WAITING:
            return chosen
        return create_trial(state=TrialState.WAITING, user_attrs=_lasting_attrs(chosen))

    def _admit(self, waiting: FrozenTrial) -> bool:
        if _outcome(self._trials_by_key().get(waiting.user_attrs.get(KEY), [])) == _OPEN:
            return True
        # A result that came late has made it needless.
        self._withdraw(waiting)
        return False

    def _place_of_late_result(self, given_up: FrozenTrial) -> dict[str, Any] | None:
        trials = self._trials_by_key().get(given_up.user_attrs.get(KEY), [])
        return {} if _outcome(trials) == _OPEN else None

    def _outcomes(self, tasks: Sequence[Task]) -> list[float | str]:
        known = self._trials_by_key()
        return [_outcome(known.get(task.key, [])) for task in tasks]

    def _trials_by_key(self) -> dict[object, list[FrozenTrial]]:
        found: dict[object, list[FrozenTrial]] = {}
        for trial in counted_trials(self.study):
            if KEY in trial.user_attrs:
                found.setdefault(trial.user_attrs[KEY], []).append(trial)
        return found


def _new_trial(task: Task) -> FrozenTrial:
    attrs = {TASK: task.to_dict(), KEY: task.key, "loss": task.loss.label}
    return create_trial(state=TrialState.WAITING, user_attrs=attrs)


def _lasting_attrs(trial: FrozenTrial) -> dict[str, Any]:
    """What a trial says about its task, and not about its own fate."""
    return {
        name: trial.user_attrs[name] for name in (TASK, KEY, "loss") if name in trial.user_attrs
    }


def _outcome(trials: Sequence[FrozenTrial]) -> float | str:
    """What became of a task: its value, or `_FAILED` or `_OPEN`."""
    for trial in trials:
        if trial.state == TrialState.COMPLETE:
            return float(trial.values[0])
    if any(trial.state == TrialState.PRUNED for trial in trials):
        return _FAILED  # it diverged, and would do so again
    lost = [t for t in trials if t.state == TrialState.FAIL and not t.user_attrs.get(RELEASED)]
    in_hand = any(not trial.state.is_finished() for trial in trials)
    return _FAILED if len(lost) >= MAX_FAILURES and not in_hand else _OPEN
