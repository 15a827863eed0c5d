"""Heartbeats of running trials, and what becomes of a trial without one.

A worker writes who and when it is into its trial, every `interval` seconds. Others look only
whether that entry changes, each by its own monotonic clock, so clocks need not agree and any
storage will do. A trial whose entry stays the same for the grace period is first marked as suspect.
That mark proves that the storage accepts writes, so an outage makes no trial suspect. If the entry
still has not changed after half a grace period more, the trial fails and is repeated. A worker that
died on the same machine is noticed at once.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from optuna.exceptions import UpdateFinishedTrialError
from optuna.logging import get_logger
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, Trial, TrialState

from optuna_taylorglo.attributes import STALE, SUSPECT, WITHDRAWN, WORKER
from optuna_taylorglo.study.optuna_private import storage_of, trial_id_of
from optuna_taylorglo.study.storages import release_connections

HEARTBEAT_INTERVAL = 60.0
GRACE_PERIOD = 240.0

CLAIM_LIMIT = 10.0
"""Seconds that a worker may take from its claim to its first heartbeat."""

_logger = get_logger(__name__)


@dataclass(frozen=True)
class WorkerProcess:
    """The process that evaluates a trial.

    Attributes:
        system: Where the process id is valid: this machine since its last boot, this container;
            empty where the system does not tell.
        started: When the process was started, in the system's own unit: ids are used again.
        heartbeat: When it last wrote this, in UTC.
    """

    host: str
    pid: int
    system: str = ""
    started: str = ""
    heartbeat: str = ""

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}"

    @classmethod
    def current(cls) -> WorkerProcess:
        """This process, now."""
        pid = os.getpid()
        now = datetime.now(UTC).isoformat()
        return cls(socket.gethostname(), pid, _system(), _start_time(pid), now)

    @classmethod
    def of(cls, trial: FrozenTrial) -> WorkerProcess | None:
        """The worker of a trial; None if it has none, or one of another program."""
        try:
            worker = cls(**trial.user_attrs[WORKER])
        except (KeyError, TypeError):
            return None
        return worker if isinstance(worker.pid, int) and worker.pid > 0 else None

    @property
    def has_died(self) -> bool:
        """Whether the process is known to be dead; never for one of another machine."""
        if not self.system or self.system != _system():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        return _start_time(self.pid) not in (self.started, "")

    @property
    def silent_seconds(self) -> float | None:
        """Seconds since the last heartbeat by this machine's clock, for display only."""
        try:
            return (datetime.now(UTC) - datetime.fromisoformat(self.heartbeat)).total_seconds()
        except (TypeError, ValueError):
            return None


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
    """Write into a trial that this process evaluates it.

    Raises:
        UpdateFinishedTrialError: If the trial has failed as stale in the meantime.
    """
    storage.set_trial_user_attr(trial_id, WORKER, asdict(WorkerProcess.current()))


class Heartbeat:
    """Writes heartbeats of a trial from a thread while the body of its ``with`` statement runs.

    Args:
        trial: The running trial.
        interval: Seconds between two heartbeats.
        on_stale: Called from the thread if the trial has failed as stale, for example because this
            process was suspended.
    """

    def __init__(
        self,
        trial: Trial,
        interval: float = HEARTBEAT_INTERVAL,
        on_stale: Callable[[], object] = lambda: None,
    ) -> None:
        self._trial_id = trial_id_of(trial)
        self._storage: Any = storage_of(trial.study)
        self._interval = interval
        self._on_stale = on_stale
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="heartbeat")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        # The thread may be waiting for a storage that is away; it ends by itself later.
        self._thread.join(timeout=1.0)

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            try:
                write_heartbeat(self._storage, self._trial_id)
            except UpdateFinishedTrialError:
                if not self._stop.is_set():
                    self._on_stale()
                return
            except Exception as error:
                _logger.warning(f"No heartbeat: {error}")
            release_connections(self._storage)


class StaleTrials:
    """Fails running trials whose worker has died or stays silent.

    Args:
        storage: The storage of the trials.
        grace_period: Seconds without a heartbeat until a trial is suspect.
    """

    def __init__(self, storage: BaseStorage, grace_period: float = GRACE_PERIOD) -> None:
        self._storage = storage
        self._grace_period = grace_period
        # Of each running trial: its last heartbeat, when it was first seen, when it became suspect.
        # `_seen` grows while trials are read, so that an outage begins everything anew.
        self._seen: dict[int, tuple[object, float, float | None]] = {}
        self._seen_before = self._seen

    def fail(self, trials: Iterable[FrozenTrial]) -> list[int]:
        """Fail the stale ones among trials that were just read; returns their ids."""
        self._seen_before, self._seen = self._seen, {}
        return [
            trial_id_of(trial)
            for trial in trials
            if trial.state == TrialState.RUNNING
            and (mark := self._mark_of(trial)) is not None
            and fail_trial(self._storage, trial_id_of(trial), *mark)
        ]

    def _mark_of(self, trial: FrozenTrial) -> tuple[str, object] | None:
        """The attribute with which a running trial is to fail; None if it goes on."""
        worker = WorkerProcess.of(trial)
        if is_being_withdrawn(trial):
            return WITHDRAWN, True  # perhaps by a process that died over it
        if worker is not None and worker.has_died:
            return STALE, f"its worker {worker} has died"
        return (STALE, "its worker wrote no heartbeat") if self._is_silent(trial) else None

    def _is_silent(self, trial: FrozenTrial) -> bool:
        entry, now, trial_id = trial.user_attrs.get(WORKER), time.monotonic(), trial_id_of(trial)
        last, since, suspect_since = self._seen_before.get(trial_id, (entry, now, None))
        if entry != last:
            since, suspect_since = now, None
        # The queue adds trials with an empty entry; without one the trial is another program's.
        is_claimed = WORKER in trial.user_attrs and entry is None
        limit = min(CLAIM_LIMIT, self._grace_period) if is_claimed else self._grace_period
        if suspect_since is None and now - since >= limit:
            with contextlib.suppress(UpdateFinishedTrialError):
                self._storage.set_trial_user_attr(trial_id, SUSPECT, True)
            suspect_since = time.monotonic()
        self._seen[trial_id] = (entry, since, suspect_since)
        return suspect_since is not None and now - suspect_since >= limit / 2


def is_being_withdrawn(running: FrozenTrial) -> bool:
    """Whether a trial was claimed only to fail, and no worker evaluates it."""
    return WITHDRAWN in running.user_attrs and running.user_attrs.get(WORKER) is None


def fail_trial(storage: BaseStorage, trial_id: int, mark: str, value: object = True) -> bool:
    """Fail a trial, with an attribute that says why; False if it is finished already."""
    try:
        storage.set_trial_user_attr(trial_id, mark, value)
        return storage.set_trial_state_values(trial_id, TrialState.FAIL)
    except UpdateFinishedTrialError:
        return False
