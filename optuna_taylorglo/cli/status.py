"""``taylorglo status [STUDY]``: how far a search is and who works on it, or which studies exist."""

from __future__ import annotations

import argparse
import threading
from dataclasses import dataclass
from datetime import datetime

import optuna
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState
from rich.console import Console
from rich.table import Table

from optuna_taylorglo.attributes import EVALUATION_OF, GENERATION, INDEX, RECIPE
from optuna_taylorglo.cli import options
from optuna_taylorglo.cli.progress import PlainConsole, bold, fitness_line
from optuna_taylorglo.process import DONE
from optuna_taylorglo.recipes.load import settled_recipe
from optuna_taylorglo.search.history import SearchHistory
from optuna_taylorglo.study.heartbeat import WorkerProcess
from optuna_taylorglo.study.open import check_file_exists, find_evaluation_study, open_storage
from optuna_taylorglo.study.storages import resolve_storage_url, shown_url
from optuna_taylorglo.verdict.selection import is_undecided, load_selection

SILENT = 120.0
"""Seconds without a heartbeat, of which there is one a minute, after which a worker is named."""

_RECENT = 50
"""Evaluations by which the rate of a search is measured."""


def add_commands(commands: options.Commands[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    help = "how far a search is and who works on it, or which studies there are"
    parser = options.add_command(commands, "status", status, help)
    parser.add_argument("study", nargs="?", help="name of the study; default: a list of all")


def status(arguments: argparse.Namespace, stop: threading.Event) -> int:
    """Print the state of a study, or a line for each."""
    console = PlainConsole()
    if arguments.study is None:
        _list_studies(resolve_storage_url(arguments.storage), console)
    else:
        _show_study(options.open_study_of(arguments), console)
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
    study, recipe = opened.study, opened.recipe
    history, running = SearchHistory(study, recipe), _running(study)
    console.print("Study", bold(study.study_name), f"in {shown_url(opened.url)}")
    console.print(
        f"Generations: {history.n_finished} of {recipe.search.total_generations} complete, "
        f"{history.n_filled} of {history.n_slots} candidates evaluated"
    )
    if recipe.search.method == "glo":
        console.print(
            f"Equal functions: {history.n_reused} trees had the result of an equal one and were "
            "not evaluated again"
        )
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


@dataclass(frozen=True)
class _Running:
    """A running trial, and what it is."""

    name: str
    trial: FrozenTrial


def _running(study: Study) -> list[_Running]:
    """Running trials of a search and of its evaluation study."""
    running, found = (TrialState.RUNNING,), []
    for trial in study.get_trials(deepcopy=False, states=running):
        attrs, name = trial.user_attrs, f"trial {trial.number}"
        if GENERATION in attrs:
            name = f"generation {attrs[GENERATION] + 1}, candidate {attrs[INDEX] + 1}"
        found.append(_Running(name, trial))
    if (evaluation_study := find_evaluation_study(study)) is not None:
        for trial in evaluation_study.get_trials(deepcopy=False, states=running):
            name = f"training {trial.number}: {trial.user_attrs.get('loss')}"
            found.append(_Running(name, trial))
    return found


def _show_workers(running: list[_Running], console: Console) -> None:
    if not running:
        console.print("Workers: none is training")
        return
    table = Table("worker", "does", "for", "last heartbeat", title="Workers that train now")
    warnings = []
    for each in running:
        worker, start = WorkerProcess.of(each.trial), each.trial.datetime_start
        since = 0.0 if start is None else (datetime.now() - start).total_seconds()
        age = None if worker is None else worker.silent_seconds
        heartbeat = "" if age is None else f"{duration(age)} ago"
        table.add_row(str(worker or "unknown"), each.name, duration(since), heartbeat)
        if (since if age is None else age) > SILENT:
            warnings.append(
                f"No heartbeat of {each.name} on {worker or 'an unknown worker'}. A running worker "
                "takes it over after the grace period; if there is none, start one."
            )
    console.print(table)
    for warning in warnings:
        console.print(warning)


def seconds_left(history: SearchHistory) -> float | None:
    """Time until the search is over at the rate of its latest evaluations; None if unknown."""
    ended = sorted(
        trial.datetime_complete
        for trial in history.trials
        if trial.state in (TrialState.COMPLETE, TrialState.PRUNED)
        and trial.datetime_complete is not None
    )[-_RECENT:]
    if len(ended) < 2:
        return None
    rate = (len(ended) - 1) / (ended[-1] - ended[0]).total_seconds()
    return (history.n_slots - history.n_filled) / rate


def duration(seconds: float) -> str:
    """A time for people: "40 s", "12 min", "3 h 20 min"."""
    if round(seconds) < 120:
        return f"{round(seconds)} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
