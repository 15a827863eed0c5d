"""``taylorglo status STUDY``: how far a search is."""

from __future__ import annotations

import argparse
import threading

from rich.console import Console

from optuna_taylorglo.cli import options
from optuna_taylorglo.cli.fitness import fitness_line
from optuna_taylorglo.cli.process import DONE
from optuna_taylorglo.search.history import SearchHistory
from optuna_taylorglo.storage.urls import shown_url
from optuna_taylorglo.verdict.choice import kept_choice


def add_parser(verbs: options.Verbs[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    options.add_study_verb(verbs, "status", run, "how far a search is")


def run(arguments: argparse.Namespace, stop: threading.Event) -> int:
    """Print generations, trials by state, and the best."""
    opened = options.open_study_of(arguments)
    history = SearchHistory(opened.study, opened.recipe)
    console = Console()
    console.print(f"Study [bold]{opened.study.study_name}[/] in {shown_url(opened.url)}")
    console.print(
        f"Generations: {history.n_finished} of {opened.recipe.search.generations} complete, "
        f"{history.n_filled} of {history.n_slots} candidates evaluated"
    )
    states = ", ".join(f"{n} {s.name.lower()}" for s, n in history.counts.items() if n)
    console.print(f"Trials: {states or 'none yet'}")
    if opened.recipe.budget.evaluation == "auto":
        console.print("Length of evaluations: not settled yet, the pilot is not over")
    choice = kept_choice(opened.study)
    if choice is not None:
        console.print(f"Winner: {choice.winner.name}")
    elif opened.recipe.choice is not None and history.finished:
        console.print("Winner: not chosen yet")
    console.print(fitness_line(history, choice))
    return DONE
