"""Exit codes, logging and signals of all our processes."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

from optuna_taylorglo.errors import (
    EvaluationsFail,
    OperationError,
    StopRequested,
    StorageUnreachable,
    StudyDeleted,
    UsageError,
)
from optuna_taylorglo.study.outages import is_outage, outage_reason, stop_requested
from optuna_taylorglo.text import VisibleFormatter

DONE, FAILED, USAGE, BROKEN, INTERRUPTED = 0, 1, 2, 3, 130


def exit_code(action: Callable[[], int], logger: logging.Logger, study: str | None = None) -> int:
    """Run an action, and turn an exception into a message and an exit code."""
    try:
        return action()
    except Exception as error:
        is_away = is_outage(error) or isinstance(error, StorageUnreachable)
        if isinstance(error, StopRequested) or (is_away and stop_requested.is_set()):
            logger.info("stopped; the same command goes on where it was")
            return INTERRUPTED
        if is_outage(error):
            logger.error("the database did not come back: %s", outage_reason(error))
        elif StudyDeleted.tells(error):
            logger.error("%s", StudyDeleted(study))
        else:
            expected = isinstance(error, UsageError | OperationError)
            logger.error("%s", error if expected else "Unexpected error:", exc_info=not expected)
        if isinstance(error, UsageError):
            return USAGE
        return BROKEN if isinstance(error, EvaluationsFail) else FAILED


def configure_logging(*, verbose: bool = False, quiet: bool = False) -> None:
    """One line for each event, on standard error; Optuna's and Lightning's messages off."""
    import optuna

    level = logging.DEBUG if verbose else logging.ERROR if quiet else logging.INFO
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(VisibleFormatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    logging.basicConfig(handlers=[handler])
    for name in ("optuna_taylorglo", "lightning_modules"):
        logging.getLogger(name).setLevel(level)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for own in logging.getLogger("optuna").handlers:
        own.setFormatter(handler.formatter)


def stop_on_signals() -> threading.Event:
    """An event that SIGINT, SIGTERM or SIGHUP sets; a second signal ends the process at once."""

    def handle(number: int, frame: FrameType | None) -> None:
        if stop_requested.is_set():
            os._exit(INTERRUPTED)
        stop_requested.set()

    stop_requested.clear()
    if threading.current_thread() is threading.main_thread():
        signals = [signal.SIGINT, signal.SIGTERM]
        # Windows has no SIGHUP, and under nohup a command goes on when its terminal is closed.
        if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            signals.append(signal.SIGHUP)
        for each in signals:
            signal.signal(each, handle)
    return stop_requested
