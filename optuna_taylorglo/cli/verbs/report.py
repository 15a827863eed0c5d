"""``taylorglo report STUDY -o report.html``: one page that tells it all."""

from __future__ import annotations

import argparse
import contextlib
import threading

from optuna_taylorglo.cli import options
from optuna_taylorglo.cli.console import PlainConsole, bold
from optuna_taylorglo.errors import StudyError
from optuna_taylorglo.process import DONE
from optuna_taylorglo.study.open import evaluation_study_name, open_study
from optuna_taylorglo.study.storages import resolve_storage_url


def add_parser(verbs: options.Verbs[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = options.add_study_verb(
        verbs, "report", run, "write a page about a study that works offline"
    )
    options.add_output_option(parser, "report.html")


def run(arguments: argparse.Namespace, stop: threading.Event) -> int:
    """Write the page, with the newest verdict if there is one."""
    options.check_output(arguments.output)
    opened = options.open_study_of(arguments)
    study, url = opened.study, opened.url

    from optuna_taylorglo.report.build import write_report
    from optuna_taylorglo.verdict.output import load_verdict

    evaluation_study = None
    with contextlib.suppress(StudyError):
        evaluation_study = open_study(evaluation_study_name(study.study_name), url)
    verdict = None if evaluation_study is None else load_verdict(evaluation_study)
    storage = None if url == resolve_storage_url() else url
    write_report(study, arguments.output, verdict=verdict, storage=storage)
    PlainConsole().print("Report written to ", bold(arguments.output), ".", sep="")
    return DONE
