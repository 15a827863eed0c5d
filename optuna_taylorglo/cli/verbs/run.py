"""``taylorglo run RECIPE``: create or resume a study and search with local workers."""

from __future__ import annotations

import argparse
import shlex
import threading
from pathlib import Path

from rich.console import Console

from optuna_taylorglo.cli import options
from optuna_taylorglo.cli.fitness import fitness_line
from optuna_taylorglo.cli.local_workers import LOG_DIR, add_workers_option, supervise
from optuna_taylorglo.cli.process import DONE
from optuna_taylorglo.cli.progress import LiveProgress
from optuna_taylorglo.errors import OperationError, StopRequested
from optuna_taylorglo.recipes.bundled import find_recipe
from optuna_taylorglo.recipes.loading import load_recipe
from optuna_taylorglo.search.history import SearchHistory, trial_loss
from optuna_taylorglo.search.study import attach_recipe
from optuna_taylorglo.storage.open_study import create_study
from optuna_taylorglo.storage.urls import resolve_storage_url, shown_url


def add_parser(verbs: options.Verbs[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = options.add_verb(verbs, "run", run, "create or resume a study and search")
    parser.add_argument(
        "recipe", type=Path, help="recipe file, or the name of a bundled one, such as digits_cnn"
    )
    parser.add_argument("--study-name", help="name of the study; default: the recipe's")
    options.add_output_option(parser, "best_loss.json")
    add_workers_option(parser)
    options.add_machine_options(parser)


def run(arguments: argparse.Namespace, stop: threading.Event) -> int:
    """Search until the end, and announce the winner."""
    url = resolve_storage_url(arguments.storage)
    recipe = load_recipe(find_recipe(arguments.recipe))
    study = create_study(arguments.study_name or arguments.recipe.stem, url)
    opened = options.OpenedStudy(study, attach_recipe(study, recipe), url)
    console = Console()
    if not SearchHistory(study, opened.recipe).finished:
        _search(opened, arguments, stop, console)
    _announce_winner(opened, arguments.output, console)
    return DONE


def _search(
    opened: options.OpenedStudy,
    arguments: argparse.Namespace,
    stop: threading.Event,
    console: Console,
) -> None:
    """Let workers search until the end."""
    name, search = opened.study.study_name, opened.recipe.search
    baseline = ["optuna_taylorglo.cli", "baseline", name, *options.machine_words(arguments)]
    supervisor, n_workers = supervise(name, opened.url, arguments, [baseline])
    console.print(
        f"Study [bold]{name}[/] in {shown_url(opened.url)}: {n_workers} workers, "
        f"{search.generations} generations of {search.population} candidates. "
        f"Logs in {LOG_DIR / name}."
    )
    supervisor.start()
    try:
        with LiveProgress(console) as live:
            while supervisor.poll() and not stop.wait(1.0):
                live.show(SearchHistory(opened.study, opened.recipe))
            live.show(SearchHistory(opened.study, opened.recipe))
    finally:
        supervisor.stop()
    if stop.is_set():
        raise StopRequested


def _announce_winner(opened: options.OpenedStudy, output: Path, console: Console) -> None:
    from optuna_taylorglo.losses.description import describe

    study, url = opened.study, opened.url
    history = SearchHistory(study, opened.recipe)
    best = history.best
    if best is None:
        raise OperationError(
            f"no candidate of study {study.study_name!r} trained at all. A larger learning rate, "
            "search.filter: trainable or loss.class_reduction: sum in the recipe may help."
        )
    loss = trial_loss(study, best)
    loss.save(output)
    console.print(f"\n[bold]Winner[/]: trial {best.number} of study {study.study_name}")
    console.print(str(describe(loss, loss.n_classes or 2)), highlight=False)
    console.print(f"{fitness_line(history)}\n", highlight=False)
    console.print(f"Saved to [bold]{output}[/]. Next:")
    storage = "" if url == resolve_storage_url() else f" --storage {shlex.quote(shown_url(url))}"
    for command in (
        f"taylorglo evaluate {study.study_name}{storage}",
        f"taylorglo report {study.study_name}{storage} -o report.html",
        f"taylorglo dashboard {study.study_name}{storage}",
    ):
        console.print(f"  {command}", highlight=False, soft_wrap=True)
