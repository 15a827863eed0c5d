"""The process that pulls trials: ``taylorglo-worker --study-name NAME [--recipe FILE]``.

Start as many as you like, on as many machines as can reach the storage; kill any of them.
Exit codes: 0 the search or a limit is reached, 1 failed, 2 wrong usage, 3 every evaluation fails
from the same exception, 130 interrupted.
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
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from optuna_taylorglo.attributes import COMPANION_OF
from optuna_taylorglo.cli.options import (
    add_machine_options,
    add_storage_option,
    add_verbosity_options,
    add_version_option,
    machine_of,
    positive,
    seconds,
)
from optuna_taylorglo.cli.preflight import rehearse
from optuna_taylorglo.cli.process import (
    BROKEN,
    DONE,
    FAILED,
    INTERRUPTED,
    USAGE,
    configure_logging,
    exit_code,
    stop_on_signals,
)
from optuna_taylorglo.cli.work import Limits, Worker
from optuna_taylorglo.errors import StudyError
from optuna_taylorglo.recipes.bundled import find_recipe
from optuna_taylorglo.recipes.in_study import settled_recipe
from optuna_taylorglo.recipes.loading import load_recipe
from optuna_taylorglo.search.study import attach_recipe, direction_of
from optuna_taylorglo.storage.first_contact import WORKER_PATIENCE
from optuna_taylorglo.storage.open_study import companion_name, create_companion, open_study
from optuna_taylorglo.storage.urls import resolve_storage_url

if TYPE_CHECKING:
    from optuna.study import Study

__all__ = ["BROKEN", "DONE", "FAILED", "INTERRUPTED", "USAGE", "build_parser", "main"]

logger = logging.getLogger("optuna_taylorglo.worker")


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
        help="leave out the rehearsal (as `taylorglo check`) that comes before the first trial",
    )
    limits = parser.add_argument_group("limits")
    limits.add_argument(
        "--n-generations", type=positive, help="stop after this generation (the recipe's number)"
    )
    limits.add_argument("--timeout", type=seconds, help="take no new trial after these seconds")
    limits.add_argument("--max-trials", type=positive, help="stop after this many trials")
    add_machine_options(parser)
    lost = parser.add_argument_group("lost workers")
    lost.add_argument(
        "--heartbeat",
        type=positive,
        default=60,
        help="seconds between signs of life (%(default)s)",
    )
    lost.add_argument(
        "--grace",
        type=positive,
        default=240,
        help="seconds without one until a trial is given to another worker (%(default)s)",
    )
    add_verbosity_options(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a worker until the search is over, a limit is reached or it is told to stop."""
    arguments = build_parser().parse_args(argv)
    configure_logging(verbose=arguments.verbose, quiet=arguments.quiet)
    stop = stop_on_signals()
    # What follows imports for seconds; whoever looks at the log wants to know that it has begun.
    logger.info("worker %d starts on study %s", os.getpid(), arguments.study_name)
    return exit_code(lambda: run(arguments, stop), logger, arguments.study_name)


def run(arguments: argparse.Namespace, stop: threading.Event) -> int:
    """Pull trials; the arguments are those of `build_parser`.

    Args:
        arguments: Parsed command line.
        stop: Ends the worker when set; the trial in hand is released.

    Returns:
        The exit code.
    """
    url = resolve_storage_url(arguments.storage)
    path = None if arguments.recipe is None else find_recipe(arguments.recipe)
    recipe = None if path is None else load_recipe(path)

    def open_(name: str) -> Study:
        return open_study(
            name,
            url,
            direction="maximize" if recipe is None else direction_of(recipe),
            heartbeat=arguments.heartbeat,
            grace=arguments.grace,
            patience=WORKER_PATIENCE,
        )

    study = open_(arguments.study_name)
    companion = study if COMPANION_OF in study.user_attrs else None
    if companion is not None:
        study = open_(companion.user_attrs[COMPANION_OF])
    machine = machine_of(arguments)
    to_check = recipe or settled_recipe(study)
    if to_check is not None and not arguments.no_check:
        rehearse(to_check, machine, path)
    recipe = attach_recipe(study, recipe)

    worker = Worker(study, recipe, machine, Limits(arguments.timeout, arguments.max_trials), stop)
    if recipe.loss.class_weights == "balanced":
        worker = replace(worker, recipe=worker.balance_classes())
    if companion is not None:
        return worker.train_for_verdict(companion)

    from optuna_taylorglo.search.history import SearchHistory
    from optuna_taylorglo.verdict.choice import is_undecided

    # Who came for the search does not wait for a verdict to begin when the search has ended.
    patience = None if SearchHistory(study, recipe).finished else 0.0
    if recipe.budget.evaluation == "auto":
        worker.make_pilot(create_companion(study, url))
        worker = worker.by_the_recipe_of_now()
        if worker.recipe.budget.evaluation == "auto" or stop.is_set():
            return INTERRUPTED if stop.is_set() else DONE
    while True:
        code = worker.search(arguments.n_generations)
        if code != DONE or worker.limits.reached():
            return code
        if is_undecided(study, worker.recipe):
            worker.choose_winner(create_companion(study, url))
        before, worker = worker, worker.by_the_recipe_of_now()
        # The search may have been made longer, or the choice another one, in the meantime.
        if worker.recipe == before.recipe or stop.is_set():
            break
    try:
        companion = open_(companion_name(study.study_name))
    except StudyError:
        return DONE
    return worker.train_for_verdict(companion, patience)


if __name__ == "__main__":
    sys.exit(main())
