"""Waiting for a database that went away."""

from __future__ import annotations

import contextlib
import math
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import sqlalchemy
from optuna.exceptions import StorageInternalError
from optuna.logging import get_logger

from optuna_taylorglo.errors import StopRequested

DEFAULT_OUTAGE_LIMIT = 600.0
"""Seconds to wait for a database that went away before giving up."""

_logger = get_logger(__name__)

T = TypeVar("T")

STOP_PATIENCE = 3.0
"""Seconds that are left to a database that went away once this process is asked to stop."""

_LONGEST_WAIT = 15.0

# Seconds that a call may take with all others at work, or their part of the grace period: what
# takes longer may have kept others from signs of life for so long that silence proves nothing.
_STANDSTILL = 1.0
_STANDSTILL_OF_GRACE = 1 / 8

# A server that has no connection to spare is well, and soon has one.
_LONGEST_CROWDED_WAIT = 1.0
_CROWDED = (
    "too many clients",
    "too many connections",
    "connection slots are reserved",
    "no more connections allowed",  # PgBouncer
)

_OUTAGES = (
    sqlalchemy.exc.OperationalError,
    sqlalchemy.exc.InterfaceError,
    # Optuna asks once more in the same session when reading trials failed.
    sqlalchemy.exc.PendingRollbackError,
)

# SQLite and its driver call these operational, but waiting mends none of them: a wrong statement
# or a table that is not there, a database for reading only, a file that is not ours to open.
_SQLITE_FOR_GOOD = ("SQLITE_ERROR", "SQLITE_READONLY", "SQLITE_AUTH", "SQLITE_PERM")

# Of a proxy that is away, hangs or has no thread to spare, or behind which the database is away:
# whatever it met that it does not know is UNKNOWN.
_GRPC_OUTAGES = {"UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED", "UNKNOWN"}

# Two transactions in each other's way: PostgreSQL's states, and MySQL's numbers.
_CONTENTION = {"40001", "40P01", "55P03", 1205, 1213}

_state = threading.local()


class _Outage:
    """What this process knows of its database."""

    def __init__(self) -> None:
        self.lasts = False
        self.last_end = -math.inf
        self.stop: threading.Event | None = None


_process = _Outage()


def stop_waiting_when(stop: threading.Event | None) -> None:
    """Let no wait for a database outlast an event, which a signal may set; once a process.

    When it is set, a call that waits for a database ends with `StopRequested` within
    `STOP_PATIENCE` seconds; so do later calls, if the database is still away.
    """
    _process.stop = stop


def last_outage_end() -> float:
    """When a call last succeeded after others had failed, in terms of `time.monotonic`.

    Nobody could give signs of life before that, so silence up to it proves nothing. Minus infinity
    if this process has seen no outage.
    """
    return _process.last_end


def noting_standstill(call: Callable[[], T], grace: float) -> T:
    """Make a call, and take it for an outage if it takes long: perhaps nobody could write.

    SQLite has one writer at a time. If that one is suspended, nobody can give a sign of life, and
    no call fails. A database that is only slow or far away must not be taken for one that stands
    still, or nobody would ever be given up there.

    Args:
        call: What to do.
        grace: Seconds without a sign of life after which a trial is given up.
    """
    began = time.monotonic()
    try:
        return call()
    finally:
        if is_standstill(began, grace):
            _process.last_end = time.monotonic()


def is_standstill(began: float, grace: float) -> bool:
    """Whether a call that began at that time may have kept others from a sign of life."""
    return time.monotonic() - began > max(_STANDSTILL, _STANDSTILL_OF_GRACE * grace)


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
    error = _unwrapped(error)
    if is_grpc_error(error):
        return error.code().name in _GRPC_OUTAGES  # type: ignore[attr-defined]
    if isinstance(error, sqlalchemy.exc.DBAPIError):
        if error.connection_invalidated:
            return True
        if getattr(error.orig, "sqlite_errorname", "").startswith(_SQLITE_FOR_GOOD):
            return False
    return isinstance(error, _OUTAGES)


def is_read_only(error: BaseException) -> bool:
    """Whether an SQLite database refuses to be written."""
    said = getattr(_unwrapped(error), "orig", None)
    return getattr(said, "sqlite_errorname", "").startswith("SQLITE_READONLY")


def is_contention(error: BaseException) -> bool:
    """Whether a database that is well has chosen this call as the one to be repeated."""
    said = getattr(_unwrapped(error), "orig", None)
    states = {getattr(said, "sqlstate", None), getattr(said, "pgcode", None)}
    return not _CONTENTION.isdisjoint(states | set(getattr(said, "args", ())[:1]))


def is_crowded(error: BaseException) -> bool:
    """Whether a database that is well has no connection to spare."""
    said = str(getattr(_unwrapped(error), "orig", "")).lower()
    return any(words in said for words in _CROWDED)


def _unwrapped(error: BaseException) -> BaseException:
    """What Optuna's own error was raised for."""
    if isinstance(error, StorageInternalError) and error.__cause__ is not None:
        return error.__cause__
    return error


def is_grpc_error(error: BaseException) -> bool:
    """Whether a call to Optuna's gRPC proxy failed; its library is not everywhere installed."""
    grpc: Any = sys.modules.get("grpc")
    return grpc is not None and isinstance(error, grpc.RpcError)


def outage_reason(error: BaseException) -> str:
    """What the database said, in one line and without the statement."""
    if is_grpc_error(error):
        return " ".join(str(error.details()).split())  # type: ignore[attr-defined]
    cause = error.__cause__ or error
    return " ".join(str(getattr(cause, "orig", cause)).split())


def retry_during_outage(call: Callable[[], T], *, limit: float) -> T:
    """Make a call, again and again while the database is away.

    Waits grow from a quarter of a second to 15 seconds, each with jitter, so that workers do not
    all come back at the same moment.

    Args:
        call: What to do; it is repeated as a whole.
        limit: Seconds from the first failure after which the database's error is let through. A
            call that hangs for longer before it fails is made again nevertheless.

    Raises:
        StopRequested: If this process was asked to stop (`stop_waiting_when`) and the database is
            still away.
    """
    if getattr(_state, "without_retry", False):
        return _watched(call)
    failed_at: float | None = None
    wait = 0.25
    while True:
        try:
            # A nested call must fail at once, or every level would wait in its turn.
            with without_retry():
                return _watched(call)
        except Exception as error:
            if not is_outage(error):
                raise
            now = time.monotonic()
            failed_at = now if failed_at is None else failed_at
            if now + wait > failed_at + limit:
                raise
            if _stopping() and now + wait > failed_at + STOP_PATIENCE:
                raise StopRequested from error
            reason = outage_reason(error)
            crowded = is_crowded(error)
            if not crowded or wait >= _LONGEST_CROWDED_WAIT:
                _logger.warning(f"Database unavailable, trying again in {wait:.1f} s: {reason}")
        pause(wait * random.uniform(0.5, 1.0))
        # Whoever is in a hurry tries often while there is time.
        longest = _LONGEST_CROWDED_WAIT if crowded or _stopping() else _LONGEST_WAIT
        wait = min(2 * wait, longest)


def pause(seconds: float) -> None:
    """Wait, unless this process is asked to stop meanwhile."""
    if _process.stop is None or _process.stop.is_set():
        time.sleep(seconds)
    else:
        _process.stop.wait(seconds)


def raise_if_stopping() -> None:
    """End a wait with `StopRequested` if this process was asked to stop."""
    if _stopping():
        raise StopRequested


def _stopping() -> bool:
    return _process.stop is not None and _process.stop.is_set()


def _watched(call: Callable[[], T]) -> T:
    """Make a call, and keep in mind whether the database was away."""
    try:
        result = call()
    except Exception as error:
        if is_outage(error) and not is_contention(error) and not is_crowded(error):
            _process.lasts = True
        raise
    if _process.lasts:
        _process.lasts = False
        _process.last_end = time.monotonic()
    return result
