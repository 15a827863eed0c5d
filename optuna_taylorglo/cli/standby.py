"""Processes that have imported everything before they are needed.

To import PyTorch and Lightning takes seconds of a core. A process on standby has done so and
waits for the words that say what to do. So workers import while the command that starts them
rehearses, and the place of one that was killed is taken at once.

    python -m optuna_taylorglo.cli.standby optuna_taylorglo.worker
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from optuna_taylorglo.cli import lifeline

WORKER = "optuna_taylorglo.worker"

_IMPORTED = (
    "lightning_modules.data",
    "lightning_modules.nets",
    "optuna_taylorglo.report.dashboard",
    "optuna_taylorglo.search.objective",
    "optuna_taylorglo.search.scheduler",
    "optuna_taylorglo.verdict.choosing",
    "optuna_taylorglo.verdict.task_runner",
)


SPARE_AFTER = 60.0
"""Seconds after the first worker's start until one more is put on standby. Where a search takes
longer than that, to be able to replace a worker at once is worth the memory."""


class StandbyWorkers:
    """Starts workers, from those on standby as long as there are any; leave it by its context."""

    def __init__(self) -> None:
        self._waiting: list[subprocess.Popen[bytes]] = []
        self._lock = threading.RLock()
        self._spare = threading.Timer(SPARE_AFTER, self.prepare, [1])
        self._spare.daemon = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """End those that are on standby."""
        self._spare.cancel()
        with self._lock:
            for process in self._waiting:
                process.kill()
                process.communicate()
            self._waiting = []

    def prepare(self, count: int) -> None:
        """See to it that so many are on standby."""
        with self._lock:
            self._waiting = [process for process in self._waiting if process.poll() is None]
            while len(self._waiting) < count:
                self._waiting.append(_start_waiting())

    def start(
        self, words: Sequence[str], log: Path, environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """Start a worker.

        Args:
            words: Its arguments.
            log: File that its output is added to.
            environment: Its environment.
        """
        with self._lock:
            self.prepare(1)
            process = self._waiting.pop(0)
            if not self._spare.is_alive() and not self._spare.finished.is_set():
                self._spare.start()
        task = {"words": list(words), "log": str(log.absolute()), "environment": dict(environment)}
        assert process.stdin is not None
        with process.stdin as channel:
            channel.write(json.dumps(task).encode())
        return process


def _start_waiting() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", __name__, WORKER],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # A Ctrl-C in the terminal is for the supervisor, which tells the workers.
        start_new_session=True,
        pass_fds=lifeline.descriptors(),
    )


def main(module: str) -> int:
    """Import, wait for what to do, and do it as if started by a command.

    Args:
        module: Whose ``main`` is to be called.
    """
    for name in (module, *_IMPORTED):
        importlib.import_module(name)
    text = sys.stdin.buffer.read()
    if not text:
        return 0  # who might have needed this process is gone
    task = json.loads(text)
    with open(task["log"], "ab") as log, open(os.devnull, "rb") as nothing:
        for descriptor, to in ((0, nothing), (1, log), (2, log)):
            os.dup2(to.fileno(), descriptor)
    os.environ.clear()
    os.environ.update(task["environment"])
    code: int = importlib.import_module(module).main(task["words"])
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
