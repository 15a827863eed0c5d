"""Commands in processes of their own that need not import PyTorch and Lightning once more.

A real start imports for 2 to 10 seconds. Here the fork server of `multiprocessing` is itself a fork
of the process that runs the tests, made before the first test and asleep until it is needed; so is
the fork server that a command starts for its workers. What only a real start can prove uses
`subprocess`.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import logging
import multiprocessing
import os
import select
import signal
import sys
import threading
import traceback
import uuid
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver, util
from pathlib import Path

from optuna_taylorglo import local

_real_spawn = util.spawnv_passfds  # type: ignore[attr-defined]


def start_fork_server() -> None:
    """Make a fork of this process its fork server, which imports the rest when it is needed.

    To be called before any database is open: SQLite's locks do not survive a fork.
    """
    util.spawnv_passfds = _fork_in_place_of_spawn  # type: ignore[attr-defined]
    try:
        local.prepare()
    finally:
        util.spawnv_passfds = _real_spawn  # type: ignore[attr-defined]


def _fork_in_place_of_spawn(path: str, args: Sequence[str], passfds: Sequence[int]) -> int:
    if "forkserver" not in args[-1]:
        return _real_spawn(path, args, passfds)
    if pid := os.fork():
        return pid
    try:
        util.spawnv_passfds = _real_spawn  # type: ignore[attr-defined]
        forkserver._forkserver._lock = threading.Lock()  # type: ignore[attr-defined]
        gc.freeze()  # files of the other process are never closed again in this one
        for fd in {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2, *passfds}:
            with contextlib.suppress(OSError):
                os.close(fd)
        _reset_streams_and_signals()
        select.select(passfds, [], [])
        exec(args[-1], {})
    except SystemExit:
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def _reset_streams_and_signals() -> None:
    sys.stdin, sys.stdout = open(os.devnull), os.fdopen(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    logging.root.handlers.clear()
    for handler in logging.getLogger("optuna").handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.stream = sys.stderr
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


class Command:
    """The `main` of a module in a process as `subprocess.Popen` has it, output captured."""

    def __init__(
        self, module: str, words: Sequence[str], cwd: Path, environment: Mapping[str, str]
    ) -> None:
        self._output = cwd / f".output-{uuid.uuid4().hex}"
        self._process = multiprocessing.get_context("forkserver").Process(
            target=_run, args=(module, words, cwd, dict(environment), self._output)
        )
        self._process.start()
        atexit.register(self._process.kill)
        assert self._process.pid is not None
        self.pid = self._process.pid
        self.kill, self.terminate = self._process.kill, self._process.terminate

    def poll(self) -> int | None:
        return self._process.exitcode

    returncode = property(poll)

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def communicate(self) -> tuple[str, None]:
        """Wait for the end, and return all that was said."""
        self._process.join()
        return self._output.read_text() if self._output.exists() else "", None


def _run(
    module: str, words: Sequence[str], cwd: Path, environment: Mapping[str, str], output: Path
) -> None:
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    said = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for descriptor in (1, 2):
        os.dup2(said, descriptor)
    _reset_streams_and_signals()
    start_fork_server()
    sys.argv = [module, *words]
    sys.exit(importlib.import_module(module).main(list(words)))
