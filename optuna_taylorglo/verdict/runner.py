"""Trainings for verdicts and sweeps: as trials of an evaluation study, and how each is done."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import optuna
from optuna.logging import get_logger
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState, create_trial

from optuna_taylorglo.attributes import ASKED_ANEW, KEY, RELEASED, STALE, TASK, WITHDRAWN, WORKER
from optuna_taylorglo.errors import TrainingFailed, UsageError
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.search.candidates import loss_conventions
from optuna_taylorglo.search.generations import MAX_STALE
from optuna_taylorglo.study.queue import Plan, TrialQueue, counted_trials, failure_of
from optuna_taylorglo.study.storages import release_connections
from optuna_taylorglo.training.callbacks import OnCurve
from optuna_taylorglo.training.runtime import RuntimeConfig
from optuna_taylorglo.training.training import OnTrained, Training
from optuna_taylorglo.verdict.tasks import Task

_logger = get_logger(__name__)

MAX_FAILURES = 3
"""Exceptions of one training after which it is not repeated."""

IDLE_SECONDS = 30.0
"""Time without a training waiting or running after which a verdict counts as complete."""

_OPEN, _DIVERGED, _FAILED = "open", "diverged", "failed"

ByKey = dict[object, list[FrozenTrial]]


class TaskQueue(TrialQueue):
    """The trainings of an evaluation study.

    Args:
        study: The evaluation study.
        idle_seconds: Time without a training waiting or running after which the queue is over;
            `IDLE_SECONDS` unless given.
        heartbeat: Intervals, as `TrialQueue` takes them.

    Attributes:
        wanted: Trainings to add; when they are done, the queue is over. None: those that others
            add.
    """

    records_usage_errors = True

    def __init__(self, study: Study, idle_seconds: float | None = None, **heartbeat: float) -> None:
        super().__init__(study, **heartbeat)
        # Trainings have no parameters; Optuna's default sampler would read all trials for each.
        study.sampler = optuna.samplers.RandomSampler()
        self.wanted: Sequence[Task] | None = None
        self._idle_seconds = idle_seconds
        self._idle_since = math.inf
        # Keys that were open at some time since this queue was made, and checked trials.
        self._seen_open: set[str] = set()
        self._checked: dict[int, bool] = {}

    def enqueue(self, tasks: Sequence[Task]) -> None:
        """Add the trainings that are neither done, nor running, nor waiting, at once.

        Those that failed before this queue was made are tried again: the cause may be gone.
        """
        if due := self._missing(_by_key(counted_trials(self.study)), tasks):
            added = self._add(due)
            self._announce(self.plan(counted_trials(self.study)), added)
        self._seen_open.update(task.key for task in tasks)
        release_connections(self._storage)

    def _missing(self, known: ByKey, tasks: Sequence[Task]) -> list[Callable[[], FrozenTrial]]:
        """Makes the trials to add so that some trainings are done."""
        due: list[Callable[[], FrozenTrial]] = []
        for task in {task.key: task for task in tasks}.values():
            if task.key not in known:
                due.append(partial(_new_trial, task))
            elif _outcome(known[task.key]) == _FAILED and task.key not in self._seen_open:
                due.append(partial(_new_trial, task, {ASKED_ANEW: True}))
        return due

    def plan(self, trials: Sequence[FrozenTrial]) -> Plan:
        known = _by_key(trials)
        waiting = [trial for trial in trials if trial.state == TrialState.WAITING]
        superfluous = [trial for trial in waiting if not self._is_training(trial)]
        claimable: list[tuple[bool, FrozenTrial]] = []
        repeats: list[Callable[[], FrozenTrial]] = []
        for same in known.values():
            unfinished = [trial for trial in same if not trial.state.is_finished()]
            if _outcome(same) != _OPEN:
                superfluous += [t for t in unfinished if t.state == TrialState.WAITING]
            elif not unfinished:
                repeats.append(partial(_repeat, same[0]))
            else:
                first, *others = unfinished
                superfluous += [t for t in others if t.state == TrialState.WAITING]
                if first.state == TrialState.WAITING and self._is_training(first):
                    claimable.append((len(same) == 1, first))
        # Repeats first: if all trainings end with the same exception, three are enough.
        most_urgent = min((is_new for is_new, _ in claimable), default=None)
        due = repeats + self._missing(known, self.wanted or ())
        busy = due or any(not trial.state.is_finished() for trial in trials)
        return Plan(
            claimable=[trial for is_new, trial in claimable if is_new == most_urgent],
            due=due,
            superfluous=superfluous,
            over=self._is_over(known, busy=bool(busy)),
        )

    def _is_over(self, known: ByKey, *, busy: bool) -> bool:
        if self.wanted is not None:
            return self._results(known, self.wanted) is not None
        self._idle_since = math.inf if busy else min(self._idle_since, time.monotonic())
        limit = IDLE_SECONDS if self._idle_seconds is None else self._idle_seconds
        return time.monotonic() - self._idle_since >= limit

    def _is_training(self, waiting: FrozenTrial) -> bool:
        if waiting.number not in self._checked:
            try:
                Task.of(waiting)
                self._checked[waiting.number] = True
            except Exception as error:
                self._checked[waiting.number] = False
                _logger.warning(
                    f"Trial {waiting.number} of study {self.study.study_name!r} is not a training "
                    f"of a verdict, and is left out: {type(error).__name__}: {error}"
                )
        return self._checked[waiting.number]

    def results(self, tasks: Sequence[Task]) -> list[float | None] | None:
        """Values of trainings in order, None for one that diverged; None while any is open.

        Raises:
            UsageError: If one ended with wrong usage, which no second attempt mends.
            TrainingFailed: If one ended with an exception too often.
        """
        return self._results(_by_key(counted_trials(self.study)), tasks)

    def _results(self, known: ByKey, tasks: Sequence[Task]) -> list[float | None] | None:
        outcomes = self._outcomes(known, tasks)
        if _FAILED in outcomes:
            task = tasks[outcomes.index(_FAILED)]
            raise _reason(task, known[task.key])
        if _OPEN in outcomes:
            return None
        return [None if isinstance(outcome, str) else outcome for outcome in outcomes]

    def count_done(self, tasks: Sequence[Task]) -> int:
        """How many trainings have come to an end, good or bad."""
        return sum(self.which_done(tasks))

    def which_done(self, tasks: Sequence[Task]) -> list[bool]:
        """Whether each training has come to an end, good or bad."""
        known = _by_key(counted_trials(self.study))
        return [outcome != _OPEN for outcome in self._outcomes(known, tasks)]

    def _outcomes(self, known: ByKey, tasks: Sequence[Task]) -> list[float | str]:
        found = []
        for key in (task.key for task in tasks):
            outcome = _outcome(known.get(key, []))
            if outcome == _OPEN:
                self._seen_open.add(key)
            elif outcome == _FAILED and key not in self._seen_open:
                outcome = _OPEN  # it failed before this queue was made, and is tried again
            found.append(outcome)
        return found


def _by_key(trials: Sequence[FrozenTrial]) -> ByKey:
    found: ByKey = {}
    for trial in trials:
        if KEY in trial.user_attrs:
            found.setdefault(trial.user_attrs[KEY], []).append(trial)
    return found


def _new_trial(task: Task, further_attrs: dict[str, Any] | None = None) -> FrozenTrial:
    attrs = {TASK: task.to_dict(), KEY: task.key, "loss": task.loss.label}
    attrs |= {WORKER: None} | (further_attrs or {})
    return create_trial(state=TrialState.WAITING, user_attrs=attrs)


def _repeat(trial: FrozenTrial) -> FrozenTrial:
    attrs = {name: trial.user_attrs.get(name) for name in (TASK, KEY, "loss")}
    return create_trial(state=TrialState.WAITING, user_attrs=attrs | {WORKER: None})


def _outcome(trials: Sequence[FrozenTrial]) -> float | str:
    """What became of a training: its value, or `_DIVERGED`, `_FAILED` or `_OPEN`."""
    for trial in trials:
        if trial.state == TrialState.COMPLETE:
            return float(trial.values[0])
    if any(trial.state == TrialState.PRUNED for trial in trials):
        return _DIVERGED  # and would do so again
    if not trials or any(not trial.state.is_finished() for trial in trials):
        return _OPEN
    failures, stale = _failures(trials)
    told = [failure for trial in failures if (failure := failure_of(trial)) is not None]
    hopeless = (
        len(failures) >= MAX_FAILURES
        or any(failure.is_usage for failure in told)
        or len(stale) > MAX_STALE
    )
    return _FAILED if hopeless else _OPEN


def _failures(trials: Sequence[FrozenTrial]) -> tuple[list[FrozenTrial], list[FrozenTrial]]:
    """Exceptions of a training since it was last asked for, and workers that were lost over it."""
    anew = max((t.number for t in trials if t.user_attrs.get(ASKED_ANEW)), default=0)
    failed = [t for t in trials if t.state == TrialState.FAIL and t.number >= anew]
    marks = (RELEASED, STALE, WITHDRAWN)
    exceptions = [t for t in failed if not any(mark in t.user_attrs for mark in marks)]
    return exceptions, [t for t in failed if STALE in t.user_attrs]


def _reason(task: Task, trials: Sequence[FrozenTrial]) -> UsageError | TrainingFailed:
    """Why a training failed for good."""
    failures, stale = _failures(trials)
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
        count = len(stale) or len(failures)
        lines = [f"{training} crashed {count} workers, perhaps for lack of memory."]
    return TrainingFailed(
        "\n".join(lines)
        + "\nNone of it counts as a result: when the cause is mended, the same command trains it "
        "again."
    )


class TaskRunner:
    """Does tasks as a recipe says.

    Args:
        recipe: The recipe of the study that the tasks belong to.
        runtime: Where it runs.
        stop: Ends a task with `StopRequested` when set.
    """

    def __init__(
        self, recipe: Recipe, runtime: RuntimeConfig, stop: threading.Event | None = None
    ) -> None:
        self.recipe = recipe
        self.runtime = runtime
        self.stop = stop
        self._trainings: dict[str, Training] = {}

    def __call__(
        self,
        task: Task,
        on_trained: OnTrained = lambda module: None,
        on_curve: OnCurve | None = None,
    ) -> float:
        """Train, and return the metric that judges.

        Args:
            task: The task.
            on_trained: Called with the trained module.
            on_curve: Called with the validation metric over the course of a verdict's training.

        Raises:
            Diverged: If the loss stopped being finite.
        """
        training = self._training(task)
        return training.run(
            task.loss.criterion(loss_conventions(training.recipe)),
            seed=task.seed,
            steps=training.in_steps(task.length, task.unit),
            on_test_set=task.on_test_set,
            on_trained=on_trained,
            stop=self.stop,
            # A sweep's trainings have none: nobody looks at so many.
            on_curve=on_curve if task.on_test_set and not task.data_args else None,
        )

    def _training(self, task: Task) -> Training:
        variant = json.dumps(task.data_args, sort_keys=True)
        if variant not in self._trainings:
            recipe = self.recipe
            if task.data_args:
                data = recipe.data.changed(init_args=recipe.data.init_args | task.data_args)
                recipe = recipe.changed(data=data)
            self._trainings[variant] = Training(recipe, self.runtime)
        training = self._trainings[variant]
        rate, factor = task.loss.learning_rate, task.loss.learning_rate_factor
        if factor is not None:
            return training.at_learning_rate_factor(factor)
        return training if rate is None else training.at_learning_rate(rate)
