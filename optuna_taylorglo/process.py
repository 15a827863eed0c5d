"""What every process of ours has in common: exit codes, logging, signals, and how it ends."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from types import FrameType

from optuna_taylorglo.errors import (
    EvaluationsFail,
    OperationError,
    StopRequested,
    StorageUnreachable,
    StudyDeleted,
    UsageError,
)
from optuna_taylorglo.sanitize import VisibleFormatter
from optuna_taylorglo.study.outages import is_outage, outage_reason, stop_waiting_when

DONE, FAILED, USAGE, BROKEN, INTERRUPTED = 0, 1, 2, 3, 130

_stop = threading.Event()
"""Set when this process was told to stop."""


@contextlib.contextmanager
def frozen_heap() -> Iterator[None]:
    """Let Python's garbage collector look past all that there is when the body begins.

    With PyTorch loaded, a collection goes through hundreds of thousands of objects that live as
    long as the process, and each reading of some hundred trials sets one off.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def exit_code(action: Callable[[], int], logger: logging.Logger, study: str | None = None) -> int:
    """Do something and turn what goes wrong into a message and an exit code.

    Args:
        action: What to do; returns an exit code.
        logger: Where messages go.
        study: Name of the study that it is about, for messages.
    """
    try:
        return _do(action, study)
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
            logger.exception("Unexpected error:")
        return FAILED


def _do(action: Callable[[], int], study: str | None) -> int:
    """Do something; what a stop or a deleted study leads to gets its name.

    Raises:
        StopRequested: If the database was away when this process was told to stop.
        StudyDeleted: If the study is not there any more.
    """
    try:
        return action()
    except Exception as error:
        if _stop.is_set() and (is_outage(error) or isinstance(error, StorageUnreachable)):
            raise StopRequested from error
        if StudyDeleted.tells(error):
            raise StudyDeleted(study) from error
        raise


def configure_logging(*, verbose: bool = False, quiet: bool = False) -> None:
    """One line for each event, on standard error; Optuna's and Lightning's chatter off."""
    import optuna

    level = logging.DEBUG if verbose else logging.ERROR if quiet else logging.INFO
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(VisibleFormatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    logging.basicConfig(handlers=[handler])
    for name in ("optuna_taylorglo", "lightning_modules"):
        logging.getLogger(name).setLevel(level)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for own in logging.getLogger("optuna").handlers:
        own.setFormatter(VisibleFormatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    warnings.filterwarnings("ignore", ".*treespec, LeafSpec.*")


def stop_on_signals() -> threading.Event:
    """An event that is set when this process is to stop; a second signal ends it at once.

    Signals are SIGINT, SIGTERM and SIGHUP. Then it waits for no database any more.
    """
    global _stop
    stop = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            os._exit(INTERRUPTED)
        stop.set()

    if threading.current_thread() is threading.main_thread():
        _stop = stop
        stop_waiting_when(stop)
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # not every system has the last one
            number = getattr(signal, name, None)
            # Under nohup a command is to go on when its terminal is closed.
            if number is not None and not (name == "SIGHUP" and _is_ignored(number)):
                signal.signal(number, handle)
    return stop


def request_stop() -> None:
    """Ask this process to stop, as a first signal does."""
    _stop.set()


def _is_ignored(number: signal.Signals) -> bool:
    return signal.getsignal(number) == signal.SIG_IGN
