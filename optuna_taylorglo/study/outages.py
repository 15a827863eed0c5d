"""Storage errors that pass by themselves, and the one retry that outlasts them."""

from __future__ import annotations

import math
import random
import re
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from optuna.exceptions import StorageInternalError
from optuna.logging import get_logger
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, PendingRollbackError

from optuna_taylorglo.errors import StopRequested

OUTAGE_LIMIT = 600.0  # seconds to wait for a storage that went away

# SQLite calls these operational, but waiting does not help.
_SQLITE_PERMANENT = ("SQLITE_ERROR", "SQLITE_READONLY", "SQLITE_AUTH", "SQLITE_PERM")

# A gRPC proxy answers UNKNOWN when its own database is away.
_GRPC_OUTAGES = {"UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED", "UNKNOWN"}

# How PostgreSQL, MySQL and resolvers refuse a first connection for good; there are no codes yet.
_REFUSAL = re.compile(
    "(?i)authentication failed|no pg_hba.conf entry|does not exist|access denied"
    "|unknown database|not known|unable to open"
)
# Another process has created a table, or its first row, at the same moment.
_CREATION_RACE = re.compile("already exists|duplicate|unique constraint", re.IGNORECASE)

stop_requested = threading.Event()  # set when this process was told to stop
_logger = get_logger(__name__)

T = TypeVar("T")


def is_outage(error: BaseException) -> bool:
    """Whether an error of a storage in use may pass when the call is repeated."""
    cause = _cause(error)
    if isinstance(cause, _grpc_errors()):
        return cause.code().name in _GRPC_OUTAGES
    if isinstance(cause, DBAPIError):
        if cause.connection_invalidated:
            return True
        if getattr(cause.orig, "sqlite_errorname", "").startswith(_SQLITE_PERMANENT):
            return False
    # Optuna repeats a failed read in the session that has just failed, hence the rollback.
    return isinstance(cause, OperationalError | InterfaceError | PendingRollbackError)


def is_not_ready(error: BaseException) -> bool:
    """Whether opening a storage may succeed later: a wrong password is reported at once."""
    reason = outage_reason(error)
    if is_outage(error):
        return not _REFUSAL.search(reason)
    return isinstance(error, storage_errors()) and bool(_CREATION_RACE.search(reason))


def storage_errors() -> tuple[type[Exception], ...]:
    """What databases and proxies raise."""
    return (DBAPIError, StorageInternalError, *_grpc_errors())


def _grpc_errors() -> tuple[Any, ...]:
    grpc = sys.modules.get("grpc")  # it need not be installed
    return () if grpc is None else (grpc.RpcError,)


def outage_reason(error: BaseException) -> str:
    """The storage's own message in one line, without the SQL statement."""
    cause = _cause(error)
    said = cause.details() if isinstance(cause, _grpc_errors()) else getattr(cause, "orig", cause)
    return " ".join(str(said).split())


def _cause(error: BaseException) -> Any:
    """The error that Optuna raised its own for."""
    return (isinstance(error, StorageInternalError) and error.__cause__) or error


def retry(
    call: Callable[[], T],
    *,
    limit: float,
    passes: Callable[[Exception], bool] = is_outage,
) -> T:
    """Call a storage until it answers, `limit` seconds have passed or a stop is requested."""
    give_up_at, wait = math.inf, 0.1
    while True:
        try:
            return call()
        except Exception as error:
            if not passes(error):
                raise
            give_up_at = min(give_up_at, time.monotonic() + limit)
            if stop_requested.is_set():
                raise StopRequested from error
            if time.monotonic() + wait > give_up_at:
                raise
            if wait >= 1:
                _logger.warning(f"Storage unavailable, retrying: {outage_reason(error)}")
        stop_requested.wait(wait * random.uniform(0.5, 1.0))
        wait = min(2 * wait, 5.0)
