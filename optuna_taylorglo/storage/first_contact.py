"""Waiting for a database that is not ready yet: not started, or with no connection to spare.

Only what passes by itself is waited for. A wrong password, an unknown database or host is not, and
is said at once.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

import sqlalchemy
from optuna.exceptions import StorageInternalError
from optuna.logging import get_logger

from optuna_taylorglo.storage.retry import (
    is_grpc_error,
    is_outage,
    outage_reason,
    pause,
    raise_if_stopping,
)

PATIENCE = 10.0
"""Seconds that somebody at a keyboard waits for a database that is not ready."""

WORKER_PATIENCE = 600.0
"""Seconds that a worker waits; it may have been started together with the database."""

_LONGEST_WAIT = 5.0
_BETWEEN_WORDS = 30.0

# What PostgreSQL's library says has no code before a connection is made.
_NOT_READY = (
    "connection refused",
    "connection reset",
    "connection timed out",
    "timeout expired",
    "no such file or directory",
    "server closed the connection",
    "starting up",
    "shutting down",
    "not yet accepting connections",
    "not accepting connections",
    "in recovery mode",
    "too many clients",
    "too many connections",
    "connection slots are reserved",
    "no more connections allowed",  # PgBouncer
    "temporary failure in name resolution",
)
# What it says later has one: a connection that failed, a server that ends connections or is full.
_NOT_READY_STATES = ("08", "53300", "57P")
# MySQL and MariaDB: too many connections, shutdown, unreachable, gone, lost.
_NOT_READY_MYSQL = {1040, 1053, 1203, 2002, 2003, 2006, 2013}

_logger = get_logger(__name__)

T = TypeVar("T")


def when_ready(call: Callable[[], T], name: str, *, patience: float) -> T:
    """Make the first calls to a database, again and again while it is not ready.

    Args:
        call: What to do; it is repeated as a whole.
        name: The database, in words.
        patience: Seconds from the first failure after which its error is let through. A process
            that was suspended amid the first call tries again nevertheless: the server has ended
            its connection meanwhile, and is there.

    Raises:
        StopRequested: If this process was asked to stop meanwhile.
    """
    deadline: float | None = None
    silent_until = 0.0
    wait = 0.1
    while True:
        try:
            return call()
        except Exception as error:
            now = time.monotonic()
            deadline = now + patience if deadline is None else deadline
            if not _is_not_ready(error) or now + wait > deadline:
                raise
            if now >= silent_until:
                _logger.warning(f"Waiting for {name}: {outage_reason(error)}")
                silent_until = now + _BETWEEN_WORDS
        raise_if_stopping()
        pause(wait * random.uniform(0.5, 1.0))
        raise_if_stopping()
        wait = min(1.5 * wait, _LONGEST_WAIT)


def _is_not_ready(error: Exception) -> bool:
    if is_grpc_error(error):
        return is_outage(error)
    cause = error.__cause__ if isinstance(error, StorageInternalError) else error
    if isinstance(cause, sqlalchemy.exc.DBAPIError) and cause.connection_invalidated:
        return True
    said = getattr(cause, "orig", None)
    if said is None:
        return False
    if hasattr(said, "sqlite_errorname"):
        return is_outage(error) and said.sqlite_errorname != "SQLITE_CANTOPEN"
    if said.args and isinstance(said.args[0], int):
        return said.args[0] in _NOT_READY_MYSQL
    state = getattr(said, "sqlstate", None) or getattr(said, "pgcode", None) or ""
    if state.startswith(_NOT_READY_STATES):
        return True
    text = str(said).lower()
    return any(words in text for words in _NOT_READY)
