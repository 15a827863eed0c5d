"""``taylorglo run RECIPE``: create or resume a study and search with local workers."""

from __future__ import annotations

import argparse
import shlex
import threading
from pathlib import Path

from optuna.study import Study
from rich.console import Console

from optuna_taylorglo.cli.fitness import fitness_line
from optuna_taylorglo.cli.local_workers import (
    LOG_DIR,
    add_workers_option,
    machine_words,
    supervise,
)
from optuna_taylorglo.cli.progress import LiveProgress
from optuna_taylorglo.errors import StopRequested, StudyError
from optuna_taylorglo.recipes.bundled import find_recipe
from optuna_taylorglo.recipes.loading import load_recipe
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.search.history import progress, trial_loss, winner
from optuna_taylorglo.search.study import attach_recipe
from optuna_taylorglo.storage.studies import create_study
from optuna_taylorglo.storage.urls import resolve_storage_url, shown_url
from optuna_taylorglo.worker import DONE, add_machine_options, add_storage_option


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser("run", help="create or resume a study and search")
    parser.add_argument("recipe", type=Path, help="recipe file, such as studies/digits_cnn.yaml")
    parser.add_argument("--study-name", help="name of the study; default: the recipe file's stem")
    add_workers_option(parser)
    parser.add_argument(
        "--output", "-o", type=Path, default=Path("best_loss.json"), help="file (%(default)s)"
    )
    add_storage_option(parser)
    add_machine_options(parser)
    parser.set_defaults(action=run)


def run(arguments: argparse.Namespace, stop: threading.Event) -> int:
    """Search until the end, and announce the winner."""
    url = resolve_storage_url(arguments.storage)
    recipe = load_recipe(find_recipe(arguments.recipe))
    study = create_study(arguments.study_name or arguments.recipe.stem, url)
    recipe = attach_recipe(study, recipe)
    console = Console()
    if progress(study, recipe).generation < recipe.search.generations:
        _search(study, recipe, arguments, url, stop, console)
    _announce_winner(study, recipe, arguments.output, url, console)
    return DONE


def _search(
    study: Study,
    recipe: Recipe,
    arguments: argparse.Namespace,
    url: str,
    stop: threading.Event,
    console: Console,
) -> None:
    """Let workers search until the end."""
    name = study.study_name
    baseline = ["optuna_taylorglo.cli", "baseline", name, *machine_words(arguments)]
    supervisor, n_workers = supervise(name, url, arguments, [baseline])
    console.print(
        f"Study [bold]{name}[/] in {shown_url(url)}: {n_workers} workers, "
        f"{recipe.search.generations} generations of {recipe.search.population} candidates. "
        f"Logs in {LOG_DIR / name}."
    )
    supervisor.start()
    try:
        with LiveProgress(console) as live:
            while supervisor.poll() and not stop.wait(1.0):
                live.show(progress(study, recipe))
            live.show(progress(study, recipe))
    finally:
        supervisor.stop()
    if stop.is_set():
        raise StopRequested


def _announce_winner(
    study: Study, recipe: Recipe, output: Path, url: str, console: Console
) -> None:
    from optuna_taylorglo.losses.description import describe

    best = winner(study)
    if best is None:
        raise StudyError(
            f"no candidate of study {study.study_name!r} trained at all. A larger learning rate, "
            "search.filter: trainable or loss.class_reduction: sum in the recipe may help."
        )
    loss = trial_loss(study, best)
    loss.save(output)
    console.print(f"\n[bold]Winner[/]: trial {best.number} of study {study.study_name}")
    console.print(str(describe(loss, loss.n_classes or 2)), highlight=False)
    console.print(f"{fitness_line(progress(study, recipe), recipe)}\n", highlight=False)
    console.print(f"Saved to [bold]{output}[/]. Next:")
    storage = "" if url == resolve_storage_url() else f" --storage {shlex.quote(shown_url(url))}"
    for command in (
        f"taylorglo evaluate {study.study_name}{storage}",
        f"taylorglo report {study.study_name}{storage} -o report.html",
        f"taylorglo dashboard {study.study_name}{storage}",
    ):
        console.print(f"  {command}", highlight=False, soft_wrap=True)
