"""Which process evaluates a trial, so that whoever saw it die can give the trial back at once.

A process id alone says little: ids are used again, and a database may be shared by many hosts. A
token that is new with every start of a worker makes the three together unique. Others on the same
machine can see for themselves that a worker is dead.
"""

from __future__ import annotations

import os
import socket
import uuid
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from optuna.trial import FrozenTrial

from optuna_taylorglo.attributes import WORKER
from optuna_taylorglo.processes import Process, this_process

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
        place: Where its number means this process: the machine since its last start, and the
            container; empty where the system does not tell.
        started: When the process was started, in the system's own terms.
    """

    host: str
    pid: int
    token: str
    place: str = field(default="", compare=False)
    started: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    @property
    def has_died(self) -> bool:
        """Whether the process is known to be dead; never so if it is of another machine."""
        return Process(self.pid, self.place, self.started).has_died


def new_token() -> str:
    """A token that no other start of a worker has."""
    return uuid.uuid4().hex


def own_identity() -> WorkerIdentity:
    """This process, with the token that its supervisor gave it, or with one of its own."""
    token = os.environ.get(TOKEN_VARIABLE) or _OWN_TOKEN
    this = this_process()
    return WorkerIdentity(socket.gethostname(), this.pid, token, this.place, this.started)


def worker_of(trial: FrozenTrial) -> WorkerIdentity | None:
    """Who evaluates a trial; None for one of an earlier version, or of somebody else."""
    return worker_in(trial.user_attrs.get(WORKER))


def worker_in(content: object) -> WorkerIdentity | None:
    """The worker that an attribute of a trial names."""
    known = {each.name for each in fields(WorkerIdentity)}
    if not isinstance(content, dict) or not {"host", "pid", "token"} <= content.keys() <= known:
        return None
    pid = content["pid"]
    if isinstance(pid, bool) or not isinstance(pid, int) or pid < 1:
        return None
    if not all(isinstance(content[name], str) for name in content.keys() - {"pid"}):
        return None
    return WorkerIdentity(**content)
