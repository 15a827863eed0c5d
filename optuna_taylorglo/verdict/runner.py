"""Trainings as trials of an evaluation study: their queue, and how each is done."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial

import optuna
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState, create_trial

from optuna_taylorglo.attributes import ASKED_ANEW, KEY, RELEASED, STALE, TASK, WITHDRAWN, WORKER
from optuna_taylorglo.errors import TrainingFailed, UsageError
from optuna_taylorglo.evolution.candidates import loss_conventions
from optuna_taylorglo.evolution.scheduler import MAX_STALE
from optuna_taylorglo.recipes.schema import TrainingRecipe
from optuna_taylorglo.study.queue import Failure, Plan, TrialQueue, counted_trials, failure_of
from optuna_taylorglo.study.storages import release_connections
from optuna_taylorglo.training.callbacks import Curve, OnCurve
from optuna_taylorglo.training.candidate import Candidate
from optuna_taylorglo.training.function import FunctionTraining
from optuna_taylorglo.training.runtime import RuntimeConfig
from optuna_taylorglo.training.training import OnTrained, Training
from optuna_taylorglo.verdict.tasks import Task

MAX_FAILURES = 3  # exceptions of one training after which it is not repeated
IDLE_SECONDS = 30.0  # after so long without a training to do, a verdict counts as complete

_OPEN, _DIVERGED, _FAILED = "open", "diverged", "failed"

ByKey = dict[str, list[FrozenTrial]]


class TaskQueue(TrialQueue):
    """The trainings of an evaluation study.

    Several trials may stand for one training, which their key tells: it is repeated after
    failures, and two commands may ask for it. The queue adds what is `wanted` and is over when that
    is done; without such trainings, when there was nothing to do for `idle_seconds`.
    """

    records_usage_errors = True

    def __init__(self, study: Study, idle_seconds: float | None = None, **heartbeat: float) -> None:
        super().__init__(study, **heartbeat)
        # Trainings have no parameters; Optuna's default sampler would read all trials for each.
        study.sampler = optuna.samplers.RandomSampler()
        self.wanted: Sequence[Task] | None = None
        self._idle_seconds = IDLE_SECONDS if idle_seconds is None else idle_seconds
        self._idle_since = math.inf
        # Keys that were open at some time since this queue was made: failures before do not count.
        self._seen_open: set[str] = set()

    def enqueue(self, tasks: Sequence[Task]) -> None:
        """Add the trainings that are neither done, nor running, nor waiting.

        Those that failed before this queue was made are tried again: the cause may be gone.
        """
        if due := self._missing(_by_key(counted_trials(self.study)), tasks):
            added = self._add(due)
            self._announce(self.plan(counted_trials(self.study)), added)
        self._seen_open.update(task.key for task in tasks)
        release_connections(self._storage)

    def results(
        self, tasks: Sequence[Task], trials: Sequence[FrozenTrial] | None = None
    ) -> list[float | None] | None:
        """Values of trainings in order, None for one that diverged; None while any is open."""
        known = _by_key(counted_trials(self.study) if trials is None else trials)
        outcomes = self._outcomes(known, tasks)
        if _FAILED in outcomes:
            task = tasks[outcomes.index(_FAILED)]
            raise _error(task, known[task.key])
        if _OPEN in outcomes:
            return None
        return [None if isinstance(outcome, str) else outcome for outcome in outcomes]

    def which_done(self, tasks: Sequence[Task]) -> list[bool]:
        """Whether each training has ended, with or without a result."""
        known = _by_key(counted_trials(self.study))
        return [outcome != _OPEN for outcome in self._outcomes(known, tasks)]

    def plan(self, trials: Sequence[FrozenTrial]) -> Plan:
        """What is to be done, as a function of all trials; those without a key are ignored."""
        known = _by_key(trials)
        superfluous: list[FrozenTrial] = []
        repeats: list[FrozenTrial] = []
        claimable: list[FrozenTrial] = []
        due: list[Callable[[], FrozenTrial]] = []
        is_busy = False
        for same in known.values():
            unfinished = [trial for trial in same if not trial.state.is_finished()]
            is_busy = is_busy or bool(unfinished)
            if _outcome(same) == _OPEN:
                if not unfinished:
                    due.append(partial(_repeat, same[0]))
                elif unfinished[0].state == TrialState.WAITING:
                    (claimable if len(same) == 1 else repeats).append(unfinished[0])
                unfinished = unfinished[1:]
            superfluous += [trial for trial in unfinished if trial.state == TrialState.WAITING]
        due += self._missing(known, self.wanted or ())
        now, is_busy = time.monotonic(), is_busy or bool(due)
        self._idle_since = math.inf if is_busy else min(self._idle_since, now)
        over = now - self._idle_since >= self._idle_seconds
        if self.wanted is not None:
            over = self.results(self.wanted, trials) is not None
        # Repeats first: if all trainings end with the same exception, three are enough.
        return Plan(repeats or claimable, due, superfluous, over)

    def _missing(self, known: ByKey, tasks: Sequence[Task]) -> list[Callable[[], FrozenTrial]]:
        """Makers of the trials to add so that trainings are done."""
        due: list[Callable[[], FrozenTrial]] = []
        for key, task in {task.key: task for task in tasks}.items():
            if key not in known:
                due.append(partial(_new_trial, task))
            elif _outcome(known[key]) == _FAILED and key not in self._seen_open:
                due.append(partial(_new_trial, task, is_anew=True))
        return due

    def _outcomes(self, known: ByKey, tasks: Sequence[Task]) -> list[float | str]:
        outcomes = []
        for key in (task.key for task in tasks):
            outcome = _outcome(known.get(key, []))
            if outcome == _OPEN:
                self._seen_open.add(key)
            elif outcome == _FAILED and key not in self._seen_open:
                outcome = _OPEN  # it is tried again
            outcomes.append(outcome)
        return outcomes


def _by_key(trials: Sequence[FrozenTrial]) -> ByKey:
    found: ByKey = {}
    for trial in trials:
        if KEY in trial.user_attrs:
            found.setdefault(trial.user_attrs[KEY], []).append(trial)
    return found


def _new_trial(task: Task, *, is_anew: bool = False) -> FrozenTrial:
    attrs = {TASK: asdict(task), KEY: task.key, "loss": task.loss.label, WORKER: None}
    anew = {ASKED_ANEW: True} if is_anew else {}
    return create_trial(state=TrialState.WAITING, user_attrs=attrs | anew)


def _repeat(trial: FrozenTrial) -> FrozenTrial:
    attrs = {name: trial.user_attrs.get(name) for name in (TASK, KEY, "loss")}
    return create_trial(state=TrialState.WAITING, user_attrs=attrs | {WORKER: None})


def _outcome(trials: Sequence[FrozenTrial]) -> float | str:
    """The value of a training, or `_DIVERGED`, `_FAILED` or `_OPEN`."""
    for trial in trials:
        if trial.state == TrialState.COMPLETE:
            return float(trial.values[0])
    if any(trial.state == TrialState.PRUNED for trial in trials):
        return _DIVERGED  # as it would again
    if not trials or any(not trial.state.is_finished() for trial in trials):
        return _OPEN
    n_exceptions, n_stale, failures = _failures(trials)
    too_often = n_exceptions >= MAX_FAILURES or n_stale > MAX_STALE
    return _FAILED if too_often or any(failure.is_usage for failure in failures) else _OPEN


def _failures(trials: Sequence[FrozenTrial]) -> tuple[int, int, list[Failure]]:
    """How often a training failed by itself and with its worker since it was last asked for."""
    first = max((t.number for t in trials if t.user_attrs.get(ASKED_ANEW)), default=0)
    failed = [t for t in trials if t.state == TrialState.FAIL and t.number >= first]
    marks = (RELEASED, STALE, WITHDRAWN)
    exceptions = [t for t in failed if not any(mark in t.user_attrs for mark in marks)]
    failures = [failure for t in exceptions if (failure := failure_of(t)) is not None]
    return len(exceptions), sum(STALE in t.user_attrs for t in failed), failures


def _error(task: Task, trials: Sequence[FrozenTrial]) -> UsageError | TrainingFailed:
    """Why a training has no result."""
    n_exceptions, n_stale, failures = _failures(trials)
    for failure in reversed(failures):
        if failure.is_usage:
            return UsageError(f"{failure.message} ({failure.worker})")
    text = f"the training of {task.loss.label} with seed {task.seed} "
    if failures:
        last = failures[-1]
        text += f"failed {n_exceptions} times, last ({last.worker}) with {last.in_words}\n"
        text += last.traceback
    else:
        text += f"crashed {n_stale or n_exceptions} workers, perhaps for lack of memory."
    return TrainingFailed(
        f"{text}\nNone of it counts as a result. Fix the cause and run the same command again."
    )


TrainTask = Callable[[Task, OnTrained, OnCurve], float]
"""Does a task: passes the network and the curve on, and returns the metric that judges."""


class FunctionTaskTrainer:
    """Trains tasks by a user's functions."""

    def __init__(self, training: FunctionTraining, stop: threading.Event | None = None) -> None:
        self.training, self.stop = training, stop

    def __call__(self, task: Task, on_trained: OnTrained, on_curve: OnCurve) -> float:
        """Train, and return the metric that judges."""
        curve: Curve = []
        candidate = Candidate(
            task.loss.criterion(loss_conventions(self.training.recipe)),
            task.seed,
            lr_factor=task.loss.learning_rate_factor or 1.0,
            on_report=lambda step, value: curve.append((step, value)),
            stop=self.stop,
        )
        if not task.on_test_set:
            return self.training.evaluate(candidate)
        value = self.training.test(candidate)
        if curve:
            on_curve(curve)
        return value


class TaskTrainer:
    """Trains tasks as a recipe says; ends with `StopRequested` when `stop` is set."""

    def __init__(
        self, recipe: TrainingRecipe, runtime: RuntimeConfig, stop: threading.Event | None = None
    ) -> None:
        self.recipe, self.runtime, self.stop = recipe, runtime, stop
        self._trainings: dict[str, Training] = {}  # by arguments of the data module

    def __call__(
        self,
        task: Task,
        on_trained: OnTrained = lambda module: None,
        on_curve: OnCurve | None = None,
    ) -> float:
        """Train, and return the metric that judges; `on_curve` is called for a verdict only."""
        training = self._training(task)
        return training.run(
            task.loss.criterion(loss_conventions(training.recipe)),
            seed=task.seed,
            steps=training.in_steps(task.length, task.unit),
            on_test_set=task.on_test_set,
            on_trained=on_trained,
            stop=self.stop,
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
        training, loss = self._trainings[variant], task.loss
        if loss.learning_rate_factor is not None:
            return training.at_learning_rate_factor(loss.learning_rate_factor)
        if loss.learning_rate is not None:
            return training.at_learning_rate(loss.learning_rate)
        return training
