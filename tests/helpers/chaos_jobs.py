"""Searches and verdicts to be attacked: what one evaluation is, and what must come of all.

An evaluation's value, its reports and whether it is aborted come from its training seed only, as
those of a training do, so any disturbed run can be compared with a serial one in memory.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from optuna_taylorglo.attributes import ATTEMPT, GENERATION, INDEX, KEY
from optuna_taylorglo.evolution.candidates import MAX_FAILURES
from optuna_taylorglo.evolution.sampler import THETA_NAMES, TaylorGLOSampler
from optuna_taylorglo.evolution.scheduler import GenerationScheduler
from optuna_taylorglo.seeds import training_seed
from optuna_taylorglo.study.open import WORKER_PATIENCE, open_storage
from optuna_taylorglo.study.queue import TrialQueue
from optuna_taylorglo.verdict.runner import TaskQueue
from optuna_taylorglo.verdict.statistics import Role
from optuna_taylorglo.verdict.tasks import ComparedLoss, Task

Place = str
"""What an evaluation is of, on any machine: "generation/index/attempt", or a task's key."""


class Outcome(NamedTuple):
    """All that an evaluation leaves behind; None as value for an abort."""

    params: dict[str, Any]
    value: float | None
    reports: dict[int, float]


@dataclass(frozen=True)
class Storage:
    """Where a job is, with the heartbeat interval and the grace period of its workers."""

    url: str
    heartbeat: float = 1
    grace: float = 4

    def open(self) -> Any:
        return open_storage(self.url, patience=WORKER_PATIENCE)

    def queue(self, job: Job) -> TrialQueue:
        return job.queue(self.open(), heartbeat_interval=self.heartbeat, grace_period=self.grace)


class RaisedNowAndThen(Exception):
    """An evaluation's own exception."""


@dataclass(frozen=True)
class Raising:
    """A share of evaluations that raise, at most `MAX_FAILURES` of a candidate."""

    directory: Path
    share: float

    def maybe_raise(self, candidate: str) -> None:
        if random.random() >= self.share:
            return
        for number in range(MAX_FAILURES):
            mark = self.directory / f"raised-{candidate.replace('/', '-')}-{number}"
            with contextlib.suppress(FileExistsError):
                os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
                raise RaisedNowAndThen(candidate)


class Job:
    """Work for many processes: a queue, what its trials are of, and what comes of them."""

    study_name = "a"
    queue: Callable[..., Any]  # in a storage or in memory, made if need be
    place: Callable[[Any], Place | None]
    evaluate: Callable[[Any, Trial], Outcome]
    expected: Callable[[], Mapping[Place, Outcome]]  # of undisturbed work
    is_last: Callable[[Place], bool]  # such an evaluation waits for the last attack

    def next_trial(self, queue: Any) -> Trial | None:
        return queue.wait_for_trial()

    def params(self, trial: Trial | FrozenTrial) -> dict[str, Any]:
        """All that makes a trial's candidate."""
        return dict(trial.params)

    def stored(self, study: Study) -> dict[Place, list[Outcome]]:
        """The results in a study, by place."""
        return self.outcomes(study.get_trials(deepcopy=False))

    def outcomes(self, trials: Sequence[FrozenTrial]) -> dict[Place, list[Outcome]]:
        found: dict[Place, list[Outcome]] = {}
        for trial in trials:
            place = self.place(trial)
            if place is not None and trial.state in (TrialState.COMPLETE, TrialState.PRUNED):
                value = trial.value if trial.state == TrialState.COMPLETE else None
                outcome = Outcome(self.params(trial), value, trial.intermediate_values)
                found.setdefault(place, []).append(outcome)
        return found

    def conclude(self, queue: TrialQueue, trial: Trial, outcome: Outcome) -> bool:
        """Hand the outcome over; False if it came too late."""
        return queue.finish(trial, outcome.value)


@dataclass(frozen=True)
class SearchJob(Job):
    """A search with a noisy objective, aborts and several reports an evaluation."""

    generations: int = 4
    popsize: int = 8
    seconds: float = 0.03
    raising: Raising | None = None

    def sampler(self) -> BaseSampler:
        return TaylorGLOSampler(
            names=THETA_NAMES, popsize=self.popsize, attempts=3, max_failures=MAX_FAILURES
        )

    def queue(self, storage: Any = None, **heartbeat: float) -> GenerationScheduler:
        study = optuna.create_study(
            study_name=self.study_name,
            storage=storage,
            sampler=self.sampler(),
            direction="maximize",
            load_if_exists=True,
        )
        return GenerationScheduler(study, n_generations=self.generations, **heartbeat)

    def place(self, trial: Trial | FrozenTrial) -> Place | None:
        attrs = [trial.user_attrs.get(key) for key in (GENERATION, INDEX, ATTEMPT)]
        return None if None in attrs else "/".join(map(str, attrs))

    def slot(self, place: Place) -> int:
        generation, index, _ = map(int, place.split("/"))
        return generation * self.popsize + index

    def is_last(self, place: Place) -> bool:
        return self.slot(place) == self.generations * self.popsize - 1

    def fitness(self, queue: GenerationScheduler, trial: Trial) -> float:
        return -sum((x - 1) ** 2 for x in queue.sampler.suggest(trial))

    def evaluate(self, queue: GenerationScheduler, trial: Trial) -> Outcome:
        return self._evaluate(queue, trial, self.seconds)

    def _evaluate(self, queue: GenerationScheduler, trial: Trial, seconds: float) -> Outcome:
        place = self.place(trial)
        assert place is not None
        fitness = self.fitness(queue, trial)
        dice = random.Random(training_seed(0, *map(int, place.split("/"))))
        reports = {step: dice.random() for step in (1, 2, 3)}
        for step, value in reports.items():
            time.sleep(seconds / 3)
            trial.report(value, step)
        if seconds and self.raising is not None:
            self.raising.maybe_raise(place.rpartition("/")[0])
        aborted = dice.random() < 0.15
        value = fitness + dice.gauss(0, 0.1)
        return Outcome(self.params(trial), None if aborted else value, reports)

    def expected(self) -> Mapping[Place, Outcome]:
        queue = self.queue()
        while (trial := queue.claim()) is not None:
            self.conclude(queue, trial, self._evaluate(queue, trial, 0.0))
        return {place: only for place, (only,) in self.stored(queue.study).items()}


@dataclass(frozen=True)
class VerdictJob(Job):
    """The trainings of a verdict, of which some diverge."""

    n_tasks: int = 100
    seconds: float = 0.03

    @cached_property
    def tasks(self) -> list[Task]:
        loss = ComparedLoss("ce", "cross-entropy", "cross-entropy", Role.REFERENCE)
        return [Task(loss, seed, 5, "steps", True) for seed in range(self.n_tasks)]

    def queue(self, storage: Any = None, **heartbeat: float) -> TaskQueue:
        study = optuna.create_study(
            study_name=self.study_name, storage=storage, direction="maximize", load_if_exists=True
        )
        queue = TaskQueue(study, **heartbeat)
        queue.enqueue(self.tasks)
        return queue

    def next_trial(self, queue: TaskQueue) -> Trial | None:
        while queue.results(self.tasks) is None:
            if (trial := queue.wait_for_trial(deadline=time.monotonic() + 1.0)) is not None:
                return trial
        return None

    def place(self, trial: Trial | FrozenTrial) -> Place | None:
        return trial.user_attrs.get(KEY)

    def is_last(self, place: Place) -> bool:
        return place == self.tasks[-1].key

    def evaluate(self, queue: TaskQueue, trial: Trial) -> Outcome:
        time.sleep(self.seconds)
        return self._outcome(Task.of(trial))

    def _outcome(self, task: Task) -> Outcome:
        dice = random.Random(task.seed)
        return Outcome({}, None if dice.random() < 0.1 else dice.random(), {})

    def expected(self) -> Mapping[Place, Outcome]:
        return {task.key: self._outcome(task) for task in self.tasks}
