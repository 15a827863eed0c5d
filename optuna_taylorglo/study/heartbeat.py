"""Heartbeats of running trials, and how trials without one fail.

A worker rewrites an attribute of its trial at intervals. Others check by their own monotonic clocks
whether it changes. A trial without a heartbeat for the grace period is first marked as suspect: the
mark proves that the storage accepts writes, so an outage makes no trial fail. Half a grace period
later the trial fails and is repeated. A worker that died on the same machine is noticed at once.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from optuna.exceptions import UpdateFinishedTrialError
from optuna.logging import get_logger
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, Trial, TrialState

from optuna_taylorglo.attributes import STALE, SUSPECT, WITHDRAWN, WORKER
from optuna_taylorglo.study.optuna_private import storage_of, trial_id_of
from optuna_taylorglo.study.storages import release_connections

HEARTBEAT_INTERVAL, GRACE_PERIOD = 60.0, 240.0
CLAIM_LIMIT = 10.0  # seconds that a worker may take from its claim to its first heartbeat

_logger = get_logger(__name__)


@dataclass(frozen=True)
class WorkerProcess:
    """The process that evaluates a trial."""

    host: str
    pid: int
    system: str = ""  # boot and container in which the process id is valid, if known
    started: str = ""  # in the system's own unit; process ids are reused
    heartbeat: float = 0.0  # seconds since 1970 by the worker's own clock

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}"

    @classmethod
    def current(cls) -> WorkerProcess:
        """This process, now."""
        host, pid = socket.gethostname(), os.getpid()
        return cls(host, pid, _system(), _start_time(pid), time.time())

    @classmethod
    def of(cls, trial: FrozenTrial) -> WorkerProcess | None:
        """The worker of a trial, None if it has none."""
        entry = trial.user_attrs.get(WORKER)
        return None if entry is None else cls(**entry)

    @property
    def has_died(self) -> bool:
        """Whether the process is known to be dead; never for one of another machine."""
        if not self.system or self.system != _system():
            return False
        try:
            os.kill(self.pid, 0)
        except OSError as error:
            return isinstance(error, ProcessLookupError)
        return _start_time(self.pid) not in (self.started, "")

    @property
    def silent_seconds(self) -> float:
        """Seconds since the last heartbeat, for display only."""
        return time.time() - self.heartbeat


def _start_time(pid: int) -> str:
    """When a process was started; "dead" for a zombie, empty if unknown."""
    with contextlib.suppress(OSError):
        # The program's name, in parentheses, may contain anything.
        after_name = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2]
        state, *others = after_name.split()
        return "dead" if state in "ZX" else others[18]
    return ""


@functools.cache
def _system() -> str:
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    return ""


def write_heartbeat(storage: BaseStorage, trial_id: int) -> None:
    """Write into a trial that this process evaluates it; raises if it has failed as stale."""
    storage.set_trial_user_attr(trial_id, WORKER, asdict(WorkerProcess.current()))


@contextlib.contextmanager
def heartbeats(
    trial: Trial,
    interval: float = HEARTBEAT_INTERVAL,
    on_stale: Callable[[], object] = lambda: None,
) -> Iterator[None]:
    """Write heartbeats from a thread, which calls `on_stale` if the trial has failed as stale."""
    storage, trial_id, ended = storage_of(trial.study), trial_id_of(trial), threading.Event()

    def run() -> None:
        while not ended.wait(interval):
            try:
                write_heartbeat(storage, trial_id)
            except UpdateFinishedTrialError:
                if not ended.is_set():
                    on_stale()
                return
            except Exception as error:
                _logger.warning(f"No heartbeat: {error}")
            release_connections(storage)

    thread = threading.Thread(target=run, daemon=True, name="heartbeat")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        # The thread may be waiting for a storage that is away; it ends by itself later.
        thread.join(timeout=1.0)


class StaleTrials:
    """Fails running trials whose worker has died or writes no heartbeat for the grace period."""

    def __init__(self, storage: BaseStorage, grace_period: float = GRACE_PERIOD) -> None:
        self._storage = storage
        self._grace_period = grace_period
        # By trial id: its last heartbeat and when that was first seen; since when it is suspect.
        self._seen: dict[int, tuple[object, float]] = {}
        self._suspect_since: dict[int, float] = {}

    def fail(self, trials: Iterable[FrozenTrial]) -> list[int]:
        """Fail the stale ones among trials that were just read; returns their ids."""
        running = [trial for trial in trials if trial.state == TrialState.RUNNING]
        return [trial_id_of(trial) for trial in running if self._fail_if_stale(trial)]

    def _fail_if_stale(self, trial: FrozenTrial) -> bool:
        trial_id, worker = trial_id_of(trial), WorkerProcess.of(trial)
        if is_being_withdrawn(trial):  # the process that withdraws it may have died
            return fail_trial(self._storage, trial_id, WITHDRAWN)
        if worker is not None and worker.has_died:
            return fail_trial(self._storage, trial_id, STALE, f"its worker {worker} has died")
        silent = "its worker wrote no heartbeat"
        return self._is_silent(trial) and fail_trial(self._storage, trial_id, STALE, silent)

    def _is_silent(self, trial: FrozenTrial) -> bool:
        trial_id, entry, now = trial_id_of(trial), trial.user_attrs.get(WORKER), time.monotonic()
        if trial_id not in self._seen or self._seen[trial_id][0] != entry:
            self._seen[trial_id] = entry, now
            self._suspect_since.pop(trial_id, None)
        # The queue adds trials with an empty entry; without one the trial is another program's.
        is_claimed = WORKER in trial.user_attrs and entry is None
        limit = min(CLAIM_LIMIT, self._grace_period) if is_claimed else self._grace_period
        if trial_id in self._suspect_since:
            return now - self._suspect_since[trial_id] >= limit / 2
        if now - self._seen[trial_id][1] >= limit:
            with contextlib.suppress(UpdateFinishedTrialError):
                self._storage.set_trial_user_attr(trial_id, SUSPECT, True)
            # The write may have outlasted an outage.
            self._suspect_since[trial_id] = time.monotonic()
        return False


def is_being_withdrawn(running: FrozenTrial) -> bool:
    """Whether a trial was claimed only to fail, and no worker evaluates it."""
    return WITHDRAWN in running.user_attrs and running.user_attrs.get(WORKER) is None


def fail_trial(storage: Any, trial_id: int, mark: str, value: object = True) -> bool:
    """Fail a trial, with an attribute that says why; False if it is finished already."""
    try:
        storage.set_trial_user_attr(trial_id, mark, value)
        return bool(storage.set_trial_state_values(trial_id, TrialState.FAIL))
    except UpdateFinishedTrialError:
        return False
