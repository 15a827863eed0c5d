"""``taylorglo baseline``, ``evaluate`` and ``sweep``: trainings outside the search."""

from __future__ import annotations

import json
import statistics
import threading
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from optuna_taylorglo.cli import options
from optuna_taylorglo.errors import UsageError
from optuna_taylorglo.evolution.history import SearchHistory
from optuna_taylorglo.process import DONE
from optuna_taylorglo.progress import PlainConsole
from optuna_taylorglo.report.dashboard import fitness_line, refresh_if_installed
from optuna_taylorglo.session import Session
from optuna_taylorglo.text import counted, write_atomically
from optuna_taylorglo.verdict.baselines import BASELINES, DEFAULT_BASELINES
from optuna_taylorglo.verdict.selection import loss_name, selected_loss
from optuna_taylorglo.worker import training_recipe

if TYPE_CHECKING:
    from optuna_taylorglo.verdict.sweep import SavedSweep

_VALUES: dict[str, tuple[str, Callable[[float], bool]]] = {
    "fraction": ("above 0 and at most 1", lambda value: 0 < value <= 1),
    "label_noise": ("from 0 to 1", lambda value: 0 <= value <= 1),
    "length": ("whole numbers of at least 1", lambda value: value >= 1 and value.is_integer()),
}
"""What a sweep may vary, and which values are allowed, in words and as a test."""


def add_commands(commands: options.Commands) -> None:
    help = "train with cross-entropy as candidates are trained"
    parser = options.add_command(commands, baseline, help, machine=True)
    options.add_seeds_option(parser, 3, "trainings")

    help = "compare the winner with baselines by full trainings on the test set"
    parser = options.add_command(commands, evaluate, help, machine=True)
    # One training has no spread.
    options.add_seeds_option(parser, 10, "trainings per loss", least=2)
    help = f"baselines or loss files, separated by commas: {', '.join(BASELINES)} (%(default)s)"
    parser.add_argument("--against", default=",".join(DEFAULT_BASELINES), help=help)
    help = "files to write, without .md, .csv and .json"
    options.add_output_option(parser, "verdict", help)
    options.add_workers_option(parser)

    help = "vary training data, label noise or evaluation length"
    parser = options.add_command(commands, sweep, help, machine=True)
    add = parser.add_argument
    help = "share of the training data, or of wrong labels, or how long candidates are trained"
    add("--over", required=True, choices=list(_VALUES), help=help)
    add("--values", required=True, type=_numbers, help="values, separated by commas")
    options.add_seeds_option(parser, 3, "trainings per point")
    most, help = options.up_to(options.MOST_TRAININGS), "candidates for length (%(default)s)"
    add("--candidates", type=most, default=12, help=help)
    options.add_output_option(parser, "sweep_SETTING.json")
    options.add_workers_option(parser)


def baseline(arguments: Namespace, stop: threading.Event) -> int:
    """Train with cross-entropy at the candidates' own budget, and store the results."""
    from optuna_taylorglo.training.training import Training
    from optuna_taylorglo.verdict.baselines import evaluate_cross_entropy

    study, recipe, _ = options.open_study_of(arguments)
    recipe, runtime = training_recipe(study, recipe), options.runtime_of(arguments)
    runtime.prepare()
    values = evaluate_cross_entropy(study, Training(recipe, runtime), arguments.seeds, stop)
    lines = [fitness_line(SearchHistory(study, recipe))]
    if diverged := values.count(None):
        trainings = counted(len(values), "trainings")
        lines.append(f"{diverged} of {trainings} with cross-entropy diverged.")
        lines.append("Diverged trainings are not in its mean. A smaller learning rate may help.")
    PlainConsole().print(*lines, sep="\n")
    return DONE


def evaluate(arguments: Namespace, stop: threading.Event) -> int:
    """Train what is not trained yet, and print and write the verdict."""
    from optuna_taylorglo.verdict import compare, output

    path = options.output_path(arguments, arguments.study, "verdict", output.SUFFIXES)
    seeds, against = arguments.seeds, arguments.against.split(",")
    compare.check_comparison(seeds, against)
    study, recipe, url = options.open_study_of(arguments)
    session = Session(study, url, **options.session_settings(arguments, stop))
    verdict, console = session.compare(seeds, against), session.console
    length = f"after {counted(recipe.budget.full, recipe.budget.unit)}, {seeds} trainings each"
    table = Table(*output.SHORT_HEADER, title=f"{verdict.test_metric} {length}")
    for row in output.short_rows(verdict):
        table.add_row(*row)
    winner = f"Winner: {loss_name(verdict.trial)} of study {study.study_name}"
    files = ", ".join(map(str, output.write_verdict(verdict, path)))
    console.print(table, winner, verdict.text, sep="\n")
    console.print(f"Written to {files}", soft_wrap=True)
    return DONE


def sweep(arguments: Namespace, stop: threading.Event) -> int:
    """Train with one setting varied, and print, save and write the results."""
    over, values, seeds = arguments.over, arguments.values, arguments.seeds
    allowed, is_right = _VALUES[over]
    if wrong := [f"{value:g}" for value in values if not is_right(value)]:
        raise UsageError(f"--values {', '.join(wrong)} not allowed for {over}, must be {allowed}.")
    path = options.output_path(arguments, arguments.study, f"sweep_{over}.json")
    study, recipe, url = options.open_study_of(arguments)
    recipe = training_recipe(study, recipe)

    from optuna_taylorglo.verdict.sweep import SavedSweep, rank_agreement, save_sweep, sweep_data

    session = Session(study, url, **options.session_settings(arguments, stop))
    session.check(for_verdict=over != "length")
    content: object
    with session.trainings() as (evaluation_study, train):
        if over == "length":
            lengths = [round(value) for value in values]
            found = rank_agreement(study, recipe, lengths, arguments.candidates, train)
            saved = SavedSweep(over, recipe.budget.unit, agreements=tuple(found))
            content = [asdict(agreement) for agreement in found]
        else:
            selected = selected_loss(study)
            data = sweep_data(selected.loss, recipe, over, values, seeds, train)
            saved = SavedSweep(over, recipe.fitness.test_metric, data, loss=selected.name)
            content = data.accuracies
        save_sweep(evaluation_study, saved)
    refresh_if_installed(study)
    _print_sweep(saved, values, seeds, session.console)
    write_atomically(path, json.dumps(content, indent=2) + "\n")
    session.console.print(f"Written to {path}", soft_wrap=True)
    return DONE


def _print_sweep(sweep: SavedSweep, values: list[float], seeds: int, console: Console) -> None:
    if sweep.data is None:
        title = f"Rank agreement with {sweep.agreements[0].longest} {sweep.measured}"
        table = Table(sweep.measured, "Spearman", "p", "candidates", title=title)
        for a in sweep.agreements:
            cells = a.length, f"{a.spearman:.3f}", f"{a.p_value:.2g}", a.n_candidates
            table.add_row(*map(str, cells))
        console.print(table)
        return
    title = f"Mean {sweep.measured} by {sweep.over}, {counted(seeds, 'trainings')} each"
    table = Table("loss", *(f"{value:g}" for value in values), title=title)
    for label, by_value in sweep.data.accuracies.items():
        table.add_row(label, *(f"{statistics.fmean(by_value[v]):.4f}" for v in values))
    console.print(table, f"The evolved loss is {sweep.loss}.", sep="\n")
    if sweep.data.divergence is not None:
        n = sum(sum(diverged.values()) for diverged in sweep.data.diverged.values())
        diverged = f"{counted(n, 'trainings')} diverged"
        console.print(f"{diverged}, counted as {sweep.data.divergence:.4f}.")


def _numbers(text: str) -> list[float]:
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is no list such as 0.1,0.3,1") from None
