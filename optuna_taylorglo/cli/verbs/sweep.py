"""``taylorglo sweep STUDY --over SETTING``: one setting varied, winner beside cross-entropy.

What comes out is a file, and is kept for report and dashboard.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from optuna_taylorglo.cli import options
from optuna_taylorglo.cli.console import PlainConsole
from optuna_taylorglo.cli.workers import add_workers_option, trained_by_workers
from optuna_taylorglo.errors import UsageError
from optuna_taylorglo.files import write_atomically
from optuna_taylorglo.process import DONE

_ALLOWED: dict[str, tuple[str, Callable[[float], bool]]] = {
    "fraction": ("above 0 and at most 1, such as 0.1,0.3,1", lambda value: 0 < value <= 1),
    "label_noise": ("at least 0 and at most 1, such as 0,0.2,0.4", lambda value: 0 <= value <= 1),
    "length": (
        "whole numbers of at least 1, such as 100,400",
        lambda value: value >= 1 and math.isfinite(value) and value == round(value),
    ),
}
"""What each setting may be, in words and as a test."""


def add_parser(verbs: options.Verbs[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    help_ = "vary training data, label noise or evaluation length"
    parser = options.add_study_verb(verbs, "sweep", run, help_)
    parser.add_argument(
        "--over",
        required=True,
        choices=["fraction", "label_noise", "length"],
        help="fraction of the training data, share of wrong labels, or length of an evaluation "
        "(does a short one rank candidates as a long one does?)",
    )
    parser.add_argument(
        "--values", required=True, type=_numbers, help="values, separated by commas"
    )
    parser.add_argument(
        "--seeds",
        type=options.up_to(options.MOST_TRAININGS),
        default=3,
        help="trainings per point (%(default)s)",
    )
    parser.add_argument(
        "--candidates",
        type=options.up_to(options.MOST_TRAININGS),
        default=12,
        help="candidates for length (%(default)s)",
    )
    parser.add_argument("--output", "-o", type=Path, help="file; default: sweep-SETTING.json")
    add_workers_option(parser)
    options.add_machine_options(parser)


def run(arguments: argparse.Namespace, stop: threading.Event) -> int:
    """Have everything trained that is not trained yet, and print and write the results."""
    _check_values(arguments.over, arguments.values)
    output = arguments.output or Path(f"sweep-{arguments.over}.json")
    options.check_output(output)
    opened = options.open_study_of(arguments)
    study, recipe = opened.study, opened.recipe

    from optuna_taylorglo.report.dashboard import refresh_if_installed
    from optuna_taylorglo.training.training import test_metric
    from optuna_taylorglo.verdict.output import SavedSweep, save_sweep
    from optuna_taylorglo.verdict.sweep import rank_agreement, sweep_data
    from optuna_taylorglo.verdict.winner import selected_loss

    console = PlainConsole()
    content: object
    with trained_by_workers(opened, arguments, stop, console) as train:
        if arguments.over == "length":
            lengths = [round(value) for value in arguments.values]
            agreements = rank_agreement(study, recipe, lengths, arguments.candidates, train)
            table = Table(recipe.budget.unit, "Spearman", "p", "candidates")
            for a in agreements:
                cells = (str(a.length), f"{a.spearman:.3f}", f"{a.p_value:.2g}")
                table.add_row(*cells, str(a.n_candidates))
            table.title = f"Rank agreement with {agreements[0].longest} {recipe.budget.unit}"
            content = [asdict(agreement) for agreement in agreements]
            sweep = SavedSweep("length", recipe.budget.unit, agreements=tuple(agreements))
        else:
            chosen = selected_loss(study)
            values, seeds = arguments.values, arguments.seeds
            swept = sweep_data(chosen.loss, recipe, arguments.over, values, seeds, train)
            table = Table("loss", *(f"{value:g}" for value in values))
            for label, by_value in swept.accuracies.items():
                diverged = swept.diverged[label]
                table.add_row(label, *(_cell(by_value[v], diverged[v]) for v in values))
            table.title = f"{test_metric(recipe)} by {arguments.over}, {seeds} trainings each"
            table.caption = f"The evolved loss is {chosen.name}."
            if swept.divergence is not None:
                table.caption += f" Trainings that diverged count as {swept.divergence:.4f}."
            content = swept.accuracies
            sweep = SavedSweep(arguments.over, test_metric(recipe), swept, loss=chosen.name)
        save_sweep(train.evaluation_study, sweep)
    refresh_if_installed(study)
    console.print(table)
    write_atomically(output, json.dumps(content, indent=2) + "\n")
    console.print(f"Written to {output}")
    return DONE


def _check_values(over: str, values: list[float]) -> None:
    """Refuse values that the setting cannot have, before anything is trained.

    Raises:
        UsageError: If there is one.
    """
    allowed, is_right = _ALLOWED[over]
    if wrong := [value for value in values if not is_right(value)]:
        shown = ", ".join(f"{value:g}" for value in wrong)
        raise UsageError(f"--values {shown} not allowed for {over}, must be {allowed}.")


def _cell(values: list[float], diverged: int) -> str:
    spread = f" ({statistics.stdev(values):.4f})" if len(values) > 1 else ""
    ended = f", {diverged} of {len(values)} diverged" if diverged else ""
    return f"{statistics.fmean(values):.4f}{spread}{ended}"


def _numbers(text: str) -> list[float]:
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list such as 0.1,0.3,1") from None
