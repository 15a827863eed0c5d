"""``taylorglo run RECIPE``: create or resume a study and search with local workers."""

from __future__ import annotations

import argparse
import shlex
import threading
from pathlib import Path

from optuna.study import Study
from rich.console import Console

from optuna_taylorglo.cli import options
from optuna_taylorglo.cli.fitness import fitness_line
from optuna_taylorglo.cli.local_workers import LOG_DIR, add_workers_option, supervise
from optuna_taylorglo.cli.process import DONE
from optuna_taylorglo.cli.progress import LiveProgress
from optuna_taylorglo.errors import OperationError, StopRequested
from optuna_taylorglo.recipes.bundled import find_recipe
from optuna_taylorglo.recipes.loading import load_recipe
from optuna_taylorglo.search.history import SearchHistory
from optuna_taylorglo.search.study import attach_recipe
from optuna_taylorglo.storage.open_study import create_study
from optuna_taylorglo.storage.urls import resolve_storage_url, shown_url
from optuna_taylorglo.verdict.choice import (
    chosen_loss,
    evaluation_advice,
    is_undecided,
    kept_choice,
)


def add_parser(verbs: options.Verbs[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = options.add_verb(verbs, "run", run, "create or resume a study and search")
    parser.add_argument(
        "recipe", type=Path, help="recipe file, or the name of a bundled one, such as digits_cnn"
    )
    parser.add_argument("--study-name", help="name of the study; default: the recipe's")
    parser.add_argument(
        "--seed",
        type=int,
        help="search.seed in place of the recipe's, for another search of the same kind; the "
        "study's default name then ends in it",
    )
    options.add_output_option(parser, "best_loss.json")
    add_workers_option(parser)
    options.add_machine_options(parser)


def run(arguments: argparse.Namespace, stop: threading.Event) -> int:
    """Search until the end, and announce the winner."""
    url = resolve_storage_url(arguments.storage)
    recipe = load_recipe(find_recipe(arguments.recipe))
    name = arguments.recipe.stem
    if arguments.seed is not None:
        recipe = recipe.changed(search=recipe.search.changed(seed=arguments.seed))
        name += f"_seed_{arguments.seed}"
    study = create_study(arguments.study_name or name, url)
    opened = options.OpenedStudy(study, attach_recipe(study, recipe), url)
    console = Console()
    if not SearchHistory(study, opened.recipe).finished or is_undecided(study, opened.recipe):
        _search(opened, arguments, stop, console)
    _announce_winner(study, url, arguments, console)
    return DONE


def _search(
    opened: options.OpenedStudy,
    arguments: argparse.Namespace,
    stop: threading.Event,
    console: Console,
) -> None:
    """Let workers search until the end, and choose the winner."""
    from optuna_taylorglo.cli.stages import Stages

    name, search = opened.study.study_name, opened.recipe.search
    baseline = ["optuna_taylorglo.cli", "baseline", name, *options.machine_words(arguments)]
    supervisor, n_workers = supervise(name, opened.url, arguments, [baseline])
    console.print(
        f"Study [bold]{name}[/] in {shown_url(opened.url)}: {n_workers} workers, "
        f"{search.generations} generations of {search.population} candidates. "
        f"Logs in {LOG_DIR / name}."
    )
    stages = Stages(opened)
    supervisor.start()
    try:
        with LiveProgress(console) as live:
            while supervisor.poll() and not stop.wait(1.0):
                stages.show(live)
            stages.show(live)
    finally:
        supervisor.stop()
    if stop.is_set():
        raise StopRequested


def _announce_winner(
    study: Study, url: str, arguments: argparse.Namespace, console: Console
) -> None:
    from optuna_taylorglo.losses.description import describe

    history = SearchHistory(study, attach_recipe(study, None))
    if history.best is None:
        raise OperationError(
            f"no candidate of study {study.study_name!r} trained at all. A larger learning rate, "
            "search.filter: trainable or loss.class_reduction: sum in the recipe may help."
        )
    chosen, choice = chosen_loss(study), kept_choice(study)
    chosen.loss.save(arguments.output)
    console.print(f"\n[bold]Winner[/]: {chosen.name} of study {study.study_name}")
    console.print(str(describe(chosen.loss, chosen.loss.n_classes or 2)), highlight=False)
    console.print(fitness_line(history, choice), highlight=False)
    if choice is not None:
        console.print(evaluation_advice(choice, history.recipe), highlight=False)
    console.print()
    console.print(f"Saved to [bold]{arguments.output}[/]. Next:")
    name = study.study_name
    where = [] if url == resolve_storage_url() else ["--storage", shown_url(url)]
    for words in (
        ["evaluate", name, *where, *options.given_machine_words(arguments)],
        ["report", name, *where, "-o", "report.html"],
        ["dashboard", name, *where],
    ):
        console.print(
            "  " + shlex.join(["taylorglo", *words]), highlight=False, soft_wrap=True, markup=False
        )
