"""What a worker does: search, selection and verdict of a study, trial by trial."""

from __future__ import annotations

import gc
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optuna import TrialPruned
from optuna.exceptions import UpdateFinishedTrialError
from optuna.study import Study
from optuna.trial import Trial, TrialState

from optuna_taylorglo import attributes, errors
from optuna_taylorglo.attributes import ATTEMPT, EVALUATION_OF, GENERATION, INDEX, STOPPED
from optuna_taylorglo.evolution.candidates import make_pruner, make_sampler
from optuna_taylorglo.evolution.history import (
    SearchHistory,
    attach_recipe,
    check_recipe,
    direction_of,
)
from optuna_taylorglo.evolution.scheduler import GenerationScheduler
from optuna_taylorglo.process import DONE, configure_logging, exit_code, stop_on_signals
from optuna_taylorglo.recipes.load import find_recipe, load_recipe, settled_recipe
from optuna_taylorglo.recipes.schema import FunctionRecipe, Recipe, TrainingRecipe, search_size
from optuna_taylorglo.report import dashboard
from optuna_taylorglo.study import open as opening
from optuna_taylorglo.study.heartbeat import GRACE_PERIOD, HEARTBEAT_INTERVAL, heartbeats
from optuna_taylorglo.study.optuna_private import storage_of
from optuna_taylorglo.study.queue import Failure, TrialQueue, has_results, record_failure
from optuna_taylorglo.study.storages import release_connections
from optuna_taylorglo.training.runtime import RuntimeConfig
from optuna_taylorglo.verdict.baselines import evaluate_cross_entropy, save_optimizer_owner
from optuna_taylorglo.verdict.selection import is_undecided, save_selection, select_winner

if TYPE_CHECKING:  # imported late, since PyTorch takes seconds: wrong usage is answered before
    from optuna_taylorglo.training.candidate import Trainer
    from optuna_taylorglo.training.function import Function
    from optuna_taylorglo.verdict.runner import TaskQueue, TrainTask
    from optuna_taylorglo.verdict.tasks import Task

logger = logging.getLogger("optuna_taylorglo.worker")

REFERENCE_SEEDS = 3  # trainings of cross-entropy
MAX_FAILURES_IN_A_ROW = 3  # after which a worker ends


class LimitReached(Exception):
    """The worker may do no more trainings, and some of a selection are open."""


class Functions:
    """A user's training functions; those of a script or notebook are sent to processes by value."""

    def __init__(self, train: Function | None, test: Function | None = None) -> None:
        self.train, self.test = train, test

    def __reduce__(self) -> tuple[Any, ...]:
        import cloudpickle

        try:
            return _load_functions, (cloudpickle.dumps((self.train, self.test)),)
        except Exception as error:
            raise errors.UsageError(
                f"train cannot be sent to other processes: {error}. Let it build what it uses "
                "inside, or use n_workers=1 and start the script several times."
            ) from error


def _load_functions(pickled: bytes) -> Functions:
    import cloudpickle

    return Functions(*cloudpickle.loads(pickled))


@dataclass(frozen=True)
class WorkerConfig:
    """The options of a worker; can be sent to another process."""

    study_name: str
    storage: str
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    functions: Functions | None = None
    recipe: Path | None = None
    check: bool = True
    n_generations: int | None = None
    timeout: float = math.inf
    max_trials: float = math.inf
    heartbeat_interval: float = HEARTBEAT_INTERVAL
    grace_period: float = GRACE_PERIOD
    verbose: bool = False
    quiet: bool = False


def run(config: WorkerConfig) -> int:
    """Work until all is done, a limit is reached or a signal says stop; returns the exit code."""
    configure_logging(verbose=config.verbose, quiet=config.quiet)
    stop = stop_on_signals()
    logger.info("worker %d starts on study %s", os.getpid(), config.study_name)

    def work() -> int:
        path = None if config.recipe is None else find_recipe(config.recipe)
        recipe = None if path is None else load_recipe(path)
        direction = "maximize" if recipe is None else direction_of(recipe)
        study = opening.open_study(
            config.study_name,
            config.storage,
            direction=direction,
            patience=opening.WORKER_PATIENCE,
        )
        config.runtime.prepare()
        to_check = recipe or settled_recipe(study)
        if isinstance(to_check, TrainingRecipe) and config.check:
            from optuna_taylorglo.training.preflight import dry_run

            dry_run(to_check, config.runtime, path)
        Worker(study, config, stop, recipe=recipe).work()
        return DONE

    return exit_code(work, logger, config.study_name)


def run_reference(config: WorkerConfig) -> int:
    """Train with cross-entropy as candidates are trained; returns the exit code."""
    configure_logging(verbose=config.verbose, quiet=config.quiet)
    stop = stop_on_signals()

    def train() -> int:
        study = opening.open_study(config.study_name, config.storage)
        config.runtime.prepare()
        evaluate_cross_entropy(study, Worker(study, config, stop).trainer, REFERENCE_SEEDS, stop)
        return DONE

    return exit_code(train, logger, config.study_name)


class Worker:
    """Does what a study needs, stage by stage, until a limit is reached or `stop` is set.

    Attributes:
        study: The study of the search.
        evaluation_study: The study to work on in its place, if it is one.
        after_each: Called after each trial.
    """

    def __init__(
        self,
        study: Study,
        config: WorkerConfig,
        stop: threading.Event,
        *,
        recipe: Recipe | None = None,
    ) -> None:
        self.config = config
        self.stop, self._end_of_trial = stop, EndOfTrial(stop)
        self.after_each: Callable[[], None] = lambda: None
        self._n_trials = 0
        settings = ("heartbeat_interval", "grace_period")
        self._heartbeat = {name: getattr(config, name) for name in settings}
        self.study, self.evaluation_study = study, None
        if EVALUATION_OF in study.user_attrs:
            self.evaluation_study = study
            self.study = opening.open_study(study.user_attrs[EVALUATION_OF], config.storage)
        self.recipe = attach_recipe(self.study, recipe)
        check_kind(self.study, self.recipe, by_function=config.functions is not None)
        self._trainer: Trainer | None = None
        self._deadline = time.monotonic() + config.timeout

    @property
    def _limit_reached(self) -> bool:
        return self._n_trials >= self.config.max_trials or time.monotonic() >= self._deadline

    def work(self) -> None:
        """Search, selection and verdict, as far as each is due."""
        if self.evaluation_study is not None:
            self._evaluate_all(*self._open_tasks(self.evaluation_study))
            return
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
        can_test = self.config.functions is None or self.config.functions.test is not None
        if can_test and found is not None and EVALUATION_OF in found.user_attrs:
            self._evaluate_all(*self._open_tasks(found, idle_seconds))

    def search(self) -> None:
        """Evaluate candidates until the search is over or a limit is reached."""
        from optuna_taylorglo.evolution.objective import Objective

        trainer = self.trainer
        study, recipe = self.study, self.recipe
        study.sampler = sampler = make_sampler(recipe, trainer.n_classes)
        study.pruner = make_pruner(recipe, trainer.in_steps)
        n_generations = recipe.search.total_generations
        n_generations = min(self.config.n_generations or n_generations, n_generations)
        scheduler = GenerationScheduler(study, n_generations=n_generations, **self._heartbeat)
        logger.info("%s", search_size(recipe.search))
        objective = Objective(trainer, sampler, self._end_of_trial)
        figures = dashboard.DashboardRefresher(study, lambda: sampler.read(study).generation)
        is_shared = opening.is_shared(study)
        self._evaluate_all(scheduler, objective, figures.refresh_if_due if is_shared else None)
        if is_shared:
            figures.refresh_at_end()
        if scheduler.over:
            logger.info("the search is over: %d generations are complete", n_generations)
        else:
            logger.info("limit reached after %d trials", self._n_trials)

    @property
    def trainer(self) -> Trainer:
        """What trains candidates; what it finds at first is stored in the study."""
        if self._trainer is None:
            recipe, functions = self.recipe, self.config.functions
            if isinstance(recipe, FunctionRecipe):
                assert functions is not None, "checked when the worker was made"
                self._trainer = self._function_training(recipe, functions)
            else:
                assert isinstance(recipe, TrainingRecipe)
                self._trainer = self._recipe_training(recipe)
        return self._trainer

    def _function_training(self, recipe: FunctionRecipe, functions: Functions) -> Trainer:
        from optuna_taylorglo.training.function import FunctionTraining

        training = FunctionTraining(recipe, functions.train, functions.test)
        if attributes.LR_FACTOR not in self.study.user_attrs:
            effects = training.check()
            if recipe.search.scale == "auto":
                self._settle(effects.searched_scale)
            self.study.set_user_attr(attributes.LR_FACTOR, effects.lr_factor)
        self.recipe = attach_recipe(self.study)
        training.recipe = recipe.changed(search=self.recipe.search)
        if not self.study.user_attrs.get(attributes.CROSS_ENTROPY):
            (value,) = evaluate_cross_entropy(self.study, training, 1, self._end_of_trial)
            if value is None:
                raise errors.UsageError(
                    "train returned no finite number with cross-entropy: it must return the "
                    "validation metric, and may return nan for a candidate that diverges."
                )
        self.study.set_user_attr(attributes.N_CLASSES, recipe.n_classes)
        return training

    def _recipe_training(self, recipe: TrainingRecipe) -> Trainer:
        from optuna_taylorglo.training.training import Training

        training = Training(recipe, self.config.runtime)
        if recipe.search.scale == "auto":
            self._settle(training.searched_scale())
        save_optimizer_owner(self.study, training)
        if recipe.loss.class_weights == "balanced":
            self.study.set_user_attr(attributes.CLASS_WEIGHTS, training.recipe.loss.class_weights)
        self.study.set_user_attr(attributes.N_CLASSES, training.n_classes)
        self.recipe = attach_recipe(self.study)
        training.recipe = training.recipe.changed(search=self.recipe.search)
        return training

    def _settle(self, scale: str) -> None:
        """Store how the scale of losses is searched, unless another worker has."""
        if scale == "learning_rate" and self.recipe.loss.base == "none":
            scale = "fixed"  # such losses have no parameter for it
        if attributes.SCALE not in self.study.user_attrs:
            self.study.set_user_attr(attributes.SCALE, scale)

    def run_tasks(self, evaluation_study: Study, tasks: Sequence[Task]) -> list[float | None]:
        """Values of trainings in order, done by this worker and others; None for diverged ones."""
        queue, train = self._open_tasks(evaluation_study)
        queue.wanted = tasks
        try:
            self._evaluate_all(queue, train)
            results = queue.results(tasks)
        except errors.TrainingFailed as failed:
            # Another worker would fail in the same way.
            raise errors.EvaluationsFail(str(failed)) from failed
        if results is None:
            raise LimitReached
        return results

    def select_winner(self) -> None:
        """Select the winner of a complete search by full trainings."""
        evaluation_study = opening.create_evaluation_study(self.study, self.config.storage)
        with suppress(LimitReached):
            run = partial(self.run_tasks, evaluation_study)
            selection = select_winner(self.study, self.recipe, run)
            if save_selection(self.study, selection, self.recipe):
                logger.info("the winner is %s", selection.winner.name)
                if opening.is_shared(self.study):
                    dashboard.refresh_if_installed(self.study)

    def _open_tasks(
        self, evaluation_study: Study, idle_seconds: float | None = None
    ) -> tuple[TaskQueue, Callable[[Trial], float]]:
        """The queue of trainings, and what does the training that a trial stands for."""
        from optuna_taylorglo.verdict.runner import TaskQueue
        from optuna_taylorglo.verdict.tasks import Task

        train_task = self._task_trainer()

        def train(trial: Trial) -> float:
            task = Task.of(trial)
            save = partial(dashboard.save_network, trial) if task.save_network else lambda _: None
            return train_task(task, save, partial(trial.set_user_attr, attributes.CURVE))

        return TaskQueue(evaluation_study, idle_seconds, **self._heartbeat), train

    def _task_trainer(self) -> TrainTask:
        from optuna_taylorglo.training.function import FunctionTraining
        from optuna_taylorglo.verdict.runner import FunctionTaskTrainer, TaskTrainer

        recipe, functions = self.recipe, self.config.functions
        if isinstance(recipe, FunctionRecipe):
            assert functions is not None, "checked when the worker was made"
            training = FunctionTraining(recipe, functions.train, functions.test)
            return FunctionTaskTrainer(training, self._end_of_trial)
        assert isinstance(recipe, TrainingRecipe)
        return TaskTrainer(recipe, self.config.runtime, self._end_of_trial)

    def _evaluate_all(
        self,
        queue: TrialQueue,
        objective: Callable[[Trial], float],
        refresh: Callable[[], None] | None = None,
    ) -> None:
        """Evaluate trials until the queue is over or a limit is reached."""
        gc.freeze()  # or each collection goes through all objects of PyTorch
        try:
            self._evaluate_each(queue, objective, refresh)
        finally:
            gc.unfreeze()
        if self.stop.is_set():
            raise errors.StopRequested

    def _evaluate_each(
        self,
        queue: TrialQueue,
        objective: Callable[[Trial], float],
        refresh: Callable[[], None] | None,
    ) -> None:
        failures: list[Failure] = []
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
            if refresh is not None:
                refresh()
            self.after_each()

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
            except KeyboardInterrupt:
                queue.release(trial)
                raise
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
        raise errors.OperationError(
            f"giving up after {len(failures)} failed evaluations in a row; the last:\n{last[-1]}"
        )


def _name_of(trial: Trial) -> str:
    """What a trial is, for the log; generations and candidates are counted from 1."""
    attrs = trial.user_attrs
    if GENERATION not in attrs:
        return f"training {trial.number}: {attrs.get('loss')}"
    candidate = f"generation {attrs[GENERATION] + 1}, candidate {attrs[INDEX] + 1}"
    attempt = f", attempt {attrs[ATTEMPT] + 1}" if attrs[ATTEMPT] else ""
    return f"trial {trial.number}: {candidate}{attempt}"


def check_kind(study: Study, recipe: Recipe, *, by_function: bool) -> None:
    """Refuse a study that another kind of training evaluates."""
    if isinstance(recipe, FunctionRecipe) and not by_function:
        raise errors.StudyError(
            f"study {study.study_name!r} is searched with a training function in Python: continue "
            "it there by search, run_worker or compare with that function."
        )
    if isinstance(recipe, TrainingRecipe) and by_function:
        raise errors.StudyError(
            f"study {study.study_name!r} is searched by a recipe, not with a training function: "
            "use another study_name."
        )


def training_recipe(study: Study, recipe: Recipe) -> TrainingRecipe:
    """The recipe of a study that has one of Lightning trainings; a `StudyError` says if not."""
    check_kind(study, recipe, by_function=False)
    assert isinstance(recipe, TrainingRecipe)
    return recipe
