"""``taylorglo check`` and ``run``: try a recipe, and search with workers on this machine."""

from __future__ import annotations

import argparse
import shlex
import threading
import time
from pathlib import Path

from optuna.study import Study
from rich.console import Console

from optuna_taylorglo.attributes import KEY, TASK
from optuna_taylorglo.cli import evaluate, options
from optuna_taylorglo.cli.progress import LiveProgress, PlainConsole, bold, fitness_line
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
from optuna_taylorglo.search.candidates import new_log, resolve_start
from optuna_taylorglo.search.history import SearchHistory, attach_recipe, direction_of
from optuna_taylorglo.study.open import (
    create_study,
    find_evaluation_study,
    open_study,
)
from optuna_taylorglo.study.queue import counted_trials, has_results, last_exception
from optuna_taylorglo.study.storages import resolve_storage_url, shown_url
from optuna_taylorglo.verdict.output import evaluation_advice
from optuna_taylorglo.verdict.selection import (
    is_undecided,
    load_selection,
    selected_loss,
)


def add_commands(commands: options.Commands[argparse.ArgumentParser]) -> None:
    """Add the commands to the command line."""
    help = "take one training step and one validation batch, and record nothing"
    parser = commands.add_parser("check", help=help)
    options.add_verbosity_options(parser)
    parser.set_defaults(action=check)
    parser.add_argument("recipe", type=Path, help="recipe file, or the name of a bundled one")
    options.add_machine_options(parser)

    parser = options.add_command(commands, "run", run, "create or resume a study and search")
    add = parser.add_argument
    add("recipe", type=Path, help="recipe file, or the name of a bundled one, such as digits_cnn")
    add("--study-name", help="name of the study; default: the recipe's")
    add(
        "--seed",
        type=int,
        help="search.seed in place of the recipe's, for another search of the same kind; the "
        "study's default name then ends in it",
    )
    add(
        "--n-generations",
        type=options.positive,
        help="search.n_generations in place of the recipe's; a study that has fewer is continued",
    )
    options.add_output_option(parser, "best_loss.json")
    add_workers_option(parser)
    options.add_machine_options(parser)


def check(arguments: argparse.Namespace, stop: threading.Event) -> int:
    """Try a recipe, and print what was found."""
    path = find_recipe(arguments.recipe)
    recipe = resolve_start(load_recipe(path))
    found = options.dry_run(recipe, options.machine_of(arguments), path)
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
    console.print(
        "OK: the recipe works." if not found.warnings else "It works, with the warnings above."
    )
    return DONE


def run(arguments: argparse.Namespace, stop: threading.Event) -> int:
    """Search until the end, and print the winner."""
    options.check_output(arguments.output)
    url = resolve_storage_url(arguments.storage)
    path = find_recipe(arguments.recipe)
    recipe, name = resolve_start(load_recipe(path)), arguments.recipe.stem
    if arguments.seed is not None:
        recipe = recipe.changed(search=recipe.search.changed(seed=arguments.seed))
        name += f"_seed_{arguments.seed}"
    if arguments.n_generations is not None:
        n_generations = arguments.n_generations
        recipe = recipe.changed(search=recipe.search.changed(n_generations=n_generations))
    name = arguments.study_name or name
    console = PlainConsole()
    if warning := own_loss_warning(recipe.fitness):
        console.print(bold("Warning"), f": {warning}", sep="", highlight=False)
    if not _is_complete(name, url, recipe):
        prepare()
        options.dry_run(recipe, options.machine_of(arguments), path)
    study = create_study(name, url, direction=direction_of(recipe))
    opened = options.OpenedStudy(study, attach_recipe(study, recipe), url)
    if not SearchHistory(study, opened.recipe).finished or is_undecided(study, opened.recipe):
        _search(opened, arguments, stop, console)
    _print_winner(study, arguments, console)
    _print_next_commands(study, url, arguments, console)
    return DONE


def _is_complete(name: str, url: str, recipe: Recipe) -> bool:
    """Whether a study of this recipe exists, with nothing left to train."""
    try:
        study = open_study(name, url)
    except StudyError:
        return False
    saved = frozen_recipe(study)
    if saved is None or recipe_differences(saved, recipe):
        return False
    settled = attach_recipe(study)
    return SearchHistory(study, settled).finished and not is_undecided(study, settled)


def _search(
    opened: options.OpenedStudy,
    arguments: argparse.Namespace,
    stop: threading.Event,
    console: Console,
) -> None:
    """Let workers search until the end, and select the winner."""
    name, url = opened.study.study_name, opened.url
    # The storage's URL is sent by a pipe: a command line, password included, is visible to all.
    baseline = Job(evaluate.run_baseline, (name, url, options.RuntimeOptions.of(arguments)))
    processes, n_workers = local_workers(name, url, arguments, [baseline])
    console.print(
        "Study",
        bold(name),
        f"in {shown_url(url)}: {n_workers} workers, {search_size(opened.recipe.search)}. "
        f"Logs in {log_dir(name)}.",
    )
    stages = _Stages(opened)
    processes.start()
    try:
        with LiveProgress(console) as live:
            due = 0.0
            # Polling processes is cheap, reading the study is not.
            while processes.poll() and not stop.wait(0.25):
                if time.monotonic() >= due:
                    stages.show(live)
                    due = time.monotonic() + 1.0
            stages.show(live)
    except WorkersFailed:
        _raise_exception_of_trainings(opened.study)
        raise
    finally:
        processes.stop()
    if stop.is_set():
        raise StopRequested


class _Stages:
    """Shows what the workers of a study do: search, or selection of the winner."""

    def __init__(self, opened: options.OpenedStudy) -> None:
        self._opened, self._recipe = opened, opened.recipe
        self._log = new_log(opened.recipe)  # so that each call reads new trials only

    def show(self, live: LiveProgress) -> None:
        """Bring the progress up to date."""
        study, before = self._opened.study, self._recipe
        # Another command may make the search longer while it runs.
        self._recipe = attach_recipe(study)
        if self._recipe != before:
            self._log = new_log(self._recipe)
        live.show(SearchHistory(study, self._recipe, self._log))
        if is_undecided(study, self._recipe):
            self._show_selection(study, live)

    def _show_selection(self, study: Study, live: LiveProgress) -> None:
        evaluation_study = find_evaluation_study(study)
        trials = [] if evaluation_study is None else counted_trials(evaluation_study)
        trials = [t for t in trials if KEY in t.user_attrs]
        trials = [t for t in trials if t.user_attrs[TASK]["loss"]["name"] == "finalist"]
        keys = {trial.user_attrs[KEY] for trial in trials}
        is_open = {trial.user_attrs[KEY] for trial in trials if not trial.state.is_finished()}
        live.show_round("selection of the winner", len(keys - is_open), len(keys))


def _raise_exception_of_trainings(study: Study) -> None:
    """Raise the exception of a study's trainings, if none has a result.

    Raises:
        OperationError: If they ended with an exception.
    """
    for each in (study, find_evaluation_study(study)):
        failure = None if each is None or has_results(each) else last_exception(each)
        if failure is not None:
            raise OperationError(
                f"all trainings of study {study.study_name!r} fail; the last one with\n{failure}\n"
                "Fix its cause and run the same command again: no candidate was used up."
            )


def _print_winner(study: Study, arguments: argparse.Namespace, console: Console) -> None:
    """Save the winner, and print what it is and how good.

    Raises:
        OperationError: If there is none.
    """
    from optuna_taylorglo.losses.describe import describe

    history = SearchHistory(study, attach_recipe(study))
    if history.best is None:
        _raise_exception_of_trainings(study)
        helps = "loss.class_reduction: sum"
        if history.recipe.search.method == "taylor":
            helps = "search.filter: trainable or " + helps
        raise OperationError(
            f"no candidate of study {study.study_name!r} trained at all. A larger learning rate, "
            f"{helps} in the recipe may help."
        )
    selected, selection = selected_loss(study), load_selection(study)
    selected.loss.save(arguments.output)
    console.print()
    console.print(bold("Winner"), f": {selected.name} of study {study.study_name}", sep="")
    console.print(str(describe(selected.loss, selected.loss.n_classes or 2)), highlight=False)
    console.print(fitness_line(history, selection), highlight=False)
    if selection is not None:
        console.print(evaluation_advice(selection, history.recipe), highlight=False)
    console.print()


def _print_next_commands(
    study: Study, url: str, arguments: argparse.Namespace, console: Console
) -> None:
    console.print("Saved to ", bold(arguments.output), ". Next:", sep="")
    name, flags = study.study_name, options.RuntimeOptions.of(arguments).flags()
    storage = [] if url == resolve_storage_url() else ["--storage", shown_url(url)]
    for words in (
        ["evaluate", name, *storage, *flags],
        ["report", name, *storage, "-o", "report.html"],
        ["dashboard", name, *storage],
    ):
        console.print("  " + shlex.join(["taylorglo", *words]), highlight=False, soft_wrap=True)
