"""``taylorglo evaluate STUDY``: is the winner really better? Full trainings on the test set."""

from __future__ import annotations

import argparse
import threading
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
    parser = verbs.add_parser(
        "evaluate", help="compare the winner with baselines by full trainings on the test set"
    )
    parser.add_argument("study", help="name of the study")
    parser.add_argument("--seeds", type=positive, default=10, help="trainings a loss (%(default)s)")
    parser.add_argument(
        "--against",
        default="ce,ce-tuned,ce-smoothed,baikal-cma",
        help="what to compare with: ce, ce-tuned, ce-smoothed, baikal, baikal-cma or loss files, "
        "separated by commas (%(default)s)",
    )
    parser.add_argument(
        "--rerank",
        type=int,
        default=5,
        help="evaluate so many of the best candidates again with fresh seeds and take the best of "
        "them; 0: the single best evaluation, the paper's rule (%(default)s)",
    )
    add_workers_option(parser)
    parser.add_argument(
        "--output", "-o", type=Path, default=Path("verdict"), help="files to write (%(default)s.*)"
    )
    add_storage_option(parser)
    add_machine_options(parser)
    parser.set_defaults(action=run)


def run(arguments: argparse.Namespace, stop: threading.Event) -> int:
    """Have everything trained that is not trained yet, and print and write the verdict."""
    url = resolve_storage_url(arguments.storage)
    study = open_study(arguments.study, url)
    recipe = attach_recipe(study, None)

    from optuna_taylorglo.verdict.evaluate import Plan, evaluate
    from optuna_taylorglo.verdict.files import SHORT_HEADER, keep_verdict, short_rows, write_verdict

    plan = Plan(arguments.seeds, tuple(arguments.against.split(",")), arguments.rerank)
    console = Console()
    companion = create_companion(study, url)
    with done_by_workers(companion, url, arguments, stop, console) as do:
        verdict = evaluate(study, recipe, plan, do)
    keep_verdict(companion, verdict)
    budget = f"{recipe.budget.full} {recipe.budget.unit}"
    table = Table(
        *SHORT_HEADER, title=f"{verdict.test_metric} after {budget}, {plan.seeds} trainings each"
    )
    for row in short_rows(verdict):
        table.add_row(*row)
    console.print(table)
    console.print(f"The evolved loss is that of trial {verdict.trial}.", highlight=False)
    console.print(verdict.text, highlight=False)
    files = write_verdict(verdict, arguments.output)
    console.print("Written to " + ", ".join(str(file) for file in files))
    return DONE
