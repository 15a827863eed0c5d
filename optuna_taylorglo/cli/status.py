"""``taylorglo status [STUDY]``: how far a search is and who works on it, or which studies exist."""

from __future__ import annotations

import argparse
import threading
from datetime import datetime

import optuna
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState
from rich.console import Console
from rich.table import Table

from optuna_taylorglo.attributes import EVALUATION_OF, GENERATION, INDEX, RECIPE
from optuna_taylorglo.cli import options
from optuna_taylorglo.cli.progress import PlainConsole
from optuna_taylorglo.process import DONE
from optuna_taylorglo.recipes.load import settled_recipe
from optuna_taylorglo.report.dashboard import fitness_line
from optuna_taylorglo.search.history import SearchHistory
from optuna_taylorglo.study.heartbeat import WorkerProcess
from optuna_taylorglo.study.open import check_file_exists, find_evaluation_study, open_storage
from optuna_taylorglo.study.storages import resolve_storage_url, shown_url
from optuna_taylorglo.verdict.selection import is_undecided, load_selection

_RECENT = 50
"""Evaluations by which the rate of a search is measured."""


def add_commands(commands: options.Commands[argparse.ArgumentParser]) -> None:
    help = "how far a search is and who works on it, or which studies there are"
    parser = options.add_command(commands, "status", status, help)
    parser.add_argument("study", nargs="?", help="name of the study; default: a list of all")


def status(arguments: argparse.Namespace, stop: threading.Event) -> int:
    """Print the state of a study, or a line for each."""
    if arguments.study is None:
        _list_studies(resolve_storage_url(arguments.storage), PlainConsole())
    else:
        _show_study(options.open_study_of(arguments), PlainConsole())
    return DONE


def _list_studies(url: str, console: Console) -> None:
    check_file_exists(url)
    storage = open_storage(url)
    table = Table("study", "data", "model", "generation", "best", "state")
    for name in sorted(optuna.get_all_study_names(storage)):
        study = optuna.load_study(study_name=name, storage=storage)
        if EVALUATION_OF not in study.user_attrs:
            table.add_row(name, *_cells(study))
    console.print(f"Studies in {shown_url(url)}" + ("" if table.row_count else ": none"))
    if table.row_count:
        console.print(table)


def _cells(study: Study) -> tuple[str, ...]:
    recipe = settled_recipe(study) if RECIPE in study.user_attrs else None
    if recipe is None:
        return "", "", "", "", "no worker has begun"
    history, running = SearchHistory(study, recipe), _running(study)
    data, model = (part.class_path.rsplit(".", 1)[-1] for part in (recipe.data, recipe.model))
    best = "" if history.best is None else f"{history.best.values[0]:.4f}"
    if running:
        state = f"{len(running)} training"
    elif not history.finished:
        state = "interrupted" if history.trials else "not begun"
    else:
        state = "winner not selected" if is_undecided(study, recipe) else "complete"
    return data, model, f"{history.n_finished} of {recipe.search.total_generations}", best, state


def _show_study(opened: options.OpenedStudy, console: Console) -> None:
    """Generations, trials by state, workers, time left, and the best."""
    study, recipe, url = opened
    history, running = SearchHistory(study, recipe), _running(study)
    console.print(f"Study {study.study_name} in {shown_url(url)}")
    console.print(
        f"Generations: {history.n_finished} of {recipe.search.total_generations} complete, "
        f"{history.n_filled} of {history.n_slots} candidates evaluated"
    )
    if recipe.search.method == "glo":
        console.print(f"Equal functions: {history.n_reused} trees were not evaluated again")
    states = ", ".join(f"{n} {s.name.lower()}" for s, n in history.counts.items() if n)
    console.print(f"Trials: {states or 'none yet'}")
    _show_workers(running, console)
    left = seconds_left(history)
    if running and not history.finished and left is not None:
        console.print(f"Time left: about {duration(left)} for the search at the current rate")
    selection = load_selection(study)
    if selection is not None:
        console.print(f"Winner: {selection.winner.name}")
    elif recipe.selection is not None and history.finished:
        console.print("Winner: not selected yet")
    console.print(fitness_line(history, selection))


def _running(study: Study) -> list[tuple[str, FrozenTrial]]:
    """Running trials of a search and of its evaluation study, each with what it is."""
    found, evaluation_study = [], find_evaluation_study(study)
    for each in filter(None, (study, evaluation_study)):
        for trial in each.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            attrs, name = trial.user_attrs, f"trial {trial.number}"
            if GENERATION in attrs:
                name = f"generation {attrs[GENERATION] + 1}, candidate {attrs[INDEX] + 1}"
            elif each is evaluation_study:
                name = f"training {trial.number}: {attrs.get('loss')}"
            found.append((name, trial))
    return found


def _show_workers(running: list[tuple[str, FrozenTrial]], console: Console) -> None:
    if not running:
        console.print("Workers: none is training")
        return
    table = Table("worker", "does", "for", "last heartbeat", title="Workers that train now")
    for name, trial in running:
        worker, start = WorkerProcess.of(trial), trial.datetime_start
        since = "" if start is None else duration((datetime.now() - start).total_seconds())
        heartbeat = "none" if worker is None else f"{duration(worker.silent_seconds)} ago"
        table.add_row(str(worker or "unknown"), name, since, heartbeat)
    console.print(table)


def seconds_left(history: SearchHistory) -> float | None:
    """Time until the search is over at the rate of its latest evaluations; None if unknown."""
    ended = sorted(
        trial.datetime_complete
        for trial in history.trials
        if trial.state in (TrialState.COMPLETE, TrialState.PRUNED) and trial.datetime_complete
    )[-_RECENT:]
    if len(ended) < 2:
        return None
    seconds = (ended[-1] - ended[0]).total_seconds() / (len(ended) - 1)
    return (history.n_slots - history.n_filled) * seconds


def duration(seconds: float) -> str:
    """A time for people: "40 s", "12 min", "3 h 20 min"."""
    if round(seconds) < 120:
        return f"{round(seconds)} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
