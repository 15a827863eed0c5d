"""``taylorglo baseline STUDY``: cross-entropy at the candidates' own budget."""

from __future__ import annotations

import argparse
import threading

from optuna_taylorglo.cli import options
from optuna_taylorglo.cli.console import PlainConsole
from optuna_taylorglo.cli.fitness import fitness_line
from optuna_taylorglo.cli.process import DONE
from optuna_taylorglo.search.history import SearchHistory
from optuna_taylorglo.search.study import wait_for_evaluation_length


def add_parser(verbs: options.Verbs[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    help_ = "train with cross-entropy as candidates are trained"
    parser = options.add_study_verb(verbs, "baseline", run, help_)
    parser.add_argument(
        "--seeds",
        type=options.up_to(options.MOST_TRAININGS),
        default=3,
        help="trainings (%(default)s)",
    )
    options.add_machine_options(parser)


def run(arguments: argparse.Namespace, stop: threading.Event) -> int:
    """Train, and keep the results in the study."""
    opened = options.open_study_of(arguments)

    from optuna_taylorglo.training.run import Training
    from optuna_taylorglo.verdict.reference import evaluate_cross_entropy

    recipe = wait_for_evaluation_length(opened.study, stop)
    training = Training(recipe, options.machine_of(arguments))
    values = evaluate_cross_entropy(opened.study, training, arguments.seeds, stop)
    console = PlainConsole()
    console.print(fitness_line(SearchHistory(opened.study, recipe)))
    if diverged := values.count(None):
        console.print(
            f"{diverged} of {len(values)} trainings with cross-entropy diverged, and are not in "
            "its mean: a smaller learning rate may help."
        )
    return DONE
