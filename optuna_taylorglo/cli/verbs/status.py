"""``taylorglo status [STUDY]``: how far a search is and who works on it, or which studies exist."""

from __future__ import annotations

import argparse
import threading

import optuna
from optuna.study import Study
from rich.console import Console
from rich.table import Table

from optuna_taylorglo.attributes import COMPANION_OF, RECIPE
from optuna_taylorglo.cli import options
from optuna_taylorglo.cli.activity import Activity, activities, duration, seconds_left
from optuna_taylorglo.cli.console import PlainConsole, bold
from optuna_taylorglo.cli.fitness import fitness_line
from optuna_taylorglo.cli.process import DONE
from optuna_taylorglo.recipes.in_study import settled_recipe
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.search.history import SearchHistory
from optuna_taylorglo.storage.open_storage import open_storage
from optuna_taylorglo.storage.open_study import check_file_exists
from optuna_taylorglo.storage.urls import resolve_storage_url, shown_url
from optuna_taylorglo.verdict.choice import is_undecided, kept_choice


def add_parser(verbs: options.Verbs[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    help_ = "how far a search is and who works on it, or which studies there are"
    parser = options.add_verb(verbs, "status", run, help_)
    parser.add_argument("study", nargs="?", help="name of the study; default: a list of all")


def run(arguments: argparse.Namespace, stop: threading.Event) -> int:
    """Print the state of a study, or a line for each."""
    console = PlainConsole()
    if arguments.study is None:
        _list_studies(resolve_storage_url(arguments.storage), console)
    else:
        _show_study(options.open_study_of(arguments), console)
    return DONE


def _show_study(opened: options.OpenedStudy, console: Console) -> None:
    """Generations, trials by state, workers, time left, and the best."""
    study, recipe = opened.study, opened.recipe
    history, at_work = SearchHistory(study, recipe), activities(study)
    console.print("Study", bold(study.study_name), f"in {shown_url(opened.url)}")
    console.print(
        f"Generations: {history.n_finished} of {recipe.search.n_generations} complete, "
        f"{history.n_filled} of {history.n_slots} candidates evaluated"
    )
    if recipe.search.method == "glo":
        console.print(
            f"Equal functions: {history.n_reused} trees had the result of an equal one and were "
            "not evaluated again"
        )
    states = ", ".join(f"{n} {s.name.lower()}" for s, n in history.counts.items() if n)
    console.print(f"Trials: {states or 'none yet'}")
    if recipe.budget.evaluation == "auto":
        console.print("Length of evaluations: not settled yet, the pilot is not over")
    _show_workers(at_work, console)
    left = seconds_left(history)
    if at_work and not history.finished and left is not None:
        console.print(f"Time left: about {duration(left)} for the search at the pace of now")
    choice = kept_choice(study)
    if choice is not None:
        console.print(f"Winner: {choice.winner.name}")
    elif recipe.choice is not None and history.finished:
        console.print("Winner: not chosen yet")
    console.print(fitness_line(history, choice))


def _show_workers(at_work: list[Activity], console: Console) -> None:
    if not at_work:
        console.print("Workers: none is training")
        return
    table = Table("worker", "does", "since", "last sign of life", title="Workers that train now")
    for activity in at_work:
        silent = "" if activity.silent is None else f"{duration(activity.silent)} ago"
        worker = str(activity.worker or "unknown")
        table.add_row(worker, activity.doing, duration(activity.seconds), silent)
    console.print(table)
    for activity in at_work:
        if activity.seems_lost:
            console.print(_awaited(activity))


def _awaited(activity: Activity) -> str:
    """What the search waits for, though perhaps in vain."""
    by = f" on {activity.worker}" if activity.worker is not None else ""
    since = f"no sign of life since its start, {duration(activity.seconds)} ago"
    if activity.silent is not None:
        since = f"no sign of life for {duration(activity.silent)}"
    return (
        f"Waits for {activity.doing}{by}: {since}. A worker that is at work takes it back after "
        "the grace period; if there is none, start one."
    )


def _list_studies(url: str, console: Console) -> None:
    check_file_exists(url)
    storage = open_storage(url)
    table = Table("study", "data", "model", "generation", "best", "state")
    for name in sorted(optuna.get_all_study_names(storage)):
        study = optuna.load_study(study_name=name, storage=storage)
        if COMPANION_OF not in study.user_attrs:
            table.add_row(name, *_cells(study))
    console.print(f"Studies in {shown_url(url)}" + ("" if table.row_count else ": none"))
    if table.row_count:
        console.print(table)


def _cells(study: Study) -> tuple[str, ...]:
    recipe = settled_recipe(study) if RECIPE in study.user_attrs else None
    if recipe is None:
        return ("", "", "", "", "no worker has begun")
    history = SearchHistory(study, recipe)
    best = "" if history.best is None else f"{history.best.values[0]:.4f}"
    return (
        *(part.class_path.rsplit(".", 1)[-1] for part in (recipe.data, recipe.model)),
        f"{history.n_finished} of {recipe.search.n_generations}",
        best,
        _state(study, recipe, history),
    )


def _state(study: Study, recipe: Recipe, history: SearchHistory) -> str:
    at_work = activities(study)
    if at_work:
        return f"{len(at_work)} training"
    if not history.finished:
        return "interrupted" if history.trials else "not begun"
    return "winner not chosen" if is_undecided(study, recipe) else "complete"
