"""``taylorglo``: the whole search by one command, and everything that follows from it.

    taylorglo run studies/digits_cnn.yaml      create or resume a study and search
    taylorglo status STUDY                     how far it is
    taylorglo export STUDY                     its best loss as a file
    taylorglo baseline STUDY                   cross-entropy at the candidates' budget
    taylorglo evaluate STUDY                   is its winner really better? full trainings
    taylorglo sweep STUDY --over fraction      the same with less data, wrong labels …
    taylorglo report STUDY                     one page about it
    taylorglo dashboard STUDY                  watch it in the browser

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from optuna_taylorglo.cli.verbs import (
    baseline,
    dashboard,
    evaluate,
    export,
    report,
    run,
    status,
    sweep,
)
from optuna_taylorglo.errors import (
    RecipeError,
    RecipeMismatch,
    StopRequested,
    StudyError,
    WorkersFailed,
)
from optuna_taylorglo.worker import (
    DONE,
    FAILED,
    INTERRUPTED,
    USAGE,
    configure_logging,
    stop_on_signals,
)

__all__ = ["DONE", "FAILED", "INTERRUPTED", "USAGE", "build_parser", "main"]

logger = logging.getLogger("optuna_taylorglo.cli")


def build_parser() -> argparse.ArgumentParser:
    """The command line of `taylorglo`."""
    parser = argparse.ArgumentParser(
        prog="taylorglo", description="Evolve loss functions for your network."
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for command in (run, status, export, baseline, evaluate, sweep, report, dashboard):
        command.add_parser(verbs)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and turn what goes wrong into one message and an exit code."""
    arguments = build_parser().parse_args(argv)
    configure_logging()
    stop = stop_on_signals()
    try:
        code: int = arguments.action(arguments, stop)
    except (RecipeError, RecipeMismatch, StudyError, ValueError) as error:
        logger.error("%s", error)
        return USAGE
    except (WorkersFailed, OSError, RuntimeError) as error:
        logger.error("%s", error)
        return FAILED
    except StopRequested:
        logger.info("stopped; the same command goes on where it was")
        return INTERRUPTED
    return code


if __name__ == "__main__":
    sys.exit(main())
