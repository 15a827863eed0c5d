"""Waiting for a database that went away."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import sqlalchemy
from optuna.exceptions import StorageInternalError
from optuna.logging import get_logger

DEFAULT_OUTAGE_LIMIT = 600.0
"""Seconds to wait for a database that went away before giving up."""

_logger = get_logger(__name__)

T = TypeVar("T")

_OUTAGES = (
    sqlalchemy.exc.OperationalError,
    sqlalchemy.exc.InterfaceError,
    # Optuna asks once more in the same session when reading trials failed.
    sqlalchemy.exc.PendingRollbackError,
)

_state = threading.local()


@contextlib.contextmanager
def without_retry() -> Iterator[None]:
    """Let database errors of this thread through at once, for callers that start over."""
    before = getattr(_state, "without_retry", False)
    _state.without_retry = True
    try:
        yield
    finally:
        _state.without_retry = before


def is_outage(error: BaseException) -> bool:
    """Whether an error may pass when the same call is made again later."""
    if isinstance(error, StorageInternalError) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, sqlalchemy.exc.DBAPIError) and error.connection_invalidated:
        return True
    return isinstance(error, _OUTAGES)


def outage_reason(error: BaseException) -> str:
    """What the database said, in one line and without the statement."""
    cause = error.__cause__ or error
    return " ".join(str(getattr(cause, "orig", cause)).split())


def retry_during_outage(call: Callable[[], T], *, limit: float) -> T:
    """Make a call, again and again while the database is away.

    Waits grow from a quarter of a second to 15 seconds, each with jitter, so that workers do not
    all come back at the same moment.

    Args:
        call: What to do; it is repeated as a whole.
        limit: Seconds after which the database's error is let through.
    """
    if getattr(_state, "without_retry", False):
        return call()
    deadline = time.monotonic() + limit
    wait = 0.25
    while True:
        try:
            # A nested call must fail at once, or every level would wait in its turn.
            with without_retry():
                return call()
        except Exception as error:
            if not is_outage(error) or time.monotonic() + wait > deadline:
                raise
            reason = outage_reason(error)
            _logger.warning(f"Database unavailable, trying again in {wait:.1f} s: {reason}")
        time.sleep(wait * random.uniform(0.5, 1.0))
        wait = min(2 * wait, 15.0)
