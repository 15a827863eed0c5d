"""Keeps a number of worker processes alive on this machine until the search is over."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from optuna_taylorglo.cli.process import BROKEN, INTERRUPTED, USAGE
from optuna_taylorglo.errors import WorkersFailed
from optuna_taylorglo.queue.identity import TOKEN_VARIABLE, WorkerIdentity, new_token

OnDeath = Callable[[WorkerIdentity, str], object]
"""Told who died, and how."""

MAX_RESTARTS = 5
"""How often one worker is started again after it died."""


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


def start_command(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> Process:
    """Start a command in a session of its own."""
    with log.open("ab") as file:
        return subprocess.Popen(
            command,
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment,
            # A Ctrl-C in the terminal is for the supervisor, which tells the workers.
            start_new_session=True,
        )


@dataclass
class _Child:
    command: list[str]
    log: Path
    environment: dict[str, str]
    start_process: Start
    process: Process | None = None
    token: str = ""
    restarts: int = 0
    finished: bool = False
    mourned: bool = False

    @property
    def identity(self) -> WorkerIdentity:
        assert self.process is not None
        return WorkerIdentity(socket.gethostname(), self.process.pid, self.token)

    def start(self) -> None:
        self.token, self.mourned = new_token(), False
        environment = self.environment | {TOKEN_VARIABLE: self.token}
        self.process = self.start_process(self.command, self.log, environment)


class Supervisor:
    """Starts workers, restarts those that die, and stops them in the end.

    Args:
        commands: One command for each process.
        log_dir: Where each writes its log, ``<number>.log``.
        environments: Environment of each, added to this process's.
        on_death: Told at once of a process that died without having put its things in order.
        start: Starts a process by its command.
    """

    def __init__(
        self,
        commands: Sequence[Sequence[str]],
        log_dir: Path,
        environments: Sequence[dict[str, str]] | None = None,
        on_death: OnDeath = lambda dead, cause: None,
        start: Start = start_command,
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
                child.finished = False
                child.start()

    def poll(self) -> bool:
        """Look after the processes: restart what died.

        Returns:
            Whether any is still running; False before the start.

        Raises:
            WorkersFailed: If one ends with wrong usage, or none is left and one has failed.
        """
        for child in self._children:
            code = None if child.process is None else child.process.poll()
            if child.finished or code is None:
                continue
            if code == 0:
                child.finished = True
                continue
            self._tell_of_death(child, code)
            if code in (USAGE, BROKEN) or child.restarts >= MAX_RESTARTS:
                child.finished = True
                self.stop()
                raise WorkersFailed(
                    f"a worker ended with code {code}; its log {child.log} ends with\n"
                    + _tail(child.log)
                )
            child.restarts += 1
            child.start()
        return any(c.process is not None and not c.finished for c in self._children)

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
