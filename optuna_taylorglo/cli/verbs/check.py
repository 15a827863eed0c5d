"""``taylorglo check RECIPE``: one training step tells what is wrong, and nothing is recorded."""

from __future__ import annotations

import argparse
import threading
from pathlib import Path

from optuna_taylorglo.cli import options
from optuna_taylorglo.cli.console import PlainConsole
from optuna_taylorglo.cli.preflight import dry_run
from optuna_taylorglo.process import DONE
from optuna_taylorglo.recipes.load import find_recipe, load_recipe
from optuna_taylorglo.recipes.schema import search_size
from optuna_taylorglo.search.candidates import resolve_start


def add_parser(verbs: options.Verbs[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    help = "take one training step and one validation batch, and record nothing"
    parser = verbs.add_parser("check", help=help)
    options.add_verbosity_options(parser)
    parser.set_defaults(action=run)
    parser.add_argument("recipe", type=Path, help="recipe file, or the name of a bundled one")
    options.add_machine_options(parser)


def run(arguments: argparse.Namespace, stop: threading.Event) -> int:
    """Rehearse, and say what was found."""
    path = find_recipe(arguments.recipe)
    recipe = resolve_start(load_recipe(path))
    found = dry_run(recipe, options.machine_of(arguments), path)
    search, budget = recipe.search, recipe.budget
    console = PlainConsole()
    for name, fact in (
        ("data", f"{recipe.data.class_path}, {found.n_classes} classes"),
        ("model", f"{recipe.model.class_path}, {found.n_parameters:,} trainable parameters"),
        ("a pass", f"{found.steps_per_pass:,} steps of {recipe.batch_size} examples"),
        ("fitness", f"{recipe.fitness.metric} is {found.metric:.4g} after one step, on one batch"),
        ("search", search_size(search)),
        ("lengths", f"{budget.evaluation} and {budget.full} {budget.unit}, in search and verdict"),
    ):
        console.print(f"{name:<8} {fact}", highlight=False, soft_wrap=True)
    console.print("Nothing is wrong with it." if not found.warnings else "It works.")
    return DONE
