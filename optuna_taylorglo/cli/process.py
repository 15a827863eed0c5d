"""What every process of ours has in common: exit codes, logging, signals, and how it ends."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from types import FrameType

from optuna_taylorglo.errors import EvaluationsFail, OperationError, StopRequested, UsageError
from optuna_taylorglo.storage.retry import is_outage, outage_reason

DONE, FAILED, USAGE, BROKEN, INTERRUPTED = 0, 1, 2, 3, 130


def exit_code(action: Callable[[], int], logger: logging.Logger) -> int:
    """Do something and turn what goes wrong into a message and an exit code.

    Args:
        action: What to do; returns an exit code.
        logger: Where messages go.
    """
    try:
        return action()
    except UsageError as error:
        logger.error("%s", error)
        return USAGE
    except EvaluationsFail as error:
        logger.error("%s", error)
        return BROKEN
    except OperationError as error:
        logger.error("%s", error)
        return FAILED
    except StopRequested:
        logger.info("stopped; the same command goes on where it was")
        return INTERRUPTED
    except Exception as error:
        if is_outage(error):
            logger.error("the database did not come back: %s", outage_reason(error))
        else:
            logger.exception("this should not have happened:")
        return FAILED


def configure_logging(*, verbose: bool = False, quiet: bool = False) -> None:
    """One line for each event, on standard error; Optuna's and Lightning's chatter off."""
    import optuna

    level = logging.DEBUG if verbose else logging.ERROR if quiet else logging.INFO
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    for name in ("optuna_taylorglo", "lightning_modules"):
        logging.getLogger(name).setLevel(level)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", ".*treespec, LeafSpec.*")


def stop_on_signals() -> threading.Event:
    """An event that SIGINT or SIGTERM sets; the second signal ends the process at once."""
    stop = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            os._exit(INTERRUPTED)
        stop.set()

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handle)
        signal.signal(signal.SIGTERM, handle)
    return stop
