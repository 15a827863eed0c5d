"""``taylorglo baseline``, ``evaluate`` and ``sweep``: trainings outside the search."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import math
import statistics
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from optuna_taylorglo.cli import options
from optuna_taylorglo.cli.progress import PlainConsole, fitness_line
from optuna_taylorglo.cli.workers import add_workers_option, trained_by_workers
from optuna_taylorglo.errors import StudyError, UsageError
from optuna_taylorglo.process import DONE, configure_logging, exit_code, stop_on_signals
from optuna_taylorglo.search.history import SearchHistory
from optuna_taylorglo.text import write_atomically
from optuna_taylorglo.verdict.baselines import BASELINES, DEFAULT_BASELINES

BASELINE_SEEDS = 3
"""Trainings with cross-entropy by default."""

_VALUES: dict[str, tuple[str, Callable[[float], bool]]] = {
    "fraction": ("above 0 and at most 1, such as 0.1,0.3,1", lambda value: 0 < value <= 1),
    "label_noise": ("at least 0 and at most 1, such as 0,0.2,0.4", lambda value: 0 <= value <= 1),
    "length": (
        "whole numbers of at least 1, such as 100,400",
        lambda value: value >= 1 and math.isfinite(value) and value == round(value),
    ),
}
"""What a sweep may vary, and which values are allowed, in words and as a test."""


def add_commands(commands: options.Commands[argparse.ArgumentParser]) -> None:
    """Add the commands to the command line."""
    help = "train with cross-entropy as candidates are trained"
    parser = options.add_study_command(commands, "baseline", baseline, help)
    options.add_seeds_option(parser, BASELINE_SEEDS, "trainings")
    options.add_machine_options(parser)

    help = "compare the winner with baselines by full trainings on the test set"
    parser = options.add_study_command(commands, "evaluate", evaluate, help)
    options.add_seeds_option(parser, 10, "trainings per loss")
    parser.add_argument(
        "--against",
        default=",".join(DEFAULT_BASELINES),
        help=f"what to compare with: {', '.join(BASELINES)} or loss files, separated by commas; "
        "best-standard is the best of all standard losses, tuned with the budget that the search "
        "had (%(default)s)",
    )
    options.add_output_option(parser, "verdict", "files to write (%(default)s.*)")
    add_workers_option(parser)
    options.add_machine_options(parser)

    help = "vary training data, label noise or evaluation length"
    parser = options.add_study_command(commands, "sweep", sweep, help)
    parser.add_argument(
        "--over",
        required=True,
        choices=list(_VALUES),
        help="fraction of the training data, share of wrong labels, or length of an evaluation "
        "(does a short one rank candidates as a long one does?)",
    )
    parser.add_argument(
        "--values", required=True, type=_numbers, help="values, separated by commas"
    )
    options.add_seeds_option(parser, 3, "trainings per point")
    parser.add_argument(
        "--candidates",
        type=options.up_to(options.MOST_TRAININGS),
        default=12,
        help="candidates for length (%(default)s)",
    )
    options.add_output_option(parser, None, "file; default: sweep-SETTING.json")
    add_workers_option(parser)
    options.add_machine_options(parser)


def baseline(arguments: argparse.Namespace, stop: threading.Event) -> int:
    """Train with cross-entropy at the candidates' own budget, and store the results."""
    opened, runtime = options.open_study_of(arguments), options.RuntimeOptions.of(arguments)
    return _train_cross_entropy(opened, runtime, arguments.seeds, stop)


def run_baseline(study_name: str, url: str, runtime: options.RuntimeOptions) -> int:
    """The same in a process of its own; returns the exit code."""
    configure_logging(verbose=runtime.verbose, quiet=runtime.quiet)
    stop = stop_on_signals()

    def train() -> int:
        opened = options.open_study_at(study_name, url)
        return _train_cross_entropy(opened, runtime, BASELINE_SEEDS, stop)

    return exit_code(train, logging.getLogger(__name__), study_name)


def _train_cross_entropy(
    opened: options.OpenedStudy, runtime: options.RuntimeOptions, seeds: int, stop: threading.Event
) -> int:
    from optuna_taylorglo.training.training import Training
    from optuna_taylorglo.verdict.baselines import evaluate_cross_entropy

    training = Training(opened.recipe, runtime.machine())
    values = evaluate_cross_entropy(opened.study, training, seeds, stop)
    console = PlainConsole()
    console.print(fitness_line(SearchHistory(opened.study, opened.recipe)))
    if diverged := values.count(None):
        console.print(
            f"{diverged} of {len(values)} trainings with cross-entropy diverged, and are not in "
            "its mean: a smaller learning rate may help."
        )
    return DONE


def evaluate(arguments: argparse.Namespace, stop: threading.Event) -> int:
    """Train what is not trained yet, and print and write the verdict."""
    options.check_output(arguments.output.with_name(arguments.output.name + ".md"))
    opened = options.open_study_of(arguments)

    from optuna_taylorglo.report.dashboard import refresh_if_installed
    from optuna_taylorglo.verdict import compare, output
    from optuna_taylorglo.verdict.baselines import LearningRates
    from optuna_taylorglo.verdict.selection import loss_name, selected_loss

    seeds, against = arguments.seeds, arguments.against.split(",")
    compare.check_comparison(seeds, against)
    rates = LearningRates.find(opened.study, opened.recipe, options.machine_of(arguments))
    console = PlainConsole()
    with trained_by_workers(opened, arguments, stop, console) as train:
        verdict = compare.evaluate(
            opened.study, opened.recipe, train, seeds=seeds, against=against, rates=rates
        )
        before = None
        with contextlib.suppress(StudyError):  # of another version, and replaced now
            before = output.load_verdict(train.evaluation_study)
        output.save_verdict(train.evaluation_study, verdict)
    refresh_if_installed(opened.study)
    budget, name = opened.recipe.budget, loss_name(verdict.trial)
    length = f"after {budget.full} {budget.unit}, {seeds} trainings each"
    table = Table(*output.SHORT_HEADER, title=f"{verdict.test_metric} {length}")
    for row in output.short_rows(verdict):
        table.add_row(*row)
    console.print(table)
    console.print(f"Winner: {name} of study {opened.study.study_name}", highlight=False)
    if before is not None and not output.is_about(before, selected_loss(opened.study)):
        other = loss_name(before.trial)
        console.print(f"It replaces the verdict about another loss, {other}.", highlight=False)
    console.print(verdict.text, highlight=False)
    files = output.write_verdict(verdict, arguments.output)
    console.print("Written to " + ", ".join(str(file) for file in files))
    return DONE


def sweep(arguments: argparse.Namespace, stop: threading.Event) -> int:
    """Train with one setting varied, and print, save and write the results."""
    over, values, seeds = arguments.over, arguments.values, arguments.seeds
    _check_values(over, values)
    path = arguments.output or Path(f"sweep-{over}.json")
    options.check_output(path)
    opened = options.open_study_of(arguments)
    study, recipe = opened.study, opened.recipe

    from optuna_taylorglo.report.dashboard import refresh_if_installed
    from optuna_taylorglo.training.training import test_metric
    from optuna_taylorglo.verdict.selection import selected_loss
    from optuna_taylorglo.verdict.sweep import SavedSweep, rank_agreement, save_sweep, sweep_data

    console = PlainConsole()
    content: object
    with trained_by_workers(opened, arguments, stop, console) as train:
        if over == "length":
            unit, lengths = recipe.budget.unit, [round(value) for value in values]
            agreements = rank_agreement(study, recipe, lengths, arguments.candidates, train)
            title = f"Rank agreement with {agreements[0].longest} {unit}"
            table = Table(unit, "Spearman", "p", "candidates", title=title)
            for a in agreements:
                cells = (str(a.length), f"{a.spearman:.3f}", f"{a.p_value:.2g}")
                table.add_row(*cells, str(a.n_candidates))
            content = [asdict(agreement) for agreement in agreements]
            saved = SavedSweep(over, unit, agreements=tuple(agreements))
        else:
            selected, metric = selected_loss(study), test_metric(recipe)
            swept = sweep_data(selected.loss, recipe, over, values, seeds, train)
            title = f"{metric} by {over}, {seeds} trainings each"
            table = Table("loss", *(f"{value:g}" for value in values), title=title)
            for label, by_value in swept.accuracies.items():
                diverged = swept.diverged[label]
                table.add_row(label, *(_cell(by_value[v], diverged[v]) for v in values))
            table.caption = f"The evolved loss is {selected.name}."
            if swept.divergence is not None:
                table.caption += f" Trainings that diverged count as {swept.divergence:.4f}."
            content = swept.accuracies
            saved = SavedSweep(over, metric, swept, loss=selected.name)
        save_sweep(train.evaluation_study, saved)
    refresh_if_installed(study)
    console.print(table)
    write_atomically(path, json.dumps(content, indent=2) + "\n")
    console.print(f"Written to {path}")
    return DONE


def _numbers(text: str) -> list[float]:
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list such as 0.1,0.3,1") from None


def _check_values(over: str, values: list[float]) -> None:
    allowed, is_right = _VALUES[over]
    if wrong := [value for value in values if not is_right(value)]:
        shown = ", ".join(f"{value:g}" for value in wrong)
        raise UsageError(f"--values {shown} not allowed for {over}, must be {allowed}.")


def _cell(values: list[float], diverged: int) -> str:
    spread = f" ({statistics.stdev(values):.4f})" if len(values) > 1 else ""
    ended = f", {diverged} of {len(values)} diverged" if diverged else ""
    return f"{statistics.fmean(values):.4f}{spread}{ended}"
