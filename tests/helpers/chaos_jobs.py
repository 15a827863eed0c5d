"""Searches and verdicts to be attacked: what one evaluation is, and what must come of all.

An evaluation's value, its reports and whether it is aborted come from its training seed only, as
those of a training do, so any disturbed run can be held against a serial one in memory.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from optuna_taylorglo.attributes import ATTEMPT, GENERATION, INDEX, KEY
from optuna_taylorglo.search.candidates import MAX_FAILURES
from optuna_taylorglo.search.sampler import TaylorGLOSampler
from optuna_taylorglo.search.scheduler import GenerationScheduler
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

    params: dict[str, float]
    value: float | None
    reports: dict[int, float]


@dataclass(frozen=True)
class Storage:
    """Where a job is kept, and how patient its workers are.

    Attributes:
        url: As `open_storage` takes it.
        heartbeat: Seconds between two heartbeats.
        grace: Seconds without one until a trial is suspect.
    """

    url: str
    heartbeat: float = 1
    grace: float = 4

    def open(self) -> Any:
        return open_storage(self.url, patience=WORKER_PATIENCE)

    def queue(self, job: Job) -> TrialQueue:
        """The queue of a job here."""
        return job.queue(self.open(), heartbeat_interval=self.heartbeat, grace_period=self.grace)


class RaisedNowAndThen(Exception):
    """An evaluation's own exception."""


@dataclass(frozen=True)
class Raising:
    """Which evaluations end with an exception.

    Attributes:
        directory: Where it is counted, for all processes.
        share: How many do, unless their candidate has had its share.
        limit: Exceptions of one candidate, at most.
    """

    directory: Path
    share: float
    limit: int = MAX_FAILURES

    def maybe_raise(self, candidate: str) -> None:
        if random.random() >= self.share:
            return
        for number in range(self.limit):
            mark = self.directory / f"raised-{candidate.replace('/', '-')}-{number}"
            with contextlib.suppress(FileExistsError):
                os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
                raise RaisedNowAndThen(candidate)


class Job(ABC):
    """Work for many processes."""

    study_name: str

    @abstractmethod
    def outlasts_attacks(self, place: Place) -> bool:
        """Whether an evaluation is not finished before the last attack.

        One at the end is not, at least, so that no job is done too early to be attacked.
        """

    @abstractmethod
    def queue(self, storage: Any = None, **heartbeat: float) -> TrialQueue:
        """The queue, in a storage or in memory, made if need be."""

    @abstractmethod
    def next_trial(self, queue: Any) -> Trial | None:
        """Wait for a trial; None when all is done."""

    @abstractmethod
    def place(self, trial: Trial | FrozenTrial) -> Place | None:
        """What a trial is of; None if it is of nothing that this job knows."""

    @abstractmethod
    def evaluate(self, queue: Any, trial: Trial) -> Outcome:
        """The outcome, after some time and some reports."""

    @abstractmethod
    def expected(self) -> Mapping[Place, Outcome]:
        """What undisturbed work gives."""

    def stored(self, study: Study) -> dict[Place, list[Outcome]]:
        """What a study has, by place: everything that came to its end."""
        return self.outcomes(study.get_trials(deepcopy=False))

    def outcomes(self, trials: Sequence[FrozenTrial]) -> dict[Place, list[Outcome]]:
        """What trials came to, by place, those left out that came to nothing."""
        found: dict[Place, list[Outcome]] = {}
        for trial in trials:
            place = self.place(trial)
            ended = trial.state in (TrialState.COMPLETE, TrialState.PRUNED)
            if place is not None and ended:
                value = trial.value if trial.state == TrialState.COMPLETE else None
                outcome = Outcome(trial.params, value, trial.intermediate_values)
                found.setdefault(place, []).append(outcome)
        return found

    def conclude(self, queue: TrialQueue, trial: Trial, outcome: Outcome) -> bool:
        """Hand the outcome over; False if it came too late."""
        if outcome.value is None:
            return queue.finish(trial, state=TrialState.PRUNED)
        return queue.finish(trial, outcome.value)


@dataclass(frozen=True)
class SearchJob(Job):
    """A search with a noisy objective, aborts and several reports an evaluation.

    Attributes:
        generations: How long.
        popsize: Candidates a generation.
        seconds: Longest time of an evaluation.
        slow: Slots whose evaluations are not finished before the last attack.
        raising: Which evaluations raise.
    """

    generations: int = 4
    popsize: int = 8
    seconds: float = 0.03
    slow: frozenset[int] = frozenset()
    raising: Raising | None = None
    study_name: str = "a"

    def queue(self, storage: Any = None, **heartbeat: float) -> GenerationScheduler:
        study = optuna.create_study(
            study_name=self.study_name,
            storage=storage,
            sampler=TaylorGLOSampler(popsize=self.popsize, attempts=3, max_failures=MAX_FAILURES),
            direction="maximize",
            load_if_exists=True,
        )
        return GenerationScheduler(study, n_generations=self.generations, **heartbeat)

    def next_trial(self, queue: GenerationScheduler) -> Trial | None:
        return queue.wait_for_trial()

    def place(self, trial: Trial | FrozenTrial) -> Place | None:
        attrs = trial.user_attrs
        if any(key not in attrs for key in (GENERATION, INDEX, ATTEMPT)):
            return None
        return f"{attrs[GENERATION]}/{attrs[INDEX]}/{attrs[ATTEMPT]}"

    def slot(self, place: Place) -> int:
        generation, index, _ = map(int, place.split("/"))
        return generation * self.popsize + index

    def outlasts_attacks(self, place: Place) -> bool:
        return self.slot(place) in self.slow | {self.generations * self.popsize - 1}

    def evaluate(self, queue: GenerationScheduler, trial: Trial) -> Outcome:
        return self._evaluate(queue, trial, self.seconds)

    def _evaluate(self, queue: GenerationScheduler, trial: Trial, seconds: float) -> Outcome:
        place = self.place(trial)
        assert place is not None
        theta = queue.sampler.suggest(trial)
        dice = random.Random(training_seed(0, *map(int, place.split("/"))))
        reports = {step: dice.random() for step in (1, 2, 3)}
        for step, value in reports.items():
            time.sleep(seconds / 3)
            trial.report(value, step)
        if seconds and self.raising is not None:
            self.raising.maybe_raise(place.rpartition("/")[0])
        aborted = dice.random() < 0.15
        value = -sum((x - 1) ** 2 for x in theta) + dice.gauss(0, 0.1)
        return Outcome(dict(trial.params), None if aborted else value, reports)

    def expected(self) -> Mapping[Place, Outcome]:
        queue = self.queue()
        while (trial := queue.claim()) is not None:
            self.conclude(queue, trial, self._evaluate(queue, trial, 0.0))
        return {place: only for place, (only,) in self.stored(queue.study).items()}


@dataclass(frozen=True)
class VerdictJob(Job):
    """The trainings of a verdict, of which some diverge.

    Attributes:
        n_tasks: How many.
        seconds: How long each takes.
        raising: Which trainings raise.
    """

    n_tasks: int = 100
    seconds: float = 0.03
    raising: Raising | None = None
    study_name: str = "a-verdict"
    tasks: Sequence[Task] = field(init=False)

    def __post_init__(self) -> None:
        loss = ComparedLoss("ce", "cross-entropy", "cross-entropy", Role.REFERENCE)
        tasks = [Task(loss, seed, 5, "steps", True) for seed in range(self.n_tasks)]
        object.__setattr__(self, "tasks", tasks)

    def queue(self, storage: Any = None, **heartbeat: float) -> TaskQueue:
        study = optuna.create_study(
            study_name=self.study_name, storage=storage, direction="maximize", load_if_exists=True
        )
        queue = TaskQueue(study, **heartbeat)
        queue.enqueue(self.tasks)
        return queue

    def next_trial(self, queue: TaskQueue) -> Trial | None:
        while queue.results(self.tasks) is None:
            deadline = time.monotonic() + 1.0
            trial = queue.wait_for_trial(deadline=deadline)
            if trial is not None:
                return trial
        return None

    def place(self, trial: Trial | FrozenTrial) -> Place | None:
        return trial.user_attrs.get(KEY)

    def outlasts_attacks(self, place: Place) -> bool:
        return place == self.tasks[-1].key

    def evaluate(self, queue: TaskQueue, trial: Trial) -> Outcome:
        time.sleep(self.seconds)
        task = Task.of(trial)
        if self.raising is not None:
            self.raising.maybe_raise(task.key)
        return self._outcome(task)

    def _outcome(self, task: Task) -> Outcome:
        dice = random.Random(task.seed)
        return Outcome({}, None if dice.random() < 0.1 else dice.random(), {})

    def expected(self) -> Mapping[Place, Outcome]:
        return {task.key: self._outcome(task) for task in self.tasks}
