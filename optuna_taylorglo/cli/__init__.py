"""``taylorglo``: the whole search by one command, and everything that follows from it.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from optuna_taylorglo.cli import evaluate, run, studies
from optuna_taylorglo.cli.options import add_version_option
from optuna_taylorglo.process import (
    DONE,
    FAILED,
    INTERRUPTED,
    USAGE,
    configure_logging,
    exit_code,
    stop_on_signals,
)

__all__ = ["DONE", "FAILED", "INTERRUPTED", "USAGE", "build_parser", "main"]


def build_parser() -> argparse.ArgumentParser:
    """The command line of `taylorglo`."""
    parser = argparse.ArgumentParser(
        prog="taylorglo", description="Evolve loss functions for your network."
    )
    add_version_option(parser)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for module in (run, studies, evaluate):
        module.add_commands(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and turn what goes wrong into a message and an exit code."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if arguments.command is None:
        parser.print_help(sys.stderr)
        return USAGE
    configure_logging(verbose=arguments.verbose, quiet=arguments.quiet)
    stop = stop_on_signals()
    study = getattr(arguments, "study", None) or getattr(arguments, "study_name", None)
    return exit_code(lambda: arguments.action(arguments, stop), logging.getLogger(__name__), study)
