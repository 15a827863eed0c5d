"""Single trainings as trials of a companion study, which any worker can pull.

A task says which loss is trained, how long, with which seed and how it is judged. It is a trial
that waits in the queue of a study of its own, the companion study; its key, a hash of all that
matters, tells whether it was done before, so nothing is ever trained twice.
"""

from __future__ import annotations

import hashlib
import json
import threading
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from optuna.exceptions import ExperimentalWarning
from optuna.storages import fail_stale_trials
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from optuna_taylorglo.attributes import KEY, RELEASED, TASK
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.storage.locks import study_lock
from optuna_taylorglo.training.run import Machine, OnTrained, Training
from optuna_taylorglo.verdict.compared_losses import ComparedLoss

_OPEN, _FAILED = "open", "failed"

MAX_FAILURES = 3
"""Crashes of one task after which it counts as failed."""


@dataclass(frozen=True)
class Task:
    """One training.

    Attributes:
        loss: The loss and how it is trained.
        seed: Decides weights, order of data and augmentation.
        length: How long, in `unit`.
        unit: "steps" or "epochs".
        on_test_set: Whether the test set judges, or the recipe's fitness.
        data_args: Arguments of the data module in place of the recipe's.
        keep_network: Whether the trained network is kept as an artifact.
    """

    loss: ComparedLoss
    seed: int
    length: int
    unit: str
    on_test_set: bool
    data_args: dict[str, Any] = field(default_factory=dict)
    keep_network: bool = False

    @property
    def key(self) -> str:
        """A hash of all that the result depends on."""
        content = asdict(self)
        del content["keep_network"]
        for name in ("name", "label"):
            del content["loss"][name]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Task:
        """The task that `to_dict` wrote."""
        return cls(**(content | {"loss": ComparedLoss(**content["loss"])}))


class TaskQueue:
    """The tasks of a companion study.

    Args:
        study: The companion study.
    """

    def __init__(self, study: Study) -> None:
        self.study = study

    def enqueue(self, tasks: Iterable[Task]) -> None:
        """Queue the tasks that are neither done, nor running, nor waiting."""
        with self._lock():
            known = self._trials_by_key()
            for task in tasks:
                if task.key not in known:
                    known[task.key] = []
                    self._add(task)

    def results(self, tasks: Sequence[Task]) -> list[float | None] | None:
        """Values of tasks in order, None for one that failed; None while any is open."""
        known = self._trials_by_key()
        outcomes = [_outcome(known.get(task.key, [])) for task in tasks]
        if _OPEN in outcomes:
            return None
        return [None if isinstance(outcome, str) else outcome for outcome in outcomes]

    def count_done(self, tasks: Sequence[Task]) -> int:
        """How many tasks have come to an end, good or bad."""
        known = self._trials_by_key()
        return sum(_outcome(known.get(task.key, [])) != _OPEN for task in tasks)

    def claim(self) -> tuple[Trial, Task] | None:
        """Take a waiting task, putting lost ones back into the queue; None if there is none."""
        with self._lock():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ExperimentalWarning)
                fail_stale_trials(self.study)
            for trials in self._trials_by_key().values():
                lost = all(trial.state == TrialState.FAIL for trial in trials)
                if lost and _outcome(trials) == _OPEN:
                    self._add(Task.from_dict(trials[0].user_attrs[TASK]))
            if not self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
                return None
            with warnings.catch_warnings():
                # Our own heartbeat runs around every task.
                warnings.filterwarnings("ignore", ".*Heartbeat of storage.*")
                trial = self.study.ask()
        return trial, Task.from_dict(trial.user_attrs[TASK])

    @property
    def open(self) -> bool:
        """Whether tasks are waiting or running."""
        states = (TrialState.WAITING, TrialState.RUNNING)
        return bool(self.study.get_trials(deepcopy=False, states=states))

    def finish(self, trial: Trial, value: float | None, state: TrialState) -> None:
        """Record the outcome; a trial that was given up meanwhile keeps what it has."""
        with self._lock():
            self.study.tell(trial, value, state, skip_if_finished=True)

    def release(self, trial: Trial) -> None:
        """Give back a task that this worker will not finish; it does not count as a failure."""
        trial.set_user_attr(RELEASED, True)
        self.finish(trial, None, TrialState.FAIL)

    def _add(self, task: Task) -> None:
        attrs = {TASK: task.to_dict(), KEY: task.key, "loss": task.loss.label}
        self.study.add_trial(create_trial(state=TrialState.WAITING, user_attrs=attrs))

    def _trials_by_key(self) -> dict[str, list[FrozenTrial]]:
        found: dict[str, list[FrozenTrial]] = {}
        for trial in self.study.get_trials(deepcopy=False):
            if KEY in trial.user_attrs:
                found.setdefault(trial.user_attrs[KEY], []).append(trial)
        return found

    def _lock(self) -> Any:
        return study_lock(self.study._storage, self.study.study_name)


class TaskRunner:
    """Does tasks as a recipe says.

    Args:
        recipe: The recipe of the study that the tasks belong to.
        machine: Where it runs.
        stop: Ends a task with `optuna_taylorglo.errors.StopRequested` when set.
    """

    def __init__(
        self, recipe: Recipe, machine: Machine, stop: threading.Event | None = None
    ) -> None:
        self.recipe = recipe
        self.machine = machine
        self.stop = stop
        self._trainings: dict[str, Training] = {}

    def __call__(self, task: Task, on_trained: OnTrained = lambda module: None) -> float:
        """Train, and return the metric that judges.

        Args:
            task: The task.
            on_trained: Called with the trained module.

        Raises:
            Diverged: If the loss stopped being finite.
        """
        training = self._training(task)
        return training.run(
            task.loss.criterion(),
            seed=task.seed,
            steps=training.in_steps(task.length, task.unit),
            on_test_set=task.on_test_set,
            on_trained=on_trained,
            stop=self.stop,
        )

    def _training(self, task: Task) -> Training:
        variant = json.dumps([task.loss.learning_rate, task.data_args], sort_keys=True)
        if variant not in self._trainings:
            recipe = self.recipe
            if task.loss.learning_rate is not None:
                optimiser = recipe.optimiser.changed(lr=task.loss.learning_rate)
                recipe = recipe.changed(optimiser=optimiser)
            if task.data_args:
                data = recipe.data.changed(init_args=recipe.data.init_args | task.data_args)
                recipe = recipe.changed(data=data)
            self._trainings[variant] = Training(recipe, self.machine)
        return self._trainings[variant]


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
