"""``taylorglo status STUDY``: how far a search is."""

from __future__ import annotations

import argparse
import threading

from rich.console import Console

from optuna_taylorglo.cli.fitness import fitness_line
from optuna_taylorglo.search.history import SearchHistory
from optuna_taylorglo.search.study import attach_recipe
from optuna_taylorglo.storage.studies import open_study
from optuna_taylorglo.storage.urls import resolve_storage_url, shown_url
from optuna_taylorglo.worker import DONE, add_storage_option


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser("status", help="how far a search is")
    parser.add_argument("study", help="name of the study")
    add_storage_option(parser)
    parser.set_defaults(action=run)


def run(arguments: argparse.Namespace, stop: threading.Event) -> int:
    """Print generations, trials by state, and the best."""
    url = resolve_storage_url(arguments.storage)
    study = open_study(arguments.study, url)
    recipe = attach_recipe(study, None)
    history = SearchHistory(study, recipe)
    console = Console()
    console.print(f"Study [bold]{study.study_name}[/] in {shown_url(url)}")
    console.print(
        f"Generations: {history.n_finished} of {recipe.search.generations} complete, "
        f"{history.n_filled} of {history.n_slots} candidates evaluated"
    )
    states = ", ".join(f"{n} {s.name.lower()}" for s, n in history.counts.items() if n)
    console.print(f"Trials: {states or 'none yet'}")
    console.print(fitness_line(history))
    return DONE
