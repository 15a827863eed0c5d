"""``taylorglo sweep STUDY --over SETTING``: one setting varied, winner beside cross-entropy."""

from __future__ import annotations

import argparse
import json
import statistics
import threading
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from optuna_taylorglo.cli.local_workers import add_workers_option, done_by_workers
from optuna_taylorglo.search.study import attach_recipe
from optuna_taylorglo.storage.open_study import create_companion, open_study
from optuna_taylorglo.storage.urls import resolve_storage_url
from optuna_taylorglo.worker import (
    DONE,
    add_machine_options,
    add_storage_option,
    positive,
)


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser("sweep", help="vary training data, label noise or evaluation length")
    parser.add_argument("study", help="name of the study")
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
    parser.add_argument("--seeds", type=positive, default=3, help="trainings a point (%(default)s)")
    parser.add_argument(
        "--candidates", type=positive, default=12, help="candidates for length (%(default)s)"
    )
    add_workers_option(parser)
    parser.add_argument("--output", "-o", type=Path, help="file; default: sweep-SETTING.json")
    add_storage_option(parser)
    add_machine_options(parser)
    parser.set_defaults(action=run)


def run(arguments: argparse.Namespace, stop: threading.Event) -> int:
    """Have everything trained that is not trained yet, and print and write the results."""
    url = resolve_storage_url(arguments.storage)
    study = open_study(arguments.study, url)
    recipe = attach_recipe(study, None)

    from optuna_taylorglo.search.history import trial_loss
    from optuna_taylorglo.training.run import test_metric
    from optuna_taylorglo.verdict.files import evaluated_trial
    from optuna_taylorglo.verdict.sweeps import rank_agreement, sweep_data

    console = Console()
    companion = create_companion(study, url)
    content: object
    with done_by_workers(companion, url, arguments, stop, console) as do:
        if arguments.over == "length":
            lengths = [round(value) for value in arguments.values]
            agreements = rank_agreement(study, recipe, lengths, arguments.candidates, do)
            table = Table(recipe.budget.unit, "Spearman", "p", "candidates")
            for a in agreements:
                cells = (str(a.length), f"{a.spearman:.3f}", f"{a.p_value:.2g}")
                table.add_row(*cells, str(a.n_candidates))
            table.title = f"Rank agreement with {agreements[0].longest} {recipe.budget.unit}"
            content = [asdict(agreement) for agreement in agreements]
        else:
            loss = trial_loss(study, evaluated_trial(study, companion))
            values, seeds = arguments.values, arguments.seeds
            accuracies = sweep_data(loss, recipe, arguments.over, values, seeds, do)
            table = Table("loss", *(f"{value:g}" for value in values))
            for label, by_value in accuracies.items():
                table.add_row(label, *(_cell(by_value[value], seeds) for value in values))
            table.title = f"{test_metric(recipe)} by {arguments.over}, {seeds} trainings each"
            content = accuracies
    console.print(table)
    output = arguments.output or Path(f"sweep-{arguments.over}.json")
    output.write_text(json.dumps(content, indent=2) + "\n")
    console.print(f"Written to {output}")
    return DONE


def _cell(values: list[float], n_seeds: int) -> str:
    failed = f", {n_seeds - len(values)} failed" if len(values) < n_seeds else ""
    if len(values) < 2:
        return "".join(f"{value:.4f}" for value in values) + failed
    return f"{statistics.fmean(values):.4f} ({statistics.stdev(values):.4f}){failed}"


def _numbers(text: str) -> list[float]:
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list such as 0.1,0.3,1") from None
