"""Processes that begin with everything imported.

To import PyTorch and Lightning takes several seconds of a core. One process does so once, and
workers are forked from it within milliseconds: the fork server of `multiprocessing`, which has no
threads and has computed nothing when it forks. So a search begins sooner, a worker that was killed
is replaced at once, and workers share the memory of what they imported.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from pathlib import Path

from optuna_taylorglo.cli.supervisor import Process, start_command

_IMPORTED = [
    "optuna_taylorglo.cli.main",
    "optuna_taylorglo.report.dashboard",
    "optuna_taylorglo.search.objective",
    "optuna_taylorglo.search.scheduler",
    "optuna_taylorglo.verdict.choosing",
    "optuna_taylorglo.verdict.task_runner",
    "optuna_taylorglo.worker",
    "lightning_modules.data",
    "lightning_modules.nets",
]


def prepare() -> None:
    """Begin to import, beside whatever this process does next."""
    if _can_fork():
        multiprocessing.set_forkserver_preload(_IMPORTED)
        forkserver.ensure_running()


def start_warm(words: Sequence[str], log: Path, environment: Mapping[str, str]) -> Process:
    """Start the ``main`` of a module with arguments.

    Args:
        words: The module's name and the arguments.
        log: File that its output is added to.
        environment: Its environment.
    """
    if not _can_fork():
        return start_command([sys.executable, "-m", *words], log, environment)
    prepare()
    return _WarmProcess(words, log, environment)


def _can_fork() -> bool:
    return "forkserver" in multiprocessing.get_all_start_methods()


class _WarmProcess:
    """A process of `multiprocessing`, handled like one of `subprocess`."""

    def __init__(self, words: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        context = multiprocessing.get_context("forkserver")
        arguments = (list(words), str(log.absolute()), dict(environment))
        self._process = context.Process(target=_become, args=arguments)
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0.0)
        return self._process.exitcode

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()


def _become(words: list[str], log: str, environment: dict[str, str]) -> None:
    """Be the process that was asked for, as if it had been started by a command."""
    # A Ctrl-C in the terminal is for the supervisor, which tells the workers.
    os.setsid()
    with open(log, "ab") as file, open(os.devnull, "rb") as nothing:
        for descriptor, to in ((0, nothing), (1, file), (2, file)):
            os.dup2(to.fileno(), descriptor)
    os.environ.clear()
    os.environ.update(environment)
    sys.path.insert(0, os.getcwd())  # as python -m does
    module, *sys.argv[1:] = words
    sys.exit(importlib.import_module(module).main(words[1:]))
