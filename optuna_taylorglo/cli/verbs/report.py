"""``taylorglo report STUDY -o report.html``: one page that tells it all."""

from __future__ import annotations

import argparse
import threading

from optuna_taylorglo.cli import options
from optuna_taylorglo.cli.console import PlainConsole, bold
from optuna_taylorglo.process import DONE
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

    from optuna_taylorglo.report.build import write_report

    storage = None if opened.url == resolve_storage_url() else opened.url
    write_report(opened.study, arguments.output, storage=storage)
    PlainConsole().print("Report written to ", bold(arguments.output), ".", sep="")
    return DONE
