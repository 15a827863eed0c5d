"""Which process evaluates a trial, so that whoever saw it die can give the trial back at once.

A process id alone says little: ids are used again, and a database may be shared by many hosts. A
token that is new with every start of a worker makes the three together unique.
"""

from __future__ import annotations

import os
import socket
import uuid
from dataclasses import asdict, dataclass
from typing import Any

from optuna.trial import FrozenTrial

from optuna_taylorglo.attributes import WORKER

TOKEN_VARIABLE = "TAYLORGLO_WORKER_TOKEN"
"""Environment variable by which whoever starts a worker tells it its token."""

_OWN_TOKEN = uuid.uuid4().hex


@dataclass(frozen=True)
class WorkerIdentity:
    """One start of one worker.

    Attributes:
        host: Name of its machine.
        pid: Its process.
        token: Of this very start.
    """

    host: str
    pid: int
    token: str

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def new_token() -> str:
    """A token that no other start of a worker has."""
    return uuid.uuid4().hex


def own_identity() -> WorkerIdentity:
    """This process, with the token that its supervisor gave it, or with one of its own."""
    token = os.environ.get(TOKEN_VARIABLE) or _OWN_TOKEN
    return WorkerIdentity(socket.gethostname(), os.getpid(), token)


def worker_of(trial: FrozenTrial) -> WorkerIdentity | None:
    """Who evaluates a trial; None for one of an earlier version, or of somebody else."""
    return worker_in(trial.user_attrs.get(WORKER))


def worker_in(content: object) -> WorkerIdentity | None:
    """The worker that an attribute of a trial names."""
    if not isinstance(content, dict) or content.keys() != WorkerIdentity.__annotations__.keys():
        return None
    return WorkerIdentity(**content)
