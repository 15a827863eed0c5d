"""Keeps a number of worker processes alive on this machine until the search is over."""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Protocol

from optuna_taylorglo.cli.process import BROKEN, INTERRUPTED, USAGE
from optuna_taylorglo.errors import WorkersFailed
from optuna_taylorglo.queue.identity import TOKEN_VARIABLE, WorkerIdentity, new_token

OnDeath = Callable[[WorkerIdentity, str], object]
"""Told who died, and how."""

SHORTEST_WAIT = 1.0
LONGEST_WAIT = 60.0
"""Seconds before a worker that dies again and again is started once more; each time twice as long.
The first time there is no wait."""

STEADY = 10.0
"""Seconds that a worker lives after which its next death is the first again."""

MAX_FAILURES = 5
"""Ends in a row by a worker's own fault after which it is left alone: one on a broken device would
go on to spoil candidate after candidate."""

SOUND = 600.0
"""Seconds that a worker lives after which such an end is the first again."""

_FAULTS = ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT")
"""Signals that a process brings upon itself; all others are sent by somebody."""

logger = logging.getLogger(__name__)


class Process(Protocol):
    """A process, as `subprocess.Popen` has it."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


Start = Callable[[Sequence[str], Path, Mapping[str, str]], Process]
"""Starts a process: its command, the log that its output is added to, and its environment."""


@dataclass
class _Child:
    command: list[str]
    log: Path
    environment: dict[str, str]
    start_process: Start
    process: Process | None = None
    token: str = ""
    began: float = 0.0
    deaths: int = 0
    failures: int = 0
    due: float | None = None
    finished: bool = False
    mourned: bool = False

    @property
    def identity(self) -> WorkerIdentity:
        assert self.process is not None
        return WorkerIdentity(socket.gethostname(), self.process.pid, self.token)

    @property
    def hopeless(self) -> bool:
        """Whether it has failed too often to be started again."""
        return self.due == math.inf

    def start(self) -> None:
        self.token, self.mourned, self.due = new_token(), False, None
        self.began = time.monotonic()
        environment = self.environment | {TOKEN_VARIABLE: self.token}
        self.process = self.start_process(self.command, self.log, environment)

    def plan_restart(self, code: int) -> float:
        """Settle when it is started again after its death; returns the seconds until then."""
        lived = time.monotonic() - self.began
        self.deaths = 1 if lived >= STEADY else self.deaths + 1
        self.failures = (0 if lived >= SOUND else self.failures) + _is_own_fault(code)
        wait = 0.0
        if self.failures >= MAX_FAILURES:
            wait = math.inf
        elif self.deaths > 1:
            # Not by a power of the deaths alone, which in a long run is no number any more.
            wait = min(SHORTEST_WAIT * 2.0 ** min(self.deaths - 2, 30), LONGEST_WAIT)
        self.due = time.monotonic() + wait
        return wait


class Supervisor:
    """Starts workers, restarts those that die, and stops them in the end.

    Args:
        commands: One command for each process.
        start: Starts a process by its command.
        log_dir: Where each writes its log, ``<number>.log``.
        environments: Environment of each, added to this process's.
        on_death: Told at once of a process that died without having put its things in order.
    """

    def __init__(
        self,
        commands: Sequence[Sequence[str]],
        start: Start,
        log_dir: Path,
        environments: Sequence[dict[str, str]] | None = None,
        on_death: OnDeath = lambda dead, cause: None,
    ) -> None:
        log_dir.mkdir(parents=True, exist_ok=True)
        environments = environments or [{}] * len(commands)
        self._on_death = on_death
        self._children = [
            _Child(list(command), log_dir / f"{number}.log", os.environ | extra, start)
            for number, (command, extra) in enumerate(zip(commands, environments, strict=True))
        ]

    def start(self) -> None:
        """Start all processes, also those that have come to their end."""
        for child in self._children:
            if child.process is None or child.process.poll() is not None:
                child.finished, child.deaths, child.failures = False, 0, 0
                child.start()

    def poll(self) -> bool:
        """Look after the processes: restart what died. Never waits.

        However often a worker is killed, it is started again. One that fails by its own fault
        again and again is left alone while others go on.

        Returns:
            Whether any is running or will be started again; False before the start.

        Raises:
            WorkersFailed: If one ends with wrong usage or because no evaluation can succeed, or
                if all that are left fail by their own fault again and again.
        """
        for child in self._children:
            if child.finished or child.process is None:
                continue
            if child.due is None and (code := child.process.poll()) is not None:
                self._look_after(child, code)
            if child.due is not None and time.monotonic() >= child.due:
                child.start()
        left = [c for c in self._children if c.process is not None and not c.finished]
        if left and all(child.hopeless for child in left):
            self._give_up(left[0])
        return bool(left)

    def _look_after(self, child: _Child, code: int) -> None:
        """Settle what becomes of a process that has ended."""
        if code == 0:
            child.finished = True
            for other in self._children:
                # What all of them are there for is done.
                if other.command == child.command and other.due is not None:
                    other.finished, other.due = True, None
            return
        self._tell_of_death(child, code)
        if code in (USAGE, BROKEN):
            self._give_up(child)
        if any(other.finished and other.command == child.command for other in self._children):
            child.finished = True
            return
        wait = child.plan_restart(code)
        if child.hopeless:
            logger.error(
                "%s, as %d times before; it is left alone (log: %s)",
                _cause(code),
                child.failures - 1,
                child.log,
            )
        elif wait:
            logger.warning(
                "%s, %d times in a row soon after its start; it is started again in %.0f s "
                "(log: %s)",
                _cause(code),
                child.deaths,
                wait,
                child.log,
            )

    def _give_up(self, child: _Child) -> NoReturn:
        child.finished = True
        self.stop()
        assert child.process is not None
        assert child.process.returncode is not None
        code = child.process.returncode
        raise WorkersFailed(f"{_cause(code)}; its log {child.log} ends with\n" + _tail(child.log))

    def stop(self, longest_wait: float = 60.0) -> None:
        """Ask all processes to release what they hold and to end; end those that do not."""
        alive = [
            child.process
            for child in self._children
            if child.process is not None and child.process.poll() is None
        ]
        for process in alive:
            process.terminate()
        deadline = time.monotonic() + longest_wait
        for process in alive:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for child in self._children:
            if child.process is not None and child.process.returncode is not None:
                self._tell_of_death(child, child.process.returncode)

    def _tell_of_death(self, child: _Child, code: int) -> None:
        # A worker that came to an end by itself has released what it held.
        if not child.mourned and code not in (0, USAGE, BROKEN, INTERRUPTED):
            child.mourned = True
            self._on_death(child.identity, _cause(code))


def _is_own_fault(code: int) -> bool:
    """Whether a process ended by itself, and not because it was told to or killed."""
    if code < 0:
        return any(-code == getattr(signal, name, None) for name in _FAULTS)
    return code != INTERRUPTED


def _cause(code: int) -> str:
    """How a process died, in words."""
    if code >= 0:
        return f"the worker ended with code {code}"
    try:
        return f"the worker was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"the worker was ended by signal {-code}"


def _tail(log: Path, lines: int = 12) -> str:
    return "\n".join("  " + line for line in log.read_text(errors="replace").splitlines()[-lines:])
