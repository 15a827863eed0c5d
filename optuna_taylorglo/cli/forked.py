"""Processes that begin at once, as copies of one that has imported everything.

To import PyTorch and Lightning takes ten seconds of a core. The fork server of `multiprocessing`
does so once, while the command that will need workers still rehearses. Its copies share its memory,
and the place of one that was killed is taken at once. Where copies are not safe, each process
imports for itself.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

_CAN_FORK = sys.platform == "linux"  # on macOS, system libraries do not survive a fork

_SERVER = "optuna_taylorglo.cli.fork_server"


class ForkedProcess:
    """A process of `multiprocessing`, to be asked as one of `subprocess`."""

    def __init__(self, process: BaseProcess) -> None:
        self._process = process
        assert process.pid is not None
        self.pid = process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0.0)
        return code

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()


def prepare() -> None:
    """Have everything imported in the background, for processes that will be started."""
    if _CAN_FORK:
        from multiprocessing import forkserver

        forkserver.set_forkserver_preload([_SERVER])
        forkserver.ensure_running()


def start(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> ForkedProcess:
    """Start a process in a session of its own; it ends with this one, however this one ends.

    Args:
        command: A module, whose ``main`` is called, and its arguments.
        log: File that its output is added to.
        environment: Its environment.
    """
    prepare()
    module, *words = command
    arguments = (module, words, str(log.absolute()), dict(environment))
    process: BaseProcess = (
        multiprocessing.get_context("forkserver").Process(target=_run, args=arguments)
        if _CAN_FORK
        else multiprocessing.get_context("spawn").Process(target=_run, args=arguments)
    )
    process.start()
    return ForkedProcess(process)


def stay_nice() -> None:
    """Give the session of this process its niceness, so that ``nice taylorglo run`` stays nice.

    Linux shares the cores among sessions first, and niceness counts within each of them only.
    """
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    if niceness > 0:
        with contextlib.suppress(OSError):  # a system that knows no such groups
            Path("/proc/self/autogroup").write_text(str(niceness))


def _run(module: str, words: Sequence[str], log: str, environment: Mapping[str, str]) -> None:
    """Become what a command would have started."""
    if hasattr(os, "setsid"):
        os.setsid()  # a Ctrl-C in the terminal is for the command, which tells its processes
        stay_nice()
    with open(log, "ab") as output, open(os.devnull, "rb") as nothing:
        for descriptor, to in ((0, nothing), (1, output), (2, output)):
            os.dup2(to.fileno(), descriptor)
    os.environ.clear()
    os.environ.update(environment)
    if _SERVER in sys.modules:
        sys.modules[_SERVER].hear_signals_again()
    sys.exit(importlib.import_module(module).main(words))
