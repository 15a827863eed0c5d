"""The process that evaluates trials: ``taylorglo-worker --study-name NAME [--recipe FILE]``."""

from __future__ import annotations

import argparse
import gc
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from optuna import TrialPruned
from optuna.exceptions import UpdateFinishedTrialError
from optuna.study import Study
from optuna.trial import Trial, TrialState

from optuna_taylorglo import attributes, errors
from optuna_taylorglo.attributes import ATTEMPT, EVALUATION_OF, GENERATION, INDEX, STOPPED
from optuna_taylorglo.cli import options
from optuna_taylorglo.process import DONE, configure_logging, exit_code, stop_on_signals
from optuna_taylorglo.recipes.load import find_recipe, load_recipe, settled_recipe
from optuna_taylorglo.recipes.schema import search_size
from optuna_taylorglo.report import dashboard
from optuna_taylorglo.search.candidates import make_pruner, make_sampler
from optuna_taylorglo.search.history import SearchHistory, attach_recipe, check_recipe, direction_of
from optuna_taylorglo.search.scheduler import GenerationScheduler
from optuna_taylorglo.study import open as opening
from optuna_taylorglo.study.heartbeat import GRACE_PERIOD, HEARTBEAT_INTERVAL, heartbeats
from optuna_taylorglo.study.optuna_private import storage_of
from optuna_taylorglo.study.queue import Failure, TrialQueue, has_results, record_failure
from optuna_taylorglo.study.storages import release_connections, resolve_storage_url
from optuna_taylorglo.verdict.baselines import save_optimizer_owner
from optuna_taylorglo.verdict.selection import is_undecided, save_selection, select_winner

if TYPE_CHECKING:  # imported late, since PyTorch takes seconds: wrong usage is answered before
    from optuna_taylorglo.training.training import Training
    from optuna_taylorglo.verdict.runner import TaskQueue
    from optuna_taylorglo.verdict.tasks import Task

logger = logging.getLogger("optuna_taylorglo.worker")

MAX_FAILURES_IN_A_ROW = 3  # after which a worker ends


class LimitReached(Exception):
    """The worker may do no more trainings, and some of a selection are open."""


@dataclass(frozen=True)
class WorkerConfig:
    """The options of a worker; can be sent to another process."""

    study_name: str
    storage: str
    runtime: options.RuntimeOptions
    recipe: Path | None = None
    check: bool = True
    n_generations: int | None = None
    timeout: float = math.inf
    max_trials: float = math.inf
    heartbeat_interval: float = HEARTBEAT_INTERVAL
    grace_period: float = GRACE_PERIOD


def run(config: WorkerConfig) -> int:
    """Work until all is done, a limit is reached or a signal says stop; returns the exit code."""
    configure_logging(verbose=config.runtime.verbose, quiet=config.runtime.quiet)
    stop = stop_on_signals()
    logger.info("worker %d starts on study %s", os.getpid(), config.study_name)
    try:
        return exit_code(lambda: Worker(config, stop).work(), logger, config.study_name)
    finally:
        gc.unfreeze()


class Worker:
    """Does what a study needs, stage by stage, until a limit is reached or `stop` is set."""

    def __init__(self, config: WorkerConfig, stop: threading.Event) -> None:
        self.config = config
        self.stop, self._end_of_trial = stop, EndOfTrial(stop)
        self._n_trials = 0
        settings = ("heartbeat_interval", "grace_period")
        self._heartbeat = {name: getattr(config, name) for name in settings}
        path = None if config.recipe is None else find_recipe(config.recipe)
        recipe = None if path is None else load_recipe(path)
        direction = "maximize" if recipe is None else direction_of(recipe)
        name, url, patience = config.study_name, config.storage, opening.WORKER_PATIENCE
        self.study = opening.open_study(name, url, direction=direction, patience=patience)
        self.evaluation_study: Study | None = None
        if EVALUATION_OF in self.study.user_attrs:
            self.evaluation_study = self.study
            self.study = opening.open_study(self.study.user_attrs[EVALUATION_OF], url)
        self.runtime = config.runtime.machine()
        to_check = recipe or settled_recipe(self.study)
        if to_check is not None and config.check:
            options.dry_run(to_check, self.runtime, path)
        self.recipe = attach_recipe(self.study, recipe)
        self._deadline = time.monotonic() + config.timeout

    @property
    def _limit_reached(self) -> bool:
        return self._n_trials >= self.config.max_trials or time.monotonic() >= self._deadline

    def work(self) -> int:
        """Search, selection and verdict, as far as each is due."""
        if self.evaluation_study is not None:
            self._evaluate_all(*self._open_tasks(self.evaluation_study))
            return DONE
        # A worker that was started for the search does not wait for a verdict afterwards.
        idle_seconds = None if SearchHistory(self.study, self.recipe).finished else 0.0
        before = None
        # Meanwhile, the search may be made longer or the selection changed.
        while self.recipe != before and not self._limit_reached:
            self.search()
            if not self._limit_reached and is_undecided(self.study, self.recipe):
                self.select_winner()
            before = self.recipe
            check_recipe(self.study, before)
            self.recipe = attach_recipe(self.study, None)
        found = opening.find_evaluation_study(self.study)
        if found is not None and EVALUATION_OF in found.user_attrs:
            self._evaluate_all(*self._open_tasks(found, idle_seconds))
        return DONE

    def search(self) -> None:
        """Evaluate candidates until the search is over or a limit is reached."""
        from optuna_taylorglo.search.objective import Objective

        training = self._make_training()
        study, recipe = self.study, self.recipe
        study.sampler = sampler = make_sampler(recipe, training.n_classes)
        study.pruner = make_pruner(recipe, training.in_steps)
        n_generations = recipe.search.total_generations
        n_generations = min(self.config.n_generations or n_generations, n_generations)
        scheduler = GenerationScheduler(study, n_generations=n_generations, **self._heartbeat)
        logger.info("%s on %s", search_size(recipe.search), self.runtime.torch_device)
        figures = dashboard.DashboardRefresher(study, lambda: sampler.read(study).generation)
        objective = Objective(training, sampler, self._end_of_trial)
        self._evaluate_all(scheduler, objective, figures.refresh_if_due)
        figures.refresh_at_end()
        if scheduler.over:
            logger.info("the search is over: %d generations are complete", n_generations)
        else:
            logger.info("limit reached after %d trials", self._n_trials)

    def _make_training(self) -> Training:
        """What trains candidates; what it finds in data and module is stored in the study."""
        from optuna_taylorglo.training.training import Training

        training = Training(self.recipe, self.runtime)
        self.study.set_user_attr(attributes.N_CLASSES, training.n_classes)
        save_optimizer_owner(self.study, training)
        if self.recipe.loss.class_weights == "balanced":
            self.study.set_user_attr(attributes.CLASS_WEIGHTS, training.recipe.loss.class_weights)
        if training.recipe != self.recipe:
            self.recipe = attach_recipe(self.study, None)
        return training

    def select_winner(self) -> None:
        """Select the winner of a complete search by full trainings."""
        evaluation_study = opening.create_evaluation_study(self.study, self.config.storage)
        queue, objective = self._open_tasks(evaluation_study)

        def run(tasks: Sequence[Task]) -> list[float | None]:
            queue.wanted = tasks
            try:
                self._evaluate_all(queue, objective)
                results = queue.results(tasks)
            except errors.TrainingFailed as failed:
                # Another worker would fail in the same way.
                raise errors.EvaluationsFail(str(failed)) from failed
            if results is None:
                raise LimitReached
            return results

        with suppress(LimitReached):
            selection = select_winner(self.study, self.recipe, run)
            if save_selection(self.study, selection, self.recipe):
                logger.info("the winner is %s", selection.winner.name)
                dashboard.refresh_if_installed(self.study)

    def _open_tasks(
        self, evaluation_study: Study, idle_seconds: float | None = None
    ) -> tuple[TaskQueue, Callable[[Trial], float]]:
        """The queue of trainings, and what does the training that a trial stands for."""
        from optuna_taylorglo.verdict.runner import TaskQueue, TaskTrainer
        from optuna_taylorglo.verdict.tasks import Task

        train_task = TaskTrainer(self.recipe, self.runtime, self._end_of_trial)

        def train(trial: Trial) -> float:
            task = Task.of(trial)
            save = partial(dashboard.save_network, trial) if task.save_network else lambda _: None
            return train_task(task, save, partial(trial.set_user_attr, attributes.CURVE))

        return TaskQueue(evaluation_study, idle_seconds, **self._heartbeat), train

    def _evaluate_all(
        self,
        queue: TrialQueue,
        objective: Callable[[Trial], float],
        after_each: Callable[[], None] = lambda: None,
    ) -> None:
        """Evaluate trials until the queue is over or a limit is reached."""
        failures: list[Failure] = []
        gc.freeze()  # or each collection goes through all objects of PyTorch
        while not self.stop.is_set() and not self._limit_reached:
            trial = queue.wait_for_trial(self.stop, deadline=self._deadline)
            if trial is None:
                break
            try:
                check_recipe(self.study, self.recipe)
            except errors.RecipeMismatch:
                queue.release(trial)
                raise
            release_connections(storage_of(self.study))
            failure = self._evaluate(queue, trial, objective)
            self._n_trials += 1
            failures = [] if failure is None else [*failures, failure]
            if len(failures) >= MAX_FAILURES_IN_A_ROW and not self.stop.is_set():
                _check_failures(queue, failures)
            after_each()
        if self.stop.is_set():
            raise errors.StopRequested

    def _evaluate(
        self, queue: TrialQueue, trial: Trial, objective: Callable[[Trial], float]
    ) -> Failure | None:
        """Evaluate one trial and store its outcome; returns why it failed, if it did."""
        name, began = _name_of(trial), time.monotonic()
        self._end_of_trial.clear()
        # Heartbeats go on until the storage has the result.
        with heartbeats(trial, queue.heartbeat_interval, self._end_of_trial.set):
            try:
                value = objective(trial)
            except (TrialPruned, errors.Diverged) as early_end:
                queue.finish(trial, state=TrialState.PRUNED)
                end = "stopped" if trial.user_attrs.get(STOPPED) else "aborted"
                outcome = f"{end}, {early_end}"
            except (errors.StopRequested, SystemExit, UpdateFinishedTrialError) as error:
                if self.stop.is_set():  # Lightning may answer SIGTERM by SystemExit
                    queue.release(trial)
                    logger.info("%s: released", name)
                elif isinstance(error, SystemExit):
                    raise
                else:
                    logger.warning("%s: failed as stale; left to another worker", name)
                return None
            except Exception as error:
                failure = record_failure(trial, error)
                # Usage errors, and code that has never worked, do not count against a candidate.
                blameless = failure.is_usage or not has_results(queue.study)
                if blameless and not queue.records_usage_errors:
                    queue.release(trial)
                    if failure.is_usage:
                        raise
                else:
                    queue.finish(trial, state=TrialState.FAIL)
                logger.error("%s: failed, %s", name, error, exc_info=not failure.is_usage)
                return failure
            else:
                queue.finish(trial, value)
                outcome = f"{value:.4f}"
        logger.info("%s: %s (%.1f s)", name, outcome, time.monotonic() - began)
        return None


class EndOfTrial(threading.Event):
    """Set when the running trial has failed as stale, or when the worker is to stop."""

    def __init__(self, stop: threading.Event) -> None:
        super().__init__()
        self._stop = stop

    def is_set(self) -> bool:
        return super().is_set() or self._stop.is_set()


def _check_failures(queue: TrialQueue, failures: Sequence[Failure]) -> None:
    """Raise if neither a retry nor another trial can be expected to succeed."""
    last = failures[-MAX_FAILURES_IN_A_ROW:]
    same = len({failure.in_words for failure in last}) == 1
    if same and not has_results(queue.study):
        raise errors.EvaluationsFail(
            f"every evaluation fails with the same exception; the last of {len(failures)}:\n"
            f"{last[-1]}\nFix its cause and start again: no candidate was used up."
        )
    # A queue of trainings counts the failures of each training itself.
    if not queue.records_usage_errors:
        raise errors.OperationError(f"giving up after {len(failures)} failed evaluations in a row")


def _name_of(trial: Trial) -> str:
    """What a trial is, for the log; generations and candidates are counted from 1."""
    attrs = trial.user_attrs
    if GENERATION not in attrs:
        return f"training {trial.number}: {attrs.get('loss')}"
    candidate = f"generation {attrs[GENERATION] + 1}, candidate {attrs[INDEX] + 1}"
    attempt = f", attempt {attrs[ATTEMPT] + 1}" if attrs[ATTEMPT] else ""
    return f"trial {trial.number}: {candidate}{attempt}"


def build_parser() -> argparse.ArgumentParser:
    """The command line of a worker."""
    parser = argparse.ArgumentParser(
        prog="taylorglo-worker", description="Evaluate candidates of a TaylorGLO study."
    )
    options.add_version_option(parser)
    parser.add_argument("--study-name", required=True, help="name of the study")
    options.add_storage_option(parser)
    help = "a file or the name of a bundled one; needed once, later workers find it in the study"
    parser.add_argument("--recipe", type=Path, metavar="FILE", help=help)
    add = parser.add_argument_group("limits").add_argument
    add("--n-generations", type=options.positive, help="stop after this generation")
    add("--timeout", type=options.seconds, default=math.inf, help="claim no trial after this time")
    add("--max-trials", type=options.positive, default=math.inf, help="stop after this many trials")
    options.add_machine_options(parser)
    add = parser.add_argument_group("heartbeat").add_argument
    for name, default, text in (
        ("--heartbeat-interval", 60, "seconds between two heartbeats"),
        (
            "--grace-period",
            240,
            "seconds without one; after half as much again a trial is repeated",
        ),
    ):
        add(name, type=options.positive, default=default, help=f"{text} (%(default)s)")
    options.add_verbosity_options(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = build_parser()
    given = parser.parse_args(argv)
    if given.heartbeat_interval >= given.grace_period:
        parser.error(
            f"--heartbeat-interval {given.heartbeat_interval} must be shorter than "
            f"--grace-period {given.grace_period}"
        )
    given.storage = resolve_storage_url(given.storage)
    given.runtime, given.check = options.RuntimeOptions.of(given), True
    config = {name: getattr(given, name) for name in WorkerConfig.__annotations__}
    return run(WorkerConfig(**config))


if __name__ == "__main__":
    sys.exit(main())
