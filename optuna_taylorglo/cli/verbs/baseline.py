"""``taylorglo baseline STUDY``: cross-entropy at the candidates' own budget."""

from __future__ import annotations

import argparse
import threading

from rich.console import Console

from optuna_taylorglo.cli.fitness import fitness_line
from optuna_taylorglo.search.history import SearchHistory
from optuna_taylorglo.search.study import attach_recipe
from optuna_taylorglo.storage.studies import open_study
from optuna_taylorglo.storage.urls import resolve_storage_url
from optuna_taylorglo.worker import (
    DONE,
    add_machine_options,
    add_storage_option,
    machine_of,
    positive,
)


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser("baseline", help="train with cross-entropy as candidates are trained")
    parser.add_argument("study", help="name of the study")
    parser.add_argument("--seeds", type=positive, default=3, help="trainings (%(default)s)")
    add_storage_option(parser)
    add_machine_options(parser)
    parser.set_defaults(action=run)


def run(arguments: argparse.Namespace, stop: threading.Event) -> int:
    """Train, and keep the results in the study."""
    study = open_study(arguments.study, resolve_storage_url(arguments.storage))
    recipe = attach_recipe(study, None)

    from optuna_taylorglo.training.run import Training
    from optuna_taylorglo.verdict.reference import evaluate_cross_entropy

    training = Training(recipe, machine_of(arguments))
    evaluate_cross_entropy(study, training, arguments.seeds, stop)
    Console().print(fitness_line(SearchHistory(study, recipe)))
    return DONE
