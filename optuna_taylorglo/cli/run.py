"""``taylorglo check`` and ``run``: try a recipe, and search with workers on this machine."""

from __future__ import annotations

import shlex
import threading
from argparse import Namespace
from pathlib import Path

from optuna.study import Study

from optuna_taylorglo.attributes import KEY, TASK
from optuna_taylorglo.cli import options
from optuna_taylorglo.cli.progress import LiveProgress, PlainConsole
from optuna_taylorglo.cli.workers import add_workers_option, local_workers, log_dir
from optuna_taylorglo.errors import OperationError, StopRequested, StudyError
from optuna_taylorglo.local import Job, prepare
from optuna_taylorglo.process import DONE
from optuna_taylorglo.recipes.load import find_recipe, load_recipe
from optuna_taylorglo.recipes.schema import search_size
from optuna_taylorglo.report.dashboard import fitness_line
from optuna_taylorglo.search.candidates import new_log, resolve_start
from optuna_taylorglo.search.history import SearchHistory, attach_recipe, direction_of
from optuna_taylorglo.study.open import create_study, find_evaluation_study, open_study
from optuna_taylorglo.study.queue import counted_trials
from optuna_taylorglo.study.storages import resolve_storage_url, shown_url
from optuna_taylorglo.text import counted
from optuna_taylorglo.verdict.output import evaluation_advice
from optuna_taylorglo.verdict.selection import is_undecided, load_selection, selected_loss


def add_commands(commands: options.Commands) -> None:
    help = "take one training step and one validation batch, and record nothing"
    parser = options.add_command(commands, check, help, study=False, storage=False, machine=True)
    parser.add_argument("recipe", type=Path, help="recipe file, or the name of a bundled one")

    help = "create or resume a study and search"
    parser = options.add_command(commands, run, help, study=False, machine=True)
    add = parser.add_argument
    add("recipe", type=Path, help="recipe file, or the name of a bundled one, such as digits_cnn")
    add("--study-name", help="name of the study; default: the recipe's, and --seed")
    add("--seed", type=int, help="search.seed in place of the recipe's")
    help = "search.n_generations in place of the recipe's; a study that has fewer is continued"
    add("--n-generations", type=options.positive, help=help)
    options.add_output_option(parser, "loss.json")
    add_workers_option(parser)


def check(arguments: Namespace, stop: threading.Event) -> int:
    """Try a recipe, and print what was found."""
    path = find_recipe(arguments.recipe)
    recipe = resolve_start(load_recipe(path))
    found = options.dry_run(recipe, options.machine_of(arguments), path)
    search, budget = recipe.search, recipe.budget
    examples, full = counted(recipe.batch_size, "examples"), counted(budget.full, budget.unit)
    console = PlainConsole()
    for name, fact in (
        ("data", f"{recipe.data.class_path}, {found.n_classes} classes"),
        ("model", f"{recipe.model.class_path}, {found.n_parameters:,} trainable parameters"),
        ("a pass", f"{counted(found.steps_per_pass, 'steps')} of {examples}"),
        ("fitness", f"{recipe.fitness.metric} is {found.metric:.4g} after one step, on one batch"),
        ("search", search_size(search)),
        ("lengths", f"{budget.evaluation} and {full}, in search and verdict"),
    ):
        console.print(f"{name:<8} {fact}", soft_wrap=True)
    console.print(
        "It works, with the warnings above." if found.warnings else "OK: the recipe works."
    )
    return DONE


def run(arguments: Namespace, stop: threading.Event) -> int:
    """Search until the end, and print the winner."""
    name, seed = arguments.recipe.stem, arguments.seed
    name = arguments.study_name or (name if seed is None else f"{name}_seed_{seed}")
    output = options.output_path(arguments, name, "loss.json")
    url = resolve_storage_url(arguments.storage)
    path = find_recipe(arguments.recipe)
    recipe = resolve_start(load_recipe(path))
    given = {"seed": seed, "n_generations": arguments.n_generations}
    changes = {field: value for field, value in given.items() if value is not None}
    recipe = recipe.changed(search=recipe.search.changed(**changes))
    if not _is_complete(name, url):
        prepare()
        options.dry_run(recipe, options.machine_of(arguments), path)
    study = create_study(name, url, direction=direction_of(recipe))
    opened = options.OpenedStudy(study, attach_recipe(study, recipe), url)
    if not _is_complete(name, url):
        _search(opened, arguments, stop)
    _print_winner(opened, arguments, output)
    return DONE


def _is_complete(name: str, url: str) -> bool:
    """Whether a study exists and is complete, so that there is nothing to try or search."""
    try:
        study = open_study(name, url)
        recipe = attach_recipe(study)
    except StudyError:
        return False
    return SearchHistory(study, recipe).finished and not is_undecided(study, recipe)


def _search(opened: options.OpenedStudy, arguments: Namespace, stop: threading.Event) -> None:
    """Let workers search until the end, and select the winner."""
    from optuna_taylorglo import cli

    study, recipe, url = opened
    name, console = study.study_name, PlainConsole()
    log = new_log(recipe)  # so that each look reads new trials only
    # These words are sent by a pipe: a command line, password included, would be visible to all.
    flags = options.RuntimeOptions.of(arguments).flags()
    baseline = Job(cli.main, (["baseline", "--storage", url, *flags, "--", name],))
    processes, n_workers = local_workers(name, url, arguments, [baseline])
    console.print(
        f"Study {name} in {shown_url(url)}: {counted(n_workers, 'workers')}, "
        f"{search_size(recipe.search)}. Logs in {log_dir(name)}.",
        soft_wrap=True,
    )

    def show(live: LiveProgress) -> None:
        now = attach_recipe(study)  # another command may make the search longer
        live.show(SearchHistory(study, now, log))
        if is_undecided(study, now):
            live.show_round("selection of the winner", *_selection_progress(study))

    processes.start()
    try:
        with LiveProgress(console) as live:
            while processes.poll() and not stop.wait(1.0):
                show(live)
            show(live)
    finally:
        processes.stop()
    if stop.is_set():
        raise StopRequested


def _selection_progress(study: Study) -> tuple[int, int]:
    """How many trainings of a selection are done, of how many."""
    evaluation_study = find_evaluation_study(study)
    is_done = {
        trial.user_attrs[KEY]: trial.state.is_finished()  # of its last attempt
        for trial in ([] if evaluation_study is None else counted_trials(evaluation_study))
        if KEY in trial.user_attrs and trial.user_attrs[TASK]["loss"]["name"] == "finalist"
    }
    return sum(is_done.values()), len(is_done)


def _print_winner(opened: options.OpenedStudy, arguments: Namespace, output: Path) -> None:
    """Save the winner, and print what it is, how good, and the commands that come next."""
    from optuna_taylorglo.losses.describe import describe

    study, name, console = opened.study, opened.study.study_name, PlainConsole()
    history = SearchHistory(study, attach_recipe(study))
    if history.best is None:
        raise OperationError(
            f"no candidate of study {name!r} trained at all. In the recipe, a larger learning "
            "rate, loss.class_reduction: sum or search.filter: trainable may help."
        )
    selected, selection = selected_loss(study), load_selection(study)
    selected.loss.save(output)
    console.print(f"\nWinner: {selected.name} of study {name}")
    console.print(str(describe(selected.loss, selected.loss.n_classes or 2)))
    console.print(fitness_line(history, selection))
    if selection is not None:
        console.print(evaluation_advice(selection, history.recipe))
    console.print(f"\nSaved to {output}. Next:", soft_wrap=True)
    flags, default = options.RuntimeOptions.of(arguments).flags(), resolve_storage_url()
    storage = [] if opened.url == default else ["--storage", shown_url(opened.url)]
    for command, *further in (["evaluate", *flags], ["report"], ["dashboard"]):
        words = ["taylorglo", command, name, *storage, *further]
        console.print("  " + shlex.join(words), soft_wrap=True)
