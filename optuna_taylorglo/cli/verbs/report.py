"""``taylorglo report STUDY -o report.html``: one page that tells it all."""

from __future__ import annotations

import argparse
import contextlib
import threading
from pathlib import Path

from rich.console import Console

from optuna_taylorglo.errors import StudyError
from optuna_taylorglo.search.study import attach_recipe
from optuna_taylorglo.storage.open_study import companion_name, open_study
from optuna_taylorglo.storage.urls import resolve_storage_url
from optuna_taylorglo.worker import DONE, add_storage_option


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser("report", help="write a page about a study that works offline")
    parser.add_argument("study", help="name of the study")
    parser.add_argument(
        "--output", "-o", type=Path, default=Path("report.html"), help="file (%(default)s)"
    )
    add_storage_option(parser)
    parser.set_defaults(action=run)


def run(arguments: argparse.Namespace, stop: threading.Event) -> int:
    """Write the page, with the newest verdict if there is one."""
    url = resolve_storage_url(arguments.storage)
    study = open_study(arguments.study, url)
    attach_recipe(study, None)

    from optuna_taylorglo.report.build import write_report
    from optuna_taylorglo.verdict.files import evaluated_trial, kept_verdict

    verdict = trial = None
    with contextlib.suppress(StudyError):
        companion = open_study(companion_name(study.study_name), url)
        verdict = kept_verdict(companion)
        trial = None if verdict is None else evaluated_trial(study, companion)
    storage = None if url == resolve_storage_url() else url
    write_report(study, arguments.output, verdict=verdict, trial=trial, storage=storage)
    Console().print(f"Report written to [bold]{arguments.output}[/].")
    return DONE
