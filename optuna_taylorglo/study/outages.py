"""Storage errors that pass by themselves, and the one retry that outlasts them."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import sqlalchemy
from optuna.exceptions import StorageInternalError
from optuna.logging import get_logger

from optuna_taylorglo.errors import StopRequested

OUTAGE_LIMIT = 600.0
"""Seconds to wait for a storage that went away."""

STOP_LIMIT = 3.0
"""Seconds to wait for it once this process was asked to stop."""

_LONGEST_WAIT = 5.0

# SQLite calls these operational, but waiting does not help: a wrong statement, a missing table, a
# read-only database, a file that must not be opened.
_SQLITE_PERMANENT = ("SQLITE_ERROR", "SQLITE_READONLY", "SQLITE_AUTH", "SQLITE_PERM")

# A gRPC proxy answers UNKNOWN when its own database is away.
_GRPC_OUTAGES = {"UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED", "UNKNOWN"}

# How servers refuse a first connection for good, in the words of PostgreSQL, MySQL and resolvers:
# libraries have no codes at that stage.
_REFUSALS = (
    "authentication failed",
    "no pg_hba.conf entry",
    "does not exist",
    "access denied",
    "unknown database",
    "not known",
    "unable to open",
)

_logger = get_logger(__name__)
_stop: threading.Event | None = None

T = TypeVar("T")


def stop_waiting_when(stop: threading.Event | None) -> None:
    """End every wait for a storage soon after ``stop`` is set, in the whole process."""
    global _stop
    _stop = stop


def retry(
    call: Callable[[], T],
    *,
    limit: float = OUTAGE_LIMIT,
    passes: Callable[[Exception], bool] | None = None,
) -> T:
    """Call a storage, again and again while it is away.

    Args:
        call: Repeated as a whole.
        limit: Seconds after the first failure until the error is raised.
        passes: Tells the errors that are worth another try; `is_outage` by default.

    Raises:
        StopRequested: If this process was asked to stop and the storage is still away.
    """
    passes = passes or is_outage
    give_up_at: float | None = None
    stop_at: float | None = None
    wait = 0.1
    while True:
        try:
            return call()
        except Exception as error:
            now = time.monotonic()
            give_up_at = now + limit if give_up_at is None else give_up_at
            if not passes(error) or now + wait > give_up_at:
                raise
            if _stop is not None and _stop.is_set():
                stop_at = now + STOP_LIMIT if stop_at is None else stop_at
                if now + wait > stop_at:
                    raise StopRequested from error
            if wait >= 1:
                _logger.warning(f"Storage unavailable, retrying: {outage_reason(error)}")
        pause = wait * random.uniform(0.5, 1.0)
        if _stop is None or _stop.is_set():
            time.sleep(pause)
        else:
            _stop.wait(pause)
        wait = min(2 * wait, _LONGEST_WAIT if stop_at is None else 0.5)


def is_outage(error: BaseException) -> bool:
    """Whether an error in the middle of the work may pass when the call is repeated."""
    error = _cause(error)
    if is_grpc_error(error):
        return error.code().name in _GRPC_OUTAGES  # type: ignore[attr-defined]
    if isinstance(error, sqlalchemy.exc.DBAPIError):
        if error.connection_invalidated:
            return True
        if getattr(error.orig, "sqlite_errorname", "").startswith(_SQLITE_PERMANENT):
            return False
    return isinstance(
        error,
        sqlalchemy.exc.OperationalError
        | sqlalchemy.exc.InterfaceError
        # Optuna repeats a failed read in the session that has just failed.
        | sqlalchemy.exc.PendingRollbackError,
    )


def is_not_ready(error: BaseException) -> bool:
    """Whether a first connection may succeed later: a wrong password is reported at once."""
    text = str(_cause(error)).lower()
    return is_outage(error) and not any(words in text for words in _REFUSALS)


def is_grpc_error(error: BaseException) -> bool:
    """Whether a call of a gRPC proxy failed; the library need not be installed."""
    grpc: Any = sys.modules.get("grpc")
    return grpc is not None and isinstance(error, grpc.RpcError)


def outage_reason(error: BaseException) -> str:
    """The storage's own words, in one line and without the SQL statement."""
    error = _cause(error)
    said = error.details() if is_grpc_error(error) else getattr(error, "orig", error)  # type: ignore[attr-defined]
    return " ".join(str(said).split())


def _cause(error: BaseException) -> BaseException:
    """The error that Optuna's own was raised for."""
    if isinstance(error, StorageInternalError) and error.__cause__ is not None:
        return error.__cause__
    return error
