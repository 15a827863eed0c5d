"""``taylorglo dashboard STUDY``: the Optuna dashboard with our figures, on this machine only."""

from __future__ import annotations

import argparse
import contextlib
import socket
import threading

from rich.console import Console

from optuna_taylorglo.report import dashboard
from optuna_taylorglo.search.study import attach_recipe
from optuna_taylorglo.storage.open_study import open_study
from optuna_taylorglo.storage.urls import resolve_storage_url
from optuna_taylorglo.worker import DONE, add_storage_option, positive


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser("dashboard", help="watch a study in the browser")
    parser.add_argument("study", help="name of the study")
    parser.add_argument("--port", type=positive, default=8080, help="port (%(default)s)")
    add_storage_option(parser)
    parser.set_defaults(action=run)


def run(arguments: argparse.Namespace, stop: threading.Event) -> int:
    """Serve until Ctrl-C."""
    if not dashboard.is_installed():
        raise ValueError(
            "the dashboard is not installed: pip install 'optuna-taylorglo[dashboard]'."
        )
    study = open_study(arguments.study, resolve_storage_url(arguments.storage))
    attach_recipe(study, None)
    dashboard.refresh(study)
    dashboard.keep_best_loss(study)
    _check_port(arguments.port)
    # The server blocks in a thread of its own, so that a signal finds this one waiting.
    server = threading.Thread(
        target=dashboard.serve, args=(study, arguments.port), daemon=True, name="dashboard"
    )
    Console().print(
        f"Dashboard of study {study.study_name}: "
        f"http://127.0.0.1:{arguments.port}/dashboard/studies/{study._study_id}\n"
        "Ctrl-C ends it."
    )
    server.start()
    while not stop.wait(0.5):
        if not server.is_alive():
            raise RuntimeError("the dashboard's server has ended; what it said is above.")
    return DONE


def _check_port(port: int) -> None:
    with contextlib.closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise ValueError(f"--port {port} cannot be used: {error.strerror}.") from error
