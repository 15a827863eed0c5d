"""``taylorglo export``, ``report`` and ``dashboard``: what a study holds, as a file or a page."""

from __future__ import annotations

import argparse
import socket
import threading
from pathlib import Path

from optuna_taylorglo.cli import options
from optuna_taylorglo.cli.progress import PlainConsole
from optuna_taylorglo.errors import OperationError, UsageError
from optuna_taylorglo.process import DONE
from optuna_taylorglo.report import dashboard
from optuna_taylorglo.search.history import trial_loss
from optuna_taylorglo.study.optuna_private import study_id_of
from optuna_taylorglo.study.storages import resolve_storage_url
from optuna_taylorglo.verdict.selection import selected_loss


def add_commands(commands: options.Commands[argparse.ArgumentParser]) -> None:
    help = "write the winner, or a trial's loss, to a file"
    parser = options.add_study_command(commands, "export", export, help)
    parser.add_argument("--trial", type=int, help="number of a trial; default: the winner")
    options.add_output_option(parser, Path("best_loss.json"))

    help = "write a page about a study that works offline"
    parser = options.add_study_command(commands, "report", report, help)
    options.add_output_option(parser, Path("report.html"))

    help = "watch a study in the browser"
    parser = options.add_study_command(commands, "dashboard", serve, help)
    parser.add_argument("--port", type=options.up_to(65535), default=8080, help="(%(default)s)")


def export(arguments: argparse.Namespace, stop: threading.Event) -> int:
    """Write the winner, or a trial's loss, to a file."""
    options.check_output(arguments.output)
    study = options.open_study_of(arguments).study
    if arguments.trial is None:
        selected = selected_loss(study)
        loss, name = selected.loss, selected.name
    else:
        trials = study.get_trials(deepcopy=False)
        if not 0 <= arguments.trial < len(trials):
            which = f"study {study.study_name!r}, which has {len(trials)} trials, numbered from 0"
            raise UsageError(f"--trial {arguments.trial} is not in {which}.")
        trial = trials[arguments.trial]
        loss, name = trial_loss(study, trial), f"trial {trial.number}"
    loss.save(arguments.output)
    PlainConsole().print(f"Loss of {name} written to {arguments.output}.", soft_wrap=True)
    return DONE


def report(arguments: argparse.Namespace, stop: threading.Event) -> int:
    """Write a page about a study, with the newest verdict if there is one."""
    options.check_output(arguments.output)
    opened = options.open_study_of(arguments)

    from optuna_taylorglo.report.build import write_report

    storage = None if opened.url == resolve_storage_url() else opened.url
    write_report(opened.study, arguments.output, storage=storage)
    PlainConsole().print(f"Report written to {arguments.output}.", soft_wrap=True)
    return DONE


def serve(arguments: argparse.Namespace, stop: threading.Event) -> int:
    """Serve the Optuna dashboard with our figures, on this machine only, until Ctrl-C."""
    if not dashboard.is_installed():
        raise UsageError(
            "the dashboard is not installed: pip install 'optuna-taylorglo[dashboard]'."
        )
    study = options.open_study_of(arguments).study
    dashboard.refresh(study)
    try:
        socket.create_server(("127.0.0.1", arguments.port)).close()
    except OSError as error:
        raise UsageError(f"--port {arguments.port} cannot be used: {error.strerror}.") from error
    # The server blocks in a thread of its own, so that this one can wait for a signal.
    server = threading.Thread(target=dashboard.serve, args=(study, arguments.port), daemon=True)
    address = f"http://127.0.0.1:{arguments.port}/dashboard/studies/{study_id_of(study)}"
    PlainConsole().print(f"Dashboard of study {study.study_name}: {address}\nCtrl-C ends it.")
    server.start()
    while not stop.wait(0.5):
        if not server.is_alive():
            raise OperationError("the dashboard's server has ended; its message is above.")
    return DONE
