"""The process that pulls trials: ``taylorglo-worker --study-name NAME [--recipe FILE]``.

Start as many as you like, on as many machines as can reach the storage; kill any of them.
Exit codes: 0 the search or a limit is reached, 1 failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

if __name__ == "__main__" and not __package__:
    # Run by path, this file's directory is on the path in place of the one that holds the package.
    import sys as _sys
    from pathlib import Path as _Path

    _sys.path[0] = str(_Path(__file__).resolve().parents[1])

import argparse
import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from optuna_taylorglo.attributes import COMPANION_OF, DRAWN, N_CLASSES
from optuna_taylorglo.errors import RecipeError, RecipeMismatch, StopRequested, StudyError
from optuna_taylorglo.recipes.bundled import find_recipe
from optuna_taylorglo.recipes.loading import load_recipe
from optuna_taylorglo.search.study import attach_recipe
from optuna_taylorglo.storage.studies import companion_name, open_study
from optuna_taylorglo.storage.urls import resolve_storage_url

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import Trial
    from pytorch_lightning import LightningModule

    from optuna_taylorglo.recipes.schema import Recipe
    from optuna_taylorglo.search.objective import Objective
    from optuna_taylorglo.search.scheduler import GenerationScheduler
    from optuna_taylorglo.training.run import Machine
    from optuna_taylorglo.verdict.task_queue import Task, TaskQueue, TaskRunner

logger = logging.getLogger("optuna_taylorglo.worker")

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130

MAX_FAILURES_IN_A_ROW = 3
"""Crashed evaluations after which a worker takes itself for the cause."""

DRAWING_SHARE = 0.02
"""Share of its time that a worker spends on the dashboard's figures, at most."""

FIRST_DRAWING = 1.0
"""Seconds that the first figures take, most of them for imports."""

TASK_PATIENCE = 30.0
"""Seconds without a training to do after which a worker takes a verdict for complete."""


def add_machine_options(parser: argparse.ArgumentParser) -> None:
    """Options that belong to the machine; shared with the `taylorglo` command."""
    group = parser.add_argument_group("this machine")
    group.add_argument(
        "--data-dir", type=Path, default=Path("data"), help="where data sets lie (%(default)s)"
    )
    group.add_argument(
        "--device", default="auto", help="auto, cpu, cuda, cuda:1, mps … (%(default)s)"
    )
    group.add_argument(
        "--precision",
        default="auto",
        choices=["auto", "32-true", "bf16-mixed", "16-mixed"],
        help="numeric precision; auto takes bfloat16 where it is faster (%(default)s)",
    )
    group.add_argument(
        "--threads",
        type=positive,
        default=1,
        help="CPU threads a worker; several workers of 1 beat one of several (%(default)s)",
    )
    group.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="PACKAGE",
        help="package whose classes the recipe may name, besides the bundled ones; repeatable",
    )


def add_storage_option(parser: argparse.ArgumentParser) -> None:
    """The option that says where studies are kept; shared with the `taylorglo` command."""
    parser.add_argument(
        "--storage",
        metavar="URL",
        help="sqlite:///…, postgresql://…, mysql://… or a journal file; default: $OPTUNA_STORAGE, "
        "else sqlite:///taylorglo.db",
    )


def build_parser() -> argparse.ArgumentParser:
    """The command line of a worker."""
    parser = argparse.ArgumentParser(
        prog="taylorglo-worker", description="Evaluate candidates of a TaylorGLO study."
    )
    parser.add_argument("--study-name", required=True, help="name of the study")
    add_storage_option(parser)
    parser.add_argument(
        "--recipe",
        type=Path,
        metavar="FILE",
        help="recipe of the study; needed once, later workers find it in the study",
    )
    limits = parser.add_argument_group("limits")
    limits.add_argument(
        "--n-generations", type=positive, help="stop after this generation (the recipe's number)"
    )
    limits.add_argument("--timeout", type=_seconds, help="take no new trial after these seconds")
    limits.add_argument("--max-trials", type=positive, help="stop after this many trials")
    add_machine_options(parser)
    patience = parser.add_argument_group("lost workers")
    patience.add_argument(
        "--heartbeat",
        type=positive,
        default=60,
        help="seconds between signs of life (%(default)s)",
    )
    patience.add_argument(
        "--grace",
        type=positive,
        default=240,
        help="seconds without one until a trial is given to another worker (%(default)s)",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="say more")
    parser.add_argument("-q", "--quiet", action="store_true", help="say only what went wrong")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a worker until the search is over, a limit is reached or it is told to stop."""
    arguments = build_parser().parse_args(argv)
    configure_logging(verbose=arguments.verbose, quiet=arguments.quiet)
    stop = stop_on_signals()
    try:
        return run(arguments, stop)
    except (RecipeError, RecipeMismatch, StudyError, ValueError) as error:
        logger.error("%s", error)
        return USAGE
    except (ConnectionError, FileNotFoundError, RuntimeError) as error:
        logger.error("%s", error)
        return FAILED


def run(arguments: argparse.Namespace, stop: threading.Event) -> int:
    """Pull trials; the arguments are those of `build_parser`.

    Args:
        arguments: Parsed command line.
        stop: Ends the worker when set; the trial in hand goes back.

    Returns:
        The exit code.
    """
    url = resolve_storage_url(arguments.storage)
    recipe = None if arguments.recipe is None else load_recipe(find_recipe(arguments.recipe))

    def open_(name: str) -> Study:
        return open_study(name, url, heartbeat=arguments.heartbeat, grace=arguments.grace)

    study = open_(arguments.study_name)
    companion = study if COMPANION_OF in study.user_attrs else None
    if companion is not None:
        study = open_(companion.user_attrs[COMPANION_OF])
    recipe = attach_recipe(study, recipe)

    limits = Limits(arguments.timeout, arguments.max_trials)
    machine = machine_of(arguments)
    if companion is None:
        code = _search(study, recipe, machine, limits, stop, arguments.n_generations)
        if code != DONE or limits.reached():
            return code
        try:
            companion = open_(companion_name(study.study_name))
        except StudyError:
            return DONE
    return _do_tasks(companion, recipe, machine, limits, stop)


def machine_of(arguments: argparse.Namespace) -> Machine:
    """The machine that the options of `add_machine_options` describe, set up for training."""
    # Only now what takes seconds to import: wrong usage is answered before.
    from optuna_taylorglo.training.run import Machine

    machine = Machine(
        data_dir=arguments.data_dir,
        device=arguments.device,
        precision=arguments.precision,
        allowed_packages=tuple(arguments.allow),
    )
    machine.prepare(threads=arguments.threads)
    return machine


class Limits:
    """When a worker has done enough.

    Args:
        timeout: Seconds after which no new trial is taken, or None.
        max_trials: Trials after which none is taken, or None.
    """

    def __init__(self, timeout: float | None, max_trials: int | None) -> None:
        self._deadline = float("inf") if timeout is None else time.monotonic() + timeout
        self._max_trials = max_trials
        self.done = 0

    def reached(self) -> bool:
        """Whether to take no further trial."""
        enough = self._max_trials is not None and self.done >= self._max_trials
        return enough or time.monotonic() >= self._deadline


def _search(
    study: Study,
    recipe: Recipe,
    machine: Machine,
    limits: Limits,
    stop: threading.Event,
    n_generations: int | None,
) -> int:
    """Evaluate candidates until the search is over or something ends it; returns the exit code."""
    from optuna_taylorglo.search.candidates import make_pruner, make_sampler
    from optuna_taylorglo.search.objective import Objective
    from optuna_taylorglo.search.scheduler import GenerationScheduler
    from optuna_taylorglo.training.run import Training

    training = Training(recipe, machine)
    study.set_user_attr(N_CLASSES, training.n_classes)
    study.sampler = sampler = make_sampler(recipe, training.n_classes)
    study.pruner = make_pruner(recipe, training.in_steps)
    generations = min(n_generations or recipe.search.generations, recipe.search.generations)
    gate = GenerationScheduler(study, n_generations=generations)
    objective = Objective(training, sampler, stop)
    logger.info(
        "study %s: worker %d on %s, %d generations of %d candidates",
        study.study_name,
        os.getpid(),
        machine.torch_device,
        generations,
        recipe.search.population,
    )
    artist = DashboardRefresher(gate)
    failures_in_a_row = 0
    while not stop.is_set():
        if limits.reached():
            artist.draw(at_last=True)
            logger.info("limit reached after %d trials", limits.done)
            return DONE
        trial = gate.wait_for_trial(stop)
        if trial is None:
            break
        failed = not _evaluate(gate, objective, trial)
        limits.done += 1
        artist.draw()
        failures_in_a_row = failures_in_a_row + 1 if failed else 0
        if failures_in_a_row >= MAX_FAILURES_IN_A_ROW:
            logger.error("giving up after %d failed evaluations in a row", failures_in_a_row)
            return FAILED
    if stop.is_set():
        logger.info("stopped; start the same command again to go on")
        return INTERRUPTED
    artist.draw(at_last=True)
    logger.info("the search is over: %d generations are complete", generations)
    return DONE


def _evaluate(gate: GenerationScheduler, objective: Objective, trial: Trial) -> bool:
    """Evaluate one candidate and record what became of it, with a line in the log.

    Returns:
        Whether it got a result, be it an abort; False if it failed or was handed back.
    """
    from optuna import TrialPruned
    from optuna.trial import TrialState

    from optuna_taylorglo.attributes import ATTEMPT, GENERATION, INDEX, STOPPED
    from optuna_taylorglo.search.scheduler import Heartbeat

    attrs = trial.user_attrs
    place = f"trial {trial.number}: generation {attrs[GENERATION]}, candidate {attrs[INDEX]}"
    if attrs[ATTEMPT]:
        place += f", attempt {attrs[ATTEMPT] + 1}"
    begin = time.monotonic()
    try:
        with Heartbeat(trial):
            value = objective(trial)
    except TrialPruned as early_end:
        gate.finish(trial, state=TrialState.PRUNED)
        outcome = "stopped" if trial.user_attrs.get(STOPPED) else "aborted"
        logger.info("%s: %s, %s (%.1f s)", place, outcome, early_end, time.monotonic() - begin)
        return True
    except StopRequested:
        gate.release(trial)
        logger.info("%s: handed back", place)
        return False
    except Exception as error:
        gate.finish(trial, state=TrialState.FAIL)
        _log_failure(place, error)
        return False
    gate.finish(trial, value)
    logger.info("%s: %.4f (%.1f s)", place, value, time.monotonic() - begin)
    return True


class DashboardRefresher:
    """Shows complete generations in the dashboard, if there is one, for little of a worker's time.

    Args:
        gate: Hands out the study's trials.
    """

    def __init__(self, gate: GenerationScheduler) -> None:
        self._gate = gate
        self._due = time.monotonic() + FIRST_DRAWING / DRAWING_SHARE

    def draw(self, *, at_last: bool = False) -> None:
        """Draw generations that have been completed, unless the last drawing was just now.

        Args:
            at_last: Whether there will be no other occasion.
        """
        from optuna_taylorglo.report import dashboard

        if time.monotonic() < self._due and not at_last:
            return
        study, begin = self._gate.study, time.monotonic()
        generation = self._gate.sampler.read(study).generation
        if generation > study.user_attrs.get(DRAWN, 0) and dashboard.is_installed():
            try:
                dashboard.refresh_once_a_generation(study, generation)
            except Exception as error:
                # A picture is never worth a trial.
                logger.warning("the dashboard's figures could not be drawn: %s", error)
            end = time.monotonic()
            self._due = end + (end - begin) / DRAWING_SHARE


def _do_tasks(
    companion: Study, recipe: Recipe, machine: Machine, limits: Limits, stop: threading.Event
) -> int:
    """Do trainings for a verdict until none is left; returns the exit code."""
    from optuna_taylorglo.verdict.task_queue import TaskQueue, TaskRunner

    queue = TaskQueue(companion)
    runner = TaskRunner(recipe, machine, stop)
    nothing_since = time.monotonic()
    while not stop.is_set() and not limits.reached():
        claimed = queue.claim()
        if claimed is not None:
            _do_task(queue, runner, *claimed)
            limits.done += 1
        if claimed is not None or queue.open:
            nothing_since = time.monotonic()
        elif time.monotonic() - nothing_since > TASK_PATIENCE:
            break
        if claimed is None:
            stop.wait(1.0)
    return INTERRUPTED if stop.is_set() else DONE


def _do_task(queue: TaskQueue, runner: TaskRunner, trial: Trial, task: Task) -> None:
    from optuna.trial import TrialState

    from optuna_taylorglo.errors import Diverged
    from optuna_taylorglo.report import dashboard
    from optuna_taylorglo.search.scheduler import Heartbeat

    def keep(module: LightningModule) -> None:
        if task.keep_network:
            dashboard.keep_network(trial, module)

    place = f"training {trial.number}: {task.loss.label}, {task.length} {task.unit}"
    begin = time.monotonic()
    try:
        with Heartbeat(trial):
            value = runner(task, keep)
    except StopRequested:
        queue.release(trial)
        logger.info("%s: handed back", place)
    except Diverged as error:
        queue.finish(trial, None, TrialState.PRUNED)
        logger.info("%s: %s (%.1f s)", place, error, time.monotonic() - begin)
    except Exception as error:
        queue.finish(trial, None, TrialState.FAIL)
        _log_failure(place, error)
    else:
        queue.finish(trial, value, TrialState.COMPLETE)
        logger.info("%s: %.4f (%.1f s)", place, value, time.monotonic() - begin)


def _log_failure(place: str, error: Exception) -> None:
    logger.error("%s: failed, %s: %s", place, type(error).__name__, error)
    logger.debug("how it failed", exc_info=error)


def configure_logging(*, verbose: bool = False, quiet: bool = False) -> None:
    """One line an event, on standard error; Optuna's and Lightning's chatter off."""
    import optuna

    level = logging.DEBUG if verbose else logging.ERROR if quiet else logging.INFO
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    for name in ("optuna_taylorglo", "lightning_modules"):
        logging.getLogger(name).setLevel(level)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", ".*treespec, LeafSpec.*")


def stop_on_signals() -> threading.Event:
    """An event that SIGINT or SIGTERM sets; the second signal ends the process at once."""
    stop = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            os._exit(INTERRUPTED)
        stop.set()

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handle)
        signal.signal(signal.SIGTERM, handle)
    return stop


def positive(text: str) -> int:
    """A whole number of at least 1, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not allowed, must be at least 1")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{value} is not allowed, must be above 0")
    return value


if __name__ == "__main__":
    sys.exit(main())
