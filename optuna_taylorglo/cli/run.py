"""``taylorglo check`` and ``run``: try a recipe, and search with workers on this machine."""

from __future__ import annotations

import math
import shlex
import threading
from argparse import Namespace
from functools import partial
from pathlib import Path

from rich.table import Table

from optuna_taylorglo.cli import options
from optuna_taylorglo.evolution.candidates import resolve_start
from optuna_taylorglo.losses.files import load_loss
from optuna_taylorglo.process import DONE
from optuna_taylorglo.progress import PlainConsole
from optuna_taylorglo.recipes.load import find_recipe, load_recipe
from optuna_taylorglo.recipes.schema import TrainingRecipe, search_size
from optuna_taylorglo.session import Session, open_session
from optuna_taylorglo.study.storages import resolve_storage_url, shown_url
from optuna_taylorglo.text import counted
from optuna_taylorglo.verdict.output import evaluation_advice
from optuna_taylorglo.verdict.selection import load_selection, n_selection_trainings
from optuna_taylorglo.workflow import SearchResult

# Full ones, about: the tuning of baselines, the selection among standard losses, and ten seeds of
# seven losses. The search among standard losses is as long as that of the recipe.
VERDICT_TRAININGS = 150


def add_commands(commands: options.Commands) -> None:
    help = "take one training step and one validation batch, and record nothing"
    parser = options.add_command(commands, check, help, study=False, storage=False, machine=True)
    parser.add_argument("recipe", type=Path, help="recipe file, or the name of a bundled one")

    help = "tune the learning rate by a dozen trainings, before any search"
    parser = options.add_command(commands, tune, help, study=False, machine=True)
    parser.add_argument("recipe", type=Path, help="recipe file, or the name of a bundled one")
    help = "loss of the library, such as wrong-labels, or loss file; default: cross-entropy"
    parser.add_argument("--loss", help=help)
    options.add_workers_option(parser)

    help = "create or resume a study and search"
    parser = options.add_command(commands, run, help, study=False, machine=True)
    add = parser.add_argument
    add("recipe", type=Path, help="recipe file, or the name of a bundled one, such as digits_cnn")
    add("--study-name", help="name of the study; default: the recipe's, and --seed")
    add("--seed", type=int, help="search.seed in place of the recipe's")
    help = "search.n_generations in place of the recipe's; a study that has fewer is continued. "
    help += "0: known losses only, each at several scales"
    add("--n-generations", type=options.up_to(math.inf, least=0), help=help)
    options.add_output_option(parser, "loss.json")
    options.add_workers_option(parser)


def check(arguments: Namespace, stop: threading.Event) -> int:
    """Try a recipe, and print what was found."""
    path, runtime = find_recipe(arguments.recipe), options.runtime_of(arguments)
    recipe = resolve_start(load_recipe(path))
    runtime.prepare()  # before Lightning is imported, which takes long

    from optuna_taylorglo.training.preflight import dry_run, seconds_per_step

    found = dry_run(recipe, runtime, path, for_verdict=True)
    search, budget = recipe.search, recipe.budget
    examples, full = counted(recipe.batch_size, "examples"), counted(budget.full, budget.unit)
    scale = {
        "free": "is part of the loss, and searched with it",
        "learning_rate": "is undone by the optimizer: the learning rate is searched in its place",
        "fixed": "is undone by the optimizer, and its learning rate cannot be multiplied",
    }
    console, n_selection = PlainConsole(), 0
    if recipe.selection is not None:
        n_selection = n_selection_trainings(recipe.selection.candidates + 1)
    seconds = seconds_per_step(recipe, runtime)
    cost = partial(_cost, recipe, found.steps_per_pass, seconds)
    for name, fact in (
        ("data", f"{recipe.data.class_path}, {found.n_classes} classes"),
        ("model", f"{recipe.model.class_path}, {found.n_parameters:,} trainable parameters"),
        ("a pass", f"{counted(found.steps_per_pass, 'steps')} of {examples}"),
        ("fitness", f"{recipe.fitness.metric} is {found.metric:.4g} after one step, on one batch"),
        ("search", search_size(search)),
        ("scale", scale.get(found.scale, f"is {found.scale}")),
        ("lengths", f"{budget.evaluation} and {full}, in search and verdict"),
        ("cost", cost(n_selection)),
        ("verdict", f"by default {cost(VERDICT_TRAININGS)}"),
    ):
        console.print(f"{name:<8} {fact}", soft_wrap=True)
    is_clean = not found.warnings and found.missing is None
    console.print("OK: the recipe works." if is_clean else "It works, with the warnings above.")
    return DONE


def _cost(recipe: TrainingRecipe, steps_per_pass: int, seconds: float, n_full: int) -> str:
    """What a search, of candidates or of standard losses, costs on one core or GPU."""
    budget, search = recipe.budget, recipe.search
    factor = 1 if budget.unit == "steps" else steps_per_pass
    n_candidates = search.total_candidates * search.repeats
    steps = factor * (n_candidates * budget.evaluation + n_full * budget.full)
    parts = counted(n_candidates, "trainings")
    if n_full:
        parts += f" and up to {n_full} full ones"
    return f"{parts}, {steps:,} steps of {1000 * seconds:.3g} ms: {_in_words(seconds * steps)}"


def _in_words(seconds: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"about {seconds / length:.0f} {unit} of one worker"
    return f"about {counted(max(1, round(seconds)), 'seconds')} of one worker"


def tune(arguments: Namespace, stop: threading.Event) -> int:
    """Train with a loss at several learning rates, and print how good each is."""
    if arguments.loss is not None:
        load_loss(arguments.loss)  # what cannot be read is told before anything else
    url, path = resolve_storage_url(arguments.storage), find_recipe(arguments.recipe)
    recipe = load_recipe(path)
    name, console = f"{arguments.recipe.stem}_learning_rate", PlainConsole()
    settings = options.session_settings(arguments, stop)
    session = open_session(recipe, name, url, path=path, console=console, **settings)
    tuned = session.tune_learning_rate(arguments.loss)
    title = "Mean of two trainings on validation"
    table = Table(arguments.loss or "cross-entropy", recipe.fitness.metric, title=title)
    for each in tuned:
        table.add_row(each.label, f"{each.mean:.4f}")
    console.print(table)
    best, rates = tuned[0], [each.rate for each in tuned]
    if recipe.optimizer is not None:
        console.print(f"For the recipe: optimizer.lr: {best.rate:.3g}")
    elif best.rate != 1:
        console.print(f"Multiply the learning rate by {best.rate:.3g}.")
    if best.rate in (min(rates), max(rates)):
        console.print("It is at the end of those tried: multiply, and tune again.")
    return DONE


def run(arguments: Namespace, stop: threading.Event) -> int:
    """Search until the end, and print the winner."""
    name, seed = arguments.recipe.stem, arguments.seed
    name = arguments.study_name or (name if seed is None else f"{name}_seed_{seed}")
    output = options.output_path(arguments, name, "loss.json")
    url = resolve_storage_url(arguments.storage)
    path = find_recipe(arguments.recipe)
    recipe = load_recipe(path)
    given = {"seed": seed, "n_generations": arguments.n_generations}
    changes = {field: value for field, value in given.items() if value is not None}
    recipe = recipe.changed(search=recipe.search.changed(**changes))
    settings = options.session_settings(arguments, stop)
    session = open_session(recipe, name, url, path=path, console=PlainConsole(), **settings)
    if not session.is_complete:
        session.search()
    _print_winner(session, output)
    return DONE


def _print_winner(session: Session, output: Path) -> None:
    """Save the winner, and print what it is, how good, and the commands that come next."""
    result, console, name = SearchResult(session), session.console, session.study.study_name
    result.save(output)
    console.print(f"\n{result}")
    selection = load_selection(session.study)
    if selection is not None and (advice := evaluation_advice(selection, session.recipe)):
        console.print(advice)
    console.print(f"\nSaved to {output}. Next:", soft_wrap=True)
    flags = session.runtime.flags() + ["-v"] * session.verbose + ["-q"] * session.quiet
    is_default = session.url == resolve_storage_url()
    storage = [] if is_default else ["--storage", shown_url(session.url)]
    for command, *further in (["evaluate", *flags], ["report"], ["dashboard"]):
        words = ["taylorglo", command, name, *storage, *further]
        console.print("  " + shlex.join(words), soft_wrap=True)
