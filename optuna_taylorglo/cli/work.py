"""What a worker does, stage by stage, with all other workers on its study."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from optuna_taylorglo.attributes import (
    ATTEMPT,
    CLASS_WEIGHTS,
    CURVE,
    GENERATION,
    INDEX,
    N_CLASSES,
    STOPPED,
)
from optuna_taylorglo.cli.process import DONE, FAILED, INTERRUPTED, frozen_heap
from optuna_taylorglo.errors import (
    Diverged,
    EvaluationsFail,
    RecipeMismatch,
    StopRequested,
    TrainingFailed,
)
from optuna_taylorglo.recipes.wording import search_size
from optuna_taylorglo.search.recipe_changes import check_recipe
from optuna_taylorglo.search.study import attach_recipe
from optuna_taylorglo.storage.optuna_private import storage_of

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import Trial
    from pytorch_lightning import LightningModule

    from optuna_taylorglo.queue.failures import Failure
    from optuna_taylorglo.queue.trial_queue import TrialQueue
    from optuna_taylorglo.recipes.schema import Recipe
    from optuna_taylorglo.training.machine import Machine
    from optuna_taylorglo.verdict.halving import Round
    from optuna_taylorglo.verdict.tasks import Results

logger = logging.getLogger("optuna_taylorglo.worker")

Decision = TypeVar("Decision")

MAX_FAILURES_IN_A_ROW = 3
"""Crashed evaluations after which a worker takes itself for the cause."""

LONGEST_WAIT = 10.0
"""Seconds between two looks at a queue in which there is nothing to do, at most."""


class EitherEvent(threading.Event):
    """An event that counts as set when one of several is."""

    def __init__(self, *events: threading.Event) -> None:
        super().__init__()
        self._events = events

    def is_set(self) -> bool:
        return any(event.is_set() for event in self._events)


class Limits:
    """When a worker has done enough.

    Args:
        timeout: Seconds after which no new trial is taken, or None.
        max_trials: Trials after which none is taken, or None.
    """

    def __init__(self, timeout: float | None, max_trials: int | None) -> None:
        self.deadline = math.inf if timeout is None else time.monotonic() + timeout
        self._max_trials = max_trials
        self.done = 0

    def reached(self) -> bool:
        """Whether to take no further trial."""
        enough = self._max_trials is not None and self.done >= self._max_trials
        return enough or time.monotonic() >= self.deadline


@dataclass(frozen=True)
class Worker:
    """Does what a study is in need of, stage by stage, with all other workers.

    Attributes:
        study: The study.
        recipe: The study's recipe.
        machine: Where it runs.
        limits: When enough is done.
        stop: Ends the work when set.
        unwanted: Ends the training in hand when set.
    """

    study: Study
    recipe: Recipe
    machine: Machine
    limits: Limits
    stop: threading.Event
    unwanted: threading.Event = field(default_factory=threading.Event)

    @property
    def ends(self) -> threading.Event:
        """What ends a training: the request to stop, or that nobody waits for it any more."""
        return EitherEvent(self.stop, self.unwanted)

    def by_the_recipe_of_now(self) -> Worker:
        """The same worker by what the study's recipe has become.

        Raises:
            RecipeMismatch: If it is another one.
        """
        check_recipe(self.study, self.recipe)
        return replace(self, recipe=attach_recipe(self.study, None))

    def balance_classes(self) -> Recipe:
        """Settle the weights of classes by the training labels; returns the study's recipe."""
        from optuna_taylorglo.training.run import Training

        weights = Training(self.recipe, self.machine).recipe.loss.class_weights
        self.study.set_user_attr(CLASS_WEIGHTS, weights)
        return attach_recipe(self.study, None)

    def make_pilot(self, companion: Study) -> None:
        """Settle the length of evaluations, unless something ends the work before."""
        study = self.study
        from optuna_taylorglo.training.run import Training
        from optuna_taylorglo.verdict.learning_rates import keep_whose_optimiser
        from optuna_taylorglo.verdict.pilot import Pilot, keep_evaluation_length

        training = Training(self.recipe, self.machine)
        n_classes = training.n_classes
        study.set_user_attr(N_CLASSES, n_classes)
        keep_whose_optimiser(study, training)
        decision = self._train_in_rounds(companion, Pilot(self.recipe, n_classes).next_step)
        if decision is not None:
            keep_evaluation_length(study, decision)
            logger.info("evaluations last %d %s", decision.length, self.recipe.budget.unit)

    def search(self, n_generations: int | None) -> int:
        """Evaluate candidates until the search is over or something ends it.

        Args:
            n_generations: Generations after which to stop, if sooner than the recipe says.

        Returns:
            The exit code.
        """
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
        generations = min(n_generations or n_all, n_all)
        scheduler = GenerationScheduler(study, n_generations=generations)
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

        objective = Objective(training, sampler, self.ends)
        self._work(scheduler, objective, _place_in_search, goes_on)
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
            logger.info("limit reached after %d trials", self.limits.done)
        return DONE

    def choose_winner(self, companion: Study) -> None:
        """Choose by full trainings, unless something ends the work before."""
        study = self.study
        from optuna_taylorglo.report.dashboard import refresh_if_installed
        from optuna_taylorglo.verdict.choice import keep_choice
        from optuna_taylorglo.verdict.choosing import Choosing

        choice = self._train_in_rounds(companion, Choosing(study, self.recipe).next_step)
        if choice is not None and keep_choice(study, choice, self.recipe):
            logger.info("the winner is %s", choice.winner.name)
            refresh_if_installed(study)

    def train_for_verdict(self, companion: Study, patience: float | None = None) -> int:
        """Do trainings for a verdict until there is none for a while; returns the exit code."""
        from optuna_taylorglo.verdict.task_queue import TaskQueue

        self._work(TaskQueue(companion, patience), self._training_of_tasks(), _place_in_verdict)
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

        queue = TaskQueue(companion)
        train = self._training_of_tasks()
        while isinstance(step := next_step(queue.results), Round):
            queue.enqueue(step.tasks)
            queue.until = step.tasks
            try:
                self._work(queue, train, _place_in_verdict)
            except TrainingFailed as failed:
                # Another process of the same kind would come to the same end.
                raise EvaluationsFail(str(failed)) from failed
            if self.stop.is_set() or self.limits.reached():
                return None
        return step

    def _training_of_tasks(self) -> Callable[[Trial], float]:
        """What does the task that a trial of a companion study stands for."""
        from optuna_taylorglo.queue.late_words import annotate
        from optuna_taylorglo.report.dashboard import keep_network
        from optuna_taylorglo.verdict.task_runner import TaskRunner
        from optuna_taylorglo.verdict.tasks import Task

        runner = TaskRunner(self.recipe, self.machine, self.ends)

        def train(trial: Trial) -> float:
            task = Task.of(trial)

            def keep(module: LightningModule) -> None:
                if task.keep_network:
                    keep_network(trial, module)

            return runner(task, keep, lambda curve: annotate(trial, CURVE, curve))

        return train

    def _work(
        self,
        queue: TrialQueue,
        evaluate: Callable[[Trial], float],
        place_of: Callable[[Trial], str],
        goes_on: Callable[[bool], bool] = lambda succeeded: True,
    ) -> None:
        """Do trials until there is none left, a limit is reached or somebody asks to stop.

        Args:
            queue: Where trials come from.
            evaluate: Turns a trial into its value.
            place_of: What a trial is, for the log.
            goes_on: Told after each trial whether it got a result; says whether to take another.
        """
        from optuna_taylorglo.storage.outage_tolerant import release_connections

        def until_stopped(trial: Trial) -> float:
            try:
                return evaluate(trial)
            except SystemExit as ended:
                # Lightning hears SIGTERM too, and now and then ends a training before we do.
                if self.stop.is_set():
                    raise StopRequested from ended
                raise

        limits, longest_wait = self.limits, LONGEST_WAIT
        failures: list[Failure] = []
        with frozen_heap():
            while not self.stop.is_set() and not limits.reached():
                trial = queue.wait_for_trial(
                    self.stop, longest_wait=longest_wait, deadline=limits.deadline
                )
                if trial is None:
                    return
                try:
                    check_recipe(self.study, self.recipe)
                except RecipeMismatch:
                    queue.release(trial)
                    raise
                release_connections(storage_of(self.study))
                begin = time.monotonic()
                failure = _evaluate(queue, trial, until_stopped, place_of(trial), self.unwanted)
                # Where trainings are short, a wait for the others must be short too.
                longest_wait = min(LONGEST_WAIT, max(0.1, (time.monotonic() - begin) / 10))
                limits.done += 1
                failures = [] if failure is None else [*failures, failure]
                if not self.stop.is_set():
                    _end_if_nothing_can_succeed(queue, failures)
                if not goes_on(failure is None):
                    return


def _end_if_nothing_can_succeed(queue: TrialQueue, failures: Sequence[Failure]) -> None:
    """Stop at a fault that no repetition and no other candidate will get past.

    Raises:
        EvaluationsFail: If the last failures are one and the same, and nothing ever succeeded.
    """
    from optuna_taylorglo.queue.counted import has_results

    last = failures[-MAX_FAILURES_IN_A_ROW:]
    same = len({(failure.type, failure.message) for failure in last}) == 1
    if len(last) == MAX_FAILURES_IN_A_ROW and same and not has_results(queue.study):
        raise EvaluationsFail(
            f"every evaluation fails with the same exception; the last of {len(failures)}:\n"
            f"{last[-1]}\nMend its cause and start again: no candidate was used up."
        )


def _evaluate(
    queue: TrialQueue,
    trial: Trial,
    evaluate: Callable[[Trial], float],
    place: str,
    unwanted: threading.Event,
) -> Failure | None:
    """Evaluate one trial and record what became of it, with a line in the log.

    Args:
        queue: Where it comes from.
        trial: The trial.
        evaluate: Turns it into its value.
        place: What it is, for the log.
        unwanted: Set, to end the training, if the trial was given up and is made by another.

    Returns:
        None if it got a result, be it an abort; otherwise why it failed or was released.

    Raises:
        UsageError: If the evaluation cannot be made here as things are; the trial is released.
    """
    from optuna import TrialPruned
    from optuna.trial import TrialState

    from optuna_taylorglo.queue.counted import has_results
    from optuna_taylorglo.queue.failures import Failure, record_failure
    from optuna_taylorglo.queue.heartbeat import Heartbeat

    begin = time.monotonic()
    unwanted.clear()

    def on_given_up() -> None:
        if not queue.is_wanted(trial):
            unwanted.set()

    # Signs of life go on until the database has the result.
    with Heartbeat(trial, on_given_up):
        try:
            value = evaluate(trial)
        except (TrialPruned, Diverged) as early_end:
            queue.finish(trial, state=TrialState.PRUNED)
            outcome = "stopped" if trial.user_attrs.get(STOPPED) else "aborted"
            logger.info("%s: %s, %s (%.1f s)", place, outcome, early_end, time.monotonic() - begin)
            return None
        except StopRequested as request:
            queue.release(trial)
            if unwanted.is_set():
                logger.info("%s: left to the worker that it was given to meanwhile", place)
                return None
            logger.info("%s: released", place)
            return Failure.of(request)
        except Exception as error:
            failure = record_failure(trial, error)
            # What is wrong with the words of a command, or with code that has never worked, is no
            # fault of the candidate's, and must not cost it its place.
            blameless = failure.is_usage or not has_results(queue.study)
            if blameless and not queue.tells_of_failures:
                queue.release(trial)
            else:
                queue.finish(trial, state=TrialState.FAIL)
            if failure.is_usage and not queue.tells_of_failures:
                raise
            logger.error(
                "%s: failed, %s", place, error, exc_info=None if failure.is_usage else error
            )
            return failure
        queue.finish(trial, value)
    logger.info("%s: %.4f (%.1f s)", place, value, time.monotonic() - begin)
    return None


def _place_in_search(trial: Trial) -> str:
    attrs = trial.user_attrs
    # For people, generations and candidates are counted from 1.
    generation, candidate = attrs[GENERATION] + 1, attrs[INDEX] + 1
    place = f"trial {trial.number}: generation {generation}, candidate {candidate}"
    return place + (f", attempt {attrs[ATTEMPT] + 1}" if attrs[ATTEMPT] else "")


def _place_in_verdict(trial: Trial) -> str:
    return f"training {trial.number}: {trial.user_attrs.get('loss')}"
