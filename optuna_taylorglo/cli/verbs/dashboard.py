"""``taylorglo dashboard STUDY``: the Optuna dashboard with our figures, on this machine only."""

from __future__ import annotations

import argparse
import contextlib
import socket
import threading

from optuna_taylorglo.cli import options
from optuna_taylorglo.cli.console import PlainConsole
from optuna_taylorglo.errors import OperationError, UsageError
from optuna_taylorglo.process import DONE
from optuna_taylorglo.report import dashboard
from optuna_taylorglo.study.optuna_private import study_id_of


def add_parser(verbs: options.Verbs[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = options.add_study_verb(verbs, "dashboard", run, "watch a study in the browser")
    parser.add_argument("--port", type=_port, default=8080, help="port (%(default)s)")


def run(arguments: argparse.Namespace, stop: threading.Event) -> int:
    """Serve until Ctrl-C."""
    if not dashboard.is_installed():
        raise UsageError(
            "the dashboard is not installed: pip install 'optuna-taylorglo[dashboard]'."
        )
    study = options.open_study_of(arguments).study
    dashboard.refresh(study)
    dashboard.save_best_loss(study)
    _check_port(arguments.port)
    # The server blocks in a thread of its own, so that a signal finds this one waiting.
    server = threading.Thread(
        target=dashboard.serve, args=(study, arguments.port), daemon=True, name="dashboard"
    )
    PlainConsole().print(
        f"Dashboard of study {study.study_name}: "
        f"http://127.0.0.1:{arguments.port}/dashboard/studies/{study_id_of(study)}\n"
        "Ctrl-C ends it."
    )
    server.start()
    while not stop.wait(0.5):
        if not server.is_alive():
            raise OperationError("the dashboard's server has ended; what it said is above.")
    return DONE


def _port(text: str) -> int:
    """A port that a program may listen on, for argparse."""
    value = int(text)
    if not 1 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"{value} is not allowed, must be from 1 to 65535")
    return value


def _check_port(port: int) -> None:
    with contextlib.closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise UsageError(f"--port {port} cannot be used: {error.strerror}.") from error
