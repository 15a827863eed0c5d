"""Processes on this machine: started as copies of one that has imported everything, and restarted.

Importing PyTorch and Lightning takes ten seconds of a core. The fork server of `multiprocessing`
does it once. Where copies are not safe, each process imports for itself.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any

from optuna_taylorglo.errors import WorkersFailed
from optuna_taylorglo.process import BROKEN, INTERRUPTED, USAGE
from optuna_taylorglo.study.outages import stop_requested

_CONTEXT: Any = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")

_PRELOADED = [
    "alembic.command",  # Optuna imports it when it opens a database
    "lightning_modules.data",
    "lightning_modules.nets",
    "optuna_taylorglo.verdict.runner",
    "optuna_taylorglo.worker",
]

LONGEST_WAIT = 60.0  # seconds until a process that dies again and again is restarted
MAX_FAILURES = 5  # failures of its own in a row after which a process is not restarted
STEADY, SOUND = 10.0, 600.0  # seconds of life after which deaths, and failures, are counted anew
STOP_LIMIT = 60.0  # seconds that a process has to end by itself
_ENDED_FROM_OUTSIDE = (INTERRUPTED, -9, -15)  # a machine without memory sends SIGKILL as well

logger = logging.getLogger(__name__)


@dataclass
class Job:
    """A module's function that returns an exit code, what it is given, and its process's state."""

    run: Callable[..., int]
    arguments: tuple[Any, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    log: Path = Path(os.devnull)
    process: BaseProcess | None = None
    started: float = 0.0
    restart_at: float | None = None
    deaths: int = 0
    failures: int = 0

    @property
    def exit_code(self) -> int | None:
        return None if self.process is None else self.process.exitcode

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.exit_code is None

    def start(self) -> None:
        arguments = (self.run, self.arguments, self.environment, str(self.log.absolute()))
        self.process = _CONTEXT.Process(target=_run, args=arguments)
        self.started, self.restart_at = time.monotonic(), None
        # Else the new process would run the user's script again, for want of an `if __name__ …`.
        script, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
        try:
            self.process.start()
        finally:
            sys.modules["__main__"] = script

    def plan_restart(self, code: int) -> None:
        """Decide when to start again after a death: later each time, and not after too many."""
        lived = time.monotonic() - self.started
        wait = min(2.0 ** min(self.deaths, 30) - 1, LONGEST_WAIT) if lived < STEADY else 0.0
        self.deaths = self.deaths + 1 if lived < STEADY else 1
        self.failures = (self.failures if lived < SOUND else 0) + (code not in _ENDED_FROM_OUTSIDE)
        self.restart_at = time.monotonic() + wait
        if self.failures >= MAX_FAILURES:
            self.restart_at = math.inf
            logger.error("%s %d times; not restarted (%s)", _cause(code), self.failures, self.log)
        elif wait:
            logger.warning("%s; restarted in %.0f s (%s)", _cause(code), wait, self.log)


class LocalProcesses:
    """Starts processes, restarts those that die, and stops them; each has a log in `log_dir`."""

    def __init__(self, jobs: Sequence[Job], log_dir: Path) -> None:
        log_dir.mkdir(parents=True, exist_ok=True)
        self._jobs = list(jobs)
        for number, job in enumerate(jobs):
            job.log = log_dir / f"{number}.log"

    def start(self) -> None:
        """Start all processes, also those that have ended."""
        prepare()
        for job in self._jobs:
            if not job.is_running:
                job.deaths = job.failures = 0
                job.start()

    def poll(self) -> bool:
        """Restart what died, without waiting; whether any process is running or will be.

        Raises `WorkersFailed` if a restart cannot help, or all that are left failed too often.
        """
        for job in self._jobs:
            if job.exit_code in (USAGE, BROKEN):
                self._fail(job)
            if job.exit_code and job.restart_at is None:
                job.plan_restart(job.exit_code)
        running = any(job.is_running for job in self._jobs)
        # Once a job is done, others that do the same are not needed any more.
        done = [job.run for job in self._jobs if job.exit_code == 0]
        dead = [job for job in self._jobs if job.exit_code and job.run not in done]
        if dead and not running and all(job.restart_at == math.inf for job in dead):
            self._fail(dead[0])
        for job in dead:
            if job.restart_at is not None and time.monotonic() >= job.restart_at:
                job.start()
        return running or bool(dead)

    def _fail(self, job: Job) -> None:
        self.stop()
        lines = job.log.read_text(errors="replace").splitlines()[-12:]
        tail = "\n".join("  " + line for line in lines)
        raise WorkersFailed(f"{_cause(job.exit_code)}; its log {job.log} ends with\n{tail}")

    def stop(self) -> None:
        """Ask all processes to release their trials and to end; kill those that do not."""
        running = [job.process for job in self._jobs if job.process and job.is_running]
        for process in running:
            process.terminate()
        deadline = time.monotonic() + STOP_LIMIT
        for process in running:
            process.join(max(0.1, deadline - time.monotonic()))
            process.kill()
            process.join()


def prepare() -> None:
    """Import everything in the background, for processes that will be started."""
    if _CONTEXT.get_start_method() == "forkserver":
        from multiprocessing import forkserver

        forkserver.set_forkserver_preload(_PRELOADED)
        forkserver.ensure_running()


def _run(
    run: Callable[..., int], arguments: tuple[Any, ...], environment: Mapping[str, str], log: str
) -> None:
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # Ctrl-C in the terminal is for the command, which stops its processes
    with open(log, "ab") as output, open(os.devnull, "rb") as nothing:
        for descriptor, file in ((0, nothing), (1, output), (2, output)):
            os.dup2(file.fileno(), descriptor)
    os.environ.update(environment)
    threading.Thread(target=_end_with_parent, daemon=True, name="end-with-parent").start()
    sys.exit(run(*arguments))


def _end_with_parent() -> None:
    """Stop this process when the command that started it is gone, however it ended."""
    parent, server = multiprocessing.parent_process(), os.getppid()
    assert parent is not None
    # Without the fork server the command could not see how this process ends.
    while not connection.wait([parent.sentinel], timeout=1.0) and os.getppid() == server:
        pass
    stop_requested.set()
    time.sleep(STOP_LIMIT)
    os._exit(1)


def _cause(code: int | None) -> str:
    if code is not None and code < 0:
        return f"the worker was ended by {signal.Signals(-code).name}"
    return f"the worker ended with code {code}"
