"""The process that evaluates trials: ``taylorglo-worker --study-name NAME [--recipe FILE]``.

Start as many as you like, on as many machines as can reach the storage; kill any of them.
Exit codes: 0 the search or a limit is reached, 1 failed, 2 wrong usage, 3 every evaluation fails
with the same exception, 130 interrupted.
"""

from __future__ import annotations

if __name__ == "__main__" and not __package__:
    # Run by path, this file's directory is on the path in place of the one that holds the package.
    import sys as _sys
    from pathlib import Path as _Path

    _sys.path[0] = str(_Path(__file__).resolve().parents[1])

import argparse
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from optuna_taylorglo.attributes import (
    ATTEMPT,
    CLASS_WEIGHTS,
    COMPANION_OF,
    CURVE,
    GENERATION,
    INDEX,
    N_CLASSES,
    STOPPED,
)
from optuna_taylorglo.cli.options import (
    RuntimeOptions,
    add_machine_options,
    add_storage_option,
    add_verbosity_options,
    add_version_option,
    positive,
    seconds,
)
from optuna_taylorglo.cli.preflight import rehearse
from optuna_taylorglo.errors import (
    Diverged,
    EvaluationsFail,
    RecipeMismatch,
    StopRequested,
    StudyError,
    TrainingFailed,
)
from optuna_taylorglo.process import (
    BROKEN,
    DONE,
    FAILED,
    INTERRUPTED,
    USAGE,
    configure_logging,
    exit_code,
    frozen_heap,
    stop_on_signals,
)
from optuna_taylorglo.recipes.bundled import find_recipe
from optuna_taylorglo.recipes.in_study import settled_recipe
from optuna_taylorglo.recipes.loading import load_recipe
from optuna_taylorglo.recipes.wording import search_size
from optuna_taylorglo.search.recipe_changes import check_recipe
from optuna_taylorglo.search.study import attach_recipe, direction_of
from optuna_taylorglo.study.open import (
    WORKER_PATIENCE,
    companion_name,
    create_companion,
    open_study,
)
from optuna_taylorglo.study.urls import resolve_storage_url

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import Trial
    from pytorch_lightning import LightningModule

    from optuna_taylorglo.recipes.schema import Recipe
    from optuna_taylorglo.study.failures import Failure
    from optuna_taylorglo.study.queue import TrialQueue
    from optuna_taylorglo.training.machine import Machine
    from optuna_taylorglo.verdict.halving import Round
    from optuna_taylorglo.verdict.tasks import Results

__all__ = ["BROKEN", "DONE", "FAILED", "INTERRUPTED", "USAGE", "WorkerConfig", "main"]

logger = logging.getLogger("optuna_taylorglo.worker")

Decision = TypeVar("Decision")

MAX_FAILURES_IN_A_ROW = 3
"""Failed evaluations after which a worker takes itself for the cause."""

LONGEST_WAIT = 10.0
"""Seconds between two polls of an empty queue, at most."""


@dataclass(frozen=True)
class WorkerConfig:
    """What a worker is told when it starts, by its command line or by another process.

    Attributes:
        study_name: The study.
        storage: Its storage's URL.
        runtime: Where and how it trains.
        recipe: File of the recipe; None for the one in the study.
        check: Whether the recipe is checked before the first trial.
        n_generations: Generations after which to stop, if sooner than the recipe says.
        timeout: Seconds after which no trial is claimed.
        max_trials: Trials after which none is claimed.
        heartbeat: Interval and grace period, as `TrialQueue` takes them.
    """

    study_name: str
    storage: str
    runtime: RuntimeOptions
    recipe: Path | None = None
    check: bool = True
    n_generations: int | None = None
    timeout: float = math.inf
    max_trials: float = math.inf
    heartbeat: dict[str, float] = field(default_factory=dict)

    def run(self) -> int:
        """Work until the search is over, a limit is reached or a signal says stop."""
        configure_logging(verbose=self.runtime.verbose, quiet=self.runtime.quiet)
        stop = stop_on_signals()
        # The imports that follow take seconds.
        logger.info("worker %d starts on study %s", os.getpid(), self.study_name)
        return exit_code(lambda: _run(self, stop), logger, self.study_name)


def build_parser() -> argparse.ArgumentParser:
    """The command line of a worker."""
    parser = argparse.ArgumentParser(
        prog="taylorglo-worker", description="Evaluate candidates of a TaylorGLO study."
    )
    add_version_option(parser)
    parser.add_argument("--study-name", required=True, help="name of the study")
    add_storage_option(parser)
    parser.add_argument(
        "--recipe",
        type=Path,
        metavar="FILE",
        help="recipe of the study, a file or the name of a bundled one; needed once, later workers "
        "find it in the study",
    )
    parser.add_argument(
        "--no-check",
        action="store_true",
        help="skip the check of the recipe (as `taylorglo check`) before the first trial",
    )
    limits = parser.add_argument_group("limits")
    limits.add_argument(
        "--n-generations", type=positive, help="stop after this generation (the recipe's number)"
    )
    limits.add_argument(
        "--timeout", type=seconds, default=math.inf, help="claim no trial after these seconds"
    )
    limits.add_argument(
        "--max-trials", type=positive, default=math.inf, help="stop after this many trials"
    )
    add_machine_options(parser)
    heartbeat = parser.add_argument_group("heartbeat")
    heartbeat.add_argument(
        "--heartbeat-interval",
        type=positive,
        default=60,
        metavar="SECONDS",
        help="time between two heartbeats of a trial (%(default)s)",
    )
    heartbeat.add_argument(
        "--grace-period",
        type=positive,
        default=240,
        metavar="SECONDS",
        help="time without one until a trial is suspect; after half as much again it is given to "
        "another worker (%(default)s)",
    )
    add_verbosity_options(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a worker by its command line."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if arguments.heartbeat_interval >= arguments.grace_period:
        parser.error(
            f"--heartbeat-interval {arguments.heartbeat_interval} must be shorter than "
            f"--grace-period {arguments.grace_period}"
        )
    heartbeat = ("heartbeat_interval", "grace_period")
    return WorkerConfig(
        study_name=arguments.study_name,
        storage=resolve_storage_url(arguments.storage),
        runtime=RuntimeOptions.of(arguments),
        recipe=arguments.recipe,
        check=not arguments.no_check,
        n_generations=arguments.n_generations,
        timeout=arguments.timeout,
        max_trials=arguments.max_trials,
        heartbeat={name: getattr(arguments, name) for name in heartbeat},
    ).run()


def _run(config: WorkerConfig, stop: threading.Event) -> int:
    path = None if config.recipe is None else find_recipe(config.recipe)
    recipe = None if path is None else load_recipe(path)

    def open_(name: str) -> Study:
        direction = "maximize" if recipe is None else direction_of(recipe)
        return open_study(name, config.storage, direction=direction, patience=WORKER_PATIENCE)

    study = open_(config.study_name)
    companion = study if COMPANION_OF in study.user_attrs else None
    if companion is not None:
        study = open_(companion.user_attrs[COMPANION_OF])
    machine = config.runtime.machine()
    to_check = recipe or settled_recipe(study)
    if to_check is not None and config.check:
        rehearse(to_check, machine, path)
    worker = Worker(study, attach_recipe(study, recipe), machine, config, stop)
    worker.balance_classes()
    return worker.train_for_verdict(companion) if companion is not None else worker.work()


class EitherEvent(threading.Event):
    """An event that counts as set when one of several is."""

    def __init__(self, *events: threading.Event) -> None:
        super().__init__()
        self._events = events

    def is_set(self) -> bool:
        return any(event.is_set() for event in self._events)


class Worker:
    """Does what a study needs, stage by stage, together with all other workers.

    Args:
        study: The study.
        recipe: Its recipe.
        machine: Where to train.
        config: What the worker was told.
        stop: Ends the work when set.
    """

    def __init__(
        self,
        study: Study,
        recipe: Recipe,
        machine: Machine,
        config: WorkerConfig,
        stop: threading.Event,
    ) -> None:
        self.study = study
        self.recipe = recipe
        self.machine = machine
        self.config = config
        self.stop = stop
        self._stale = threading.Event()  # the trial in hand has failed as stale
        self._ends = EitherEvent(stop, self._stale)
        self._deadline = time.monotonic() + config.timeout
        self._n_trials = 0

    def work(self) -> int:
        """Pilot, search, selection and verdict, as far as each is due; returns the exit code."""
        from optuna_taylorglo.search.history import SearchHistory
        from optuna_taylorglo.verdict.choice import is_undecided

        url = self.config.storage
        # A worker that was started for the search does not wait for a verdict afterwards.
        idle_seconds = None if SearchHistory(self.study, self.recipe).finished else 0.0
        if self.recipe.budget.evaluation == "auto":
            self.make_pilot(create_companion(self.study, url))
            self.read_recipe()
            if self.recipe.budget.evaluation == "auto" or self.stop.is_set():
                return INTERRUPTED if self.stop.is_set() else DONE
        before = None
        # The search may be made longer, or the selection another one, in the meantime.
        while self.recipe != before and not self.stop.is_set():
            code = self.search()
            if code != DONE or self.limit_reached:
                return code
            if is_undecided(self.study, self.recipe):
                self.select_winner(create_companion(self.study, url))
            before = self.recipe
            self.read_recipe()
        try:
            companion = open_study(companion_name(self.study.study_name), url)
        except StudyError:
            return DONE
        return self.train_for_verdict(companion, idle_seconds)

    @property
    def limit_reached(self) -> bool:
        """Whether to claim no further trial."""
        return self._n_trials >= self.config.max_trials or time.monotonic() >= self._deadline

    def read_recipe(self) -> None:
        """Work by what the study's recipe has become.

        Raises:
            RecipeMismatch: If it is another one.
        """
        check_recipe(self.study, self.recipe)
        self.recipe = attach_recipe(self.study, None)

    def balance_classes(self) -> None:
        """Derive balanced class weights from the training labels, and store them in the study."""
        if self.recipe.loss.class_weights == "balanced":
            from optuna_taylorglo.training.run import Training

            weights = Training(self.recipe, self.machine).recipe.loss.class_weights
            self.study.set_user_attr(CLASS_WEIGHTS, weights)
            self.recipe = attach_recipe(self.study, None)

    def make_pilot(self, companion: Study) -> None:
        """Decide the length of evaluations, unless something ends the work before."""
        from optuna_taylorglo.training.run import Training
        from optuna_taylorglo.verdict.learning_rates import keep_whose_optimiser
        from optuna_taylorglo.verdict.pilot import Pilot, keep_evaluation_length

        training = Training(self.recipe, self.machine)
        n_classes = training.n_classes
        self.study.set_user_attr(N_CLASSES, n_classes)
        keep_whose_optimiser(self.study, training)
        decision = self._train_in_rounds(companion, Pilot(self.recipe, n_classes).next_step)
        if decision is not None:
            keep_evaluation_length(self.study, decision)
            logger.info("evaluations last %d %s", decision.length, self.recipe.budget.unit)

    def search(self) -> int:
        """Evaluate candidates until the search is over or something ends it; the exit code."""
        from optuna_taylorglo.report.dashboard import DashboardRefresher
        from optuna_taylorglo.search.candidates import make_pruner, make_sampler
        from optuna_taylorglo.search.objective import Objective
        from optuna_taylorglo.search.scheduler import GenerationScheduler
        from optuna_taylorglo.training.run import Training
        from optuna_taylorglo.verdict.learning_rates import keep_whose_optimiser

        study, recipe = self.study, self.recipe
        training = Training(recipe, self.machine)
        study.set_user_attr(N_CLASSES, training.n_classes)
        keep_whose_optimiser(study, training)
        study.sampler = sampler = make_sampler(recipe, training.n_classes)
        study.pruner = make_pruner(recipe, training.in_steps)
        n_all = recipe.search.n_generations
        generations = min(self.config.n_generations or n_all, n_all)
        scheduler = GenerationScheduler(study, n_generations=generations, **self.config.heartbeat)
        logger.info(
            "study %s: worker %d on %s, %s%s",
            study.study_name,
            os.getpid(),
            self.machine.torch_device,
            search_size(recipe.search),
            "" if generations == n_all else f", of which {generations} generations",
        )
        dashboard = DashboardRefresher(study, lambda: sampler.read(study).generation)
        failures_in_a_row = 0

        def goes_on(succeeded: bool) -> bool:
            nonlocal failures_in_a_row
            failures_in_a_row = 0 if succeeded else failures_in_a_row + 1
            dashboard.refresh_if_due()
            return failures_in_a_row < MAX_FAILURES_IN_A_ROW

        objective = Objective(training, sampler, self._ends)
        self._evaluate_all(scheduler, objective, _candidate, goes_on)
        if failures_in_a_row >= MAX_FAILURES_IN_A_ROW:
            logger.error("giving up after %d failed evaluations in a row", failures_in_a_row)
            return FAILED
        if self.stop.is_set():
            logger.info("stopped; start the same command again to go on")
            return INTERRUPTED
        dashboard.refresh_at_end()
        if scheduler.over:
            logger.info("the search is over: %d generations are complete", generations)
        else:
            logger.info("limit reached after %d trials", self._n_trials)
        return DONE

    def select_winner(self, companion: Study) -> None:
        """Select by full trainings, unless something ends the work before."""
        from optuna_taylorglo.report.dashboard import refresh_if_installed
        from optuna_taylorglo.verdict.choice import keep_choice
        from optuna_taylorglo.verdict.choosing import Choosing

        choice = self._train_in_rounds(companion, Choosing(self.study, self.recipe).next_step)
        if choice is not None and keep_choice(self.study, choice, self.recipe):
            logger.info("the winner is %s", choice.winner.name)
            refresh_if_installed(self.study)

    def train_for_verdict(self, companion: Study, idle_seconds: float | None = None) -> int:
        """Do trainings for a verdict until there is none for a while; returns the exit code."""
        from optuna_taylorglo.verdict.task_queue import TaskQueue

        queue = TaskQueue(companion, idle_seconds, **self.config.heartbeat)
        self._evaluate_all(queue, self._training_of_tasks(), _training)
        return INTERRUPTED if self.stop.is_set() else DONE

    def _train_in_rounds(
        self, companion: Study, next_step: Callable[[Results], Round | Decision]
    ) -> Decision | None:
        """Do the trainings that a decision needs, round after round.

        Args:
            companion: Where they are queued.
            next_step: From results to the next round, or to the decision.

        Returns:
            The decision; None if the work ended before.
        """
        from optuna_taylorglo.verdict.halving import Round
        from optuna_taylorglo.verdict.task_queue import TaskQueue

        queue = TaskQueue(companion, **self.config.heartbeat)
        train = self._training_of_tasks()
        while isinstance(step := next_step(queue.results), Round):
            queue.wanted = step.tasks
            try:
                self._evaluate_all(queue, train, _training)
            except TrainingFailed as failed:
                # Another process of the same kind would come to the same end.
                raise EvaluationsFail(str(failed)) from failed
            if self.stop.is_set() or self.limit_reached:
                return None
        return step

    def _training_of_tasks(self) -> Callable[[Trial], float]:
        """Does the training that a trial of an evaluation study stands for."""
        from optuna_taylorglo.report.dashboard import keep_network
        from optuna_taylorglo.verdict.task_runner import TaskRunner
        from optuna_taylorglo.verdict.tasks import Task

        runner = TaskRunner(self.recipe, self.machine, self._ends)

        def train(trial: Trial) -> float:
            task = Task.of(trial)

            def keep(module: LightningModule) -> None:
                if task.keep_network:
                    keep_network(trial, module)

            return runner(task, keep, lambda curve: trial.set_user_attr(CURVE, curve))

        return train

    def _evaluate_all(
        self,
        queue: TrialQueue,
        evaluate: Callable[[Trial], float],
        name_of: Callable[[Trial], str],
        goes_on: Callable[[bool], bool] = lambda succeeded: True,
    ) -> None:
        """Evaluate trials until there is none left, a limit is reached or a signal says stop.

        Args:
            queue: Where trials come from.
            evaluate: Turns a trial into its value.
            name_of: What a trial is, for the log.
            goes_on: Told after each trial whether it got a result; says whether to claim another.
        """
        from optuna_taylorglo.study.optuna_private import storage_of
        from optuna_taylorglo.study.storages import release_connections

        longest_wait = LONGEST_WAIT
        failures: list[Failure] = []
        with frozen_heap():
            while not self.stop.is_set() and not self.limit_reached:
                trial = queue.wait_for_trial(
                    self.stop, longest_wait=longest_wait, deadline=self._deadline
                )
                if trial is None:
                    return
                try:
                    check_recipe(self.study, self.recipe)
                except RecipeMismatch:
                    queue.release(trial)
                    raise
                release_connections(storage_of(self.study))
                began = time.monotonic()
                failure = self._evaluate(queue, trial, evaluate, name_of(trial))
                # Where trainings are short, a wait for the others must be short too.
                longest_wait = min(LONGEST_WAIT, max(0.1, (time.monotonic() - began) / 10))
                self._n_trials += 1
                failures = [] if failure is None else [*failures, failure]
                if not self.stop.is_set():
                    _raise_if_hopeless(queue, failures)
                if not goes_on(failure is None):
                    return

    def _evaluate(
        self, queue: TrialQueue, trial: Trial, evaluate: Callable[[Trial], float], name: str
    ) -> Failure | None:
        """Evaluate one trial and store what became of it, with a line in the log.

        Returns:
            None if it got a result, be it an abort; otherwise why it failed or was released.

        Raises:
            UsageError: If the evaluation cannot work here as things are; the trial is released.
        """
        from optuna import TrialPruned
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        from optuna_taylorglo.study.failures import Failure, record_failure
        from optuna_taylorglo.study.heartbeat import Heartbeat
        from optuna_taylorglo.study.queue import has_results

        began = time.monotonic()
        self._stale.clear()
        # Heartbeats go on until the storage has the result.
        with Heartbeat(trial, queue.heartbeat_interval, self._stale.set):
            try:
                value = evaluate(trial)
            except (TrialPruned, Diverged) as early_end:
                outcome = "stopped" if trial.user_attrs.get(STOPPED) else "aborted"
                queue.finish(trial, state=TrialState.PRUNED)
                duration = time.monotonic() - began
                logger.info("%s: %s, %s (%.1f s)", name, outcome, early_end, duration)
                return None
            except (StopRequested, SystemExit, UpdateFinishedTrialError) as end:
                stopped = self.stop.is_set() and not isinstance(end, UpdateFinishedTrialError)
                if isinstance(end, SystemExit) and not stopped:
                    raise
                if stopped:  # Lightning hears SIGTERM too, and may end a training before we do
                    queue.release(trial)
                    logger.info("%s: released", name)
                    return Failure.of(end)
                logger.warning("%s: failed as stale; left to another worker", name)
                return None
            except Exception as error:
                failure = record_failure(trial, error)
                # Wrong usage, or code that has never worked, does not speak against the candidate.
                blameless = failure.is_usage or not has_results(queue.study)
                if blameless and not queue.records_usage_errors:
                    queue.release(trial)
                else:
                    queue.finish(trial, state=TrialState.FAIL)
                if failure.is_usage and not queue.records_usage_errors:
                    raise
                exc_info = None if failure.is_usage else error
                logger.error("%s: failed, %s", name, error, exc_info=exc_info)
                return failure
            queue.finish(trial, value)
        logger.info("%s: %.4f (%.1f s)", name, value, time.monotonic() - began)
        return None


def _raise_if_hopeless(queue: TrialQueue, failures: Sequence[Failure]) -> None:
    """Stop at an exception that no repetition and no other candidate will avoid.

    Raises:
        EvaluationsFail: If the last failures are one and the same, and nothing ever succeeded.
    """
    from optuna_taylorglo.study.queue import has_results

    last = failures[-MAX_FAILURES_IN_A_ROW:]
    same = len({(failure.type, failure.message) for failure in last}) == 1
    if len(last) == MAX_FAILURES_IN_A_ROW and same and not has_results(queue.study):
        raise EvaluationsFail(
            f"every evaluation fails with the same exception; the last of {len(failures)}:\n"
            f"{last[-1]}\nMend its cause and start again: no candidate was used up."
        )


def _candidate(trial: Trial) -> str:
    attrs = trial.user_attrs
    # People count generations and candidates from 1.
    generation, candidate = attrs[GENERATION] + 1, attrs[INDEX] + 1
    name = f"trial {trial.number}: generation {generation}, candidate {candidate}"
    return name + (f", attempt {attrs[ATTEMPT] + 1}" if attrs[ATTEMPT] else "")


def _training(trial: Trial) -> str:
    return f"training {trial.number}: {trial.user_attrs.get('loss')}"


if __name__ == "__main__":
    sys.exit(main())
