"""``taylorglo evaluate STUDY``: is the winner really better? Full trainings on the test set."""

from __future__ import annotations

import argparse
import contextlib
import threading
from pathlib import Path

from rich.table import Table

from optuna_taylorglo.cli import options
from optuna_taylorglo.cli.console import PlainConsole
from optuna_taylorglo.cli.workers import add_workers_option, trained_by_workers
from optuna_taylorglo.errors import StudyError
from optuna_taylorglo.process import DONE
from optuna_taylorglo.verdict.families import BASELINES, DEFAULT_BASELINES


def add_parser(verbs: options.Verbs[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    help_ = "compare the winner with baselines by full trainings on the test set"
    parser = options.add_study_verb(verbs, "evaluate", run, help_)
    parser.add_argument(
        "--seeds",
        type=options.up_to(options.MOST_TRAININGS),
        default=10,
        help="trainings per loss (%(default)s)",
    )
    parser.add_argument(
        "--against",
        default=",".join(DEFAULT_BASELINES),
        help=f"what to compare with: {', '.join(BASELINES)} or loss files, separated by commas; "
        "best-standard is the best of all standard losses, tuned with the budget that the search "
        "had (%(default)s)",
    )
    parser.add_argument(
        "--output", "-o", type=Path, default=Path("verdict"), help="files to write (%(default)s.*)"
    )
    add_workers_option(parser)
    options.add_machine_options(parser)


def run(arguments: argparse.Namespace, stop: threading.Event) -> int:
    """Have everything trained that is not trained yet, and print and write the verdict."""
    options.check_output(arguments.output.with_name(arguments.output.name + ".md"))
    opened = options.open_study_of(arguments)

    from optuna_taylorglo.report.dashboard import refresh_if_installed
    from optuna_taylorglo.verdict.compare import Plan, evaluate
    from optuna_taylorglo.verdict.families import find_learning_rates
    from optuna_taylorglo.verdict.output import (
        SHORT_HEADER,
        is_about,
        load_verdict,
        loss_name,
        save_verdict,
        short_rows,
        write_verdict,
    )
    from optuna_taylorglo.verdict.winner import selected_loss

    plan = Plan(arguments.seeds, tuple(arguments.against.split(",")))
    rates = find_learning_rates(opened.study, opened.recipe, options.machine_of(arguments))
    console = PlainConsole()
    with trained_by_workers(opened, arguments, stop, console) as train:
        verdict = evaluate(opened.study, opened.recipe, plan, train, rates)
        before = None
        with contextlib.suppress(StudyError):  # of another version, and replaced now
            before = load_verdict(train.evaluation_study)
        save_verdict(train.evaluation_study, verdict)
    refresh_if_installed(opened.study)
    budget = opened.recipe.budget
    table = Table(
        *SHORT_HEADER,
        title=f"{verdict.test_metric} after {budget.full} {budget.unit}, {plan.seeds} trainings "
        "each",
    )
    for row in short_rows(verdict):
        table.add_row(*row)
    console.print(table)
    name = loss_name(verdict)
    console.print(f"Winner: {name} of study {opened.study.study_name}", highlight=False)
    if before is not None and not is_about(before, selected_loss(opened.study)):
        console.print(
            f"The verdict kept until now was about another loss, {loss_name(before)}.",
            highlight=False,
        )
    console.print(verdict.text, highlight=False)
    files = write_verdict(verdict, arguments.output)
    console.print("Written to " + ", ".join(str(file) for file in files))
    return DONE
