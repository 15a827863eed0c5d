"""``taylorglo run RECIPE``: create or resume a study and search with local workers."""

from __future__ import annotations

import argparse
import shlex
import threading
import time
from pathlib import Path

from optuna.study import Study
from rich.console import Console

from optuna_taylorglo.cli import options
from optuna_taylorglo.cli.console import PlainConsole, bold
from optuna_taylorglo.cli.fitness import fitness_line
from optuna_taylorglo.cli.preflight import dry_run
from optuna_taylorglo.cli.progress import LiveProgress
from optuna_taylorglo.cli.verbs import baseline
from optuna_taylorglo.cli.workers import add_workers_option, local_workers, log_dir
from optuna_taylorglo.errors import OperationError, StopRequested, StudyError, WorkersFailed
from optuna_taylorglo.local import Job, prepare
from optuna_taylorglo.process import DONE
from optuna_taylorglo.recipes.load import (
    find_recipe,
    frozen_recipe,
    load_recipe,
    recipe_differences,
)
from optuna_taylorglo.recipes.schema import Recipe, own_loss_warning, search_size
from optuna_taylorglo.search.candidates import resolve_start
from optuna_taylorglo.search.history import SearchHistory
from optuna_taylorglo.search.study import attach_recipe, direction_of
from optuna_taylorglo.study.open import create_study, find_evaluation_study, open_study
from optuna_taylorglo.study.queue import has_results, last_exception
from optuna_taylorglo.study.storages import resolve_storage_url, shown_url
from optuna_taylorglo.verdict.winner import (
    evaluation_advice,
    is_undecided,
    load_selection,
    selected_loss,
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
    parser.add_argument(
        "--n-generations",
        type=options.positive,
        help="search.n_generations in place of the recipe's; a study that has fewer goes on",
    )
    options.add_output_option(parser, "best_loss.json")
    add_workers_option(parser)
    options.add_machine_options(parser)


def run(arguments: argparse.Namespace, stop: threading.Event) -> int:
    """Search until the end, and announce the winner."""
    options.check_output(arguments.output)
    url = resolve_storage_url(arguments.storage)
    path = find_recipe(arguments.recipe)
    recipe = resolve_start(load_recipe(path))
    name = arguments.recipe.stem
    if arguments.seed is not None:
        recipe = recipe.changed(search=recipe.search.changed(seed=arguments.seed))
        name += f"_seed_{arguments.seed}"
    if arguments.n_generations is not None:
        recipe = recipe.changed(search=recipe.search.changed(n_generations=arguments.n_generations))
    console = PlainConsole()
    if warning := own_loss_warning(recipe.fitness):
        console.print(bold("Warning"), f": {warning}", sep="", highlight=False)
    name = arguments.study_name or name
    if not _is_complete(name, url, recipe):
        prepare()
        dry_run(recipe, options.machine_of(arguments), path)
    study = create_study(name, url, direction=direction_of(recipe))
    opened = options.OpenedStudy(study, attach_recipe(study, recipe), url)
    if not SearchHistory(study, opened.recipe).finished or is_undecided(study, opened.recipe):
        _search(opened, arguments, stop, console)
    _announce_winner(study, url, arguments, console)
    return DONE


def _is_complete(name: str, url: str, recipe: Recipe) -> bool:
    """Whether a study of this recipe is there, with nothing left to train."""
    try:
        study = open_study(name, url)
    except StudyError:
        return False
    held = frozen_recipe(study)
    if held is None or recipe_differences(held, recipe):
        return False
    settled = attach_recipe(study, None)
    return SearchHistory(study, settled).finished and not is_undecided(study, settled)


def _search(
    opened: options.OpenedStudy,
    arguments: argparse.Namespace,
    stop: threading.Event,
    console: Console,
) -> None:
    """Let workers search until the end, and choose the winner."""
    from optuna_taylorglo.cli.stages import Stages

    name, search = opened.study.study_name, opened.recipe.search
    # The storage's URL goes by a pipe: a command line, password included, is visible to all.
    reference = (name, opened.url, options.RuntimeOptions.of(arguments))
    others = [Job(baseline.run_process, reference)]
    processes, n_workers = local_workers(name, opened.url, arguments, others)
    console.print(
        "Study",
        bold(name),
        f"in {shown_url(opened.url)}: {n_workers} workers, {search_size(search)}. Logs in "
        f"{log_dir(name)}.",
    )
    stages = Stages(opened)
    processes.start()
    try:
        with LiveProgress(console) as live:
            due = 0.0
            # A dead worker is noticed sooner than the study is looked at, which costs more.
            while processes.poll() and not stop.wait(0.25):
                if time.monotonic() >= due:
                    stages.show(live)
                    due = time.monotonic() + 1.0
            stages.show(live)
    except WorkersFailed:
        _tell_of_exception(opened.study)
        raise
    finally:
        processes.stop()
    if stop.is_set():
        raise StopRequested


def _tell_of_exception(study: Study) -> None:
    """Say what evaluations ended with, where none came to its end.

    Raises:
        OperationError: If they ended with an exception.
    """
    for each in (study, find_evaluation_study(study)):
        failure = None if each is None or has_results(each) else last_exception(each)
        if failure is not None:
            raise OperationError(
                f"all trainings of study {study.study_name!r} fail; the last one with\n{failure}\n"
                "Mend its cause, and the same command goes on: no candidate was used up."
            )


def _announce_winner(
    study: Study, url: str, arguments: argparse.Namespace, console: Console
) -> None:
    from optuna_taylorglo.losses.describe import describe

    history = SearchHistory(study, attach_recipe(study, None))
    if history.best is None:
        _tell_of_exception(study)
        helps = "loss.class_reduction: sum"
        if history.recipe.search.method == "taylor":
            helps = "search.filter: trainable or " + helps
        raise OperationError(
            f"no candidate of study {study.study_name!r} trained at all. A larger learning rate, "
            f"{helps} in the recipe may help."
        )
    chosen, selection = selected_loss(study), load_selection(study)
    chosen.loss.save(arguments.output)
    console.print()
    console.print(bold("Winner"), f": {chosen.name} of study {study.study_name}", sep="")
    console.print(str(describe(chosen.loss, chosen.loss.n_classes or 2)), highlight=False)
    console.print(fitness_line(history, selection), highlight=False)
    if selection is not None:
        console.print(evaluation_advice(selection, history.recipe), highlight=False)
    console.print()
    console.print("Saved to ", bold(arguments.output), ". Next:", sep="")
    name = study.study_name
    where = [] if url == resolve_storage_url() else ["--storage", shown_url(url)]
    for words in (
        ["evaluate", name, *where, *options.given_machine_words(arguments)],
        ["report", name, *where, "-o", "report.html"],
        ["dashboard", name, *where],
    ):
        console.print("  " + shlex.join(["taylorglo", *words]), highlight=False, soft_wrap=True)
