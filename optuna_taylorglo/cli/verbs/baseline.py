"""``taylorglo baseline STUDY``: cross-entropy at the candidates' own budget."""

from __future__ import annotations

import argparse
import logging
import threading

from optuna_taylorglo.cli import options
from optuna_taylorglo.cli.console import PlainConsole
from optuna_taylorglo.cli.fitness import fitness_line
from optuna_taylorglo.process import DONE, configure_logging, exit_code, stop_on_signals
from optuna_taylorglo.search.history import SearchHistory

SEEDS = 3
"""Trainings unless told otherwise."""


def add_parser(verbs: options.Verbs[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    help_ = "train with cross-entropy as candidates are trained"
    parser = options.add_study_verb(verbs, "baseline", run, help_)
    parser.add_argument(
        "--seeds",
        type=options.up_to(options.MOST_TRAININGS),
        default=SEEDS,
        help="trainings (%(default)s)",
    )
    options.add_machine_options(parser)


def run(arguments: argparse.Namespace, stop: threading.Event) -> int:
    """Train, and store the results in the study."""
    opened = options.open_study_of(arguments)
    return _train(opened, options.RuntimeOptions.of(arguments), arguments.seeds, stop)


def run_process(study_name: str, url: str, runtime: options.RuntimeOptions) -> int:
    """The same in a process of its own; returns the exit code."""
    configure_logging(verbose=runtime.verbose, quiet=runtime.quiet)
    stop = stop_on_signals()

    def train() -> int:
        return _train(options.open_study_at(study_name, url), runtime, SEEDS, stop)

    return exit_code(train, logging.getLogger(__name__), study_name)


def _train(
    opened: options.OpenedStudy, runtime: options.RuntimeOptions, seeds: int, stop: threading.Event
) -> int:
    from optuna_taylorglo.training.training import Training
    from optuna_taylorglo.verdict.baselines import evaluate_cross_entropy

    recipe = opened.recipe
    training = Training(recipe, runtime.machine())
    values = evaluate_cross_entropy(opened.study, training, seeds, stop)
    console = PlainConsole()
    console.print(fitness_line(SearchHistory(opened.study, recipe)))
    if diverged := values.count(None):
        console.print(
            f"{diverged} of {len(values)} trainings with cross-entropy diverged, and are not in "
            "its mean: a smaller learning rate may help."
        )
    return DONE
