"""Has tasks done by local workers, and waits for them with a progress bar."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Self

from optuna.study import Study
from rich.console import Console
from rich.progress import Progress

from optuna_taylorglo.cli.supervisor import Supervisor
from optuna_taylorglo.errors import StopRequested
from optuna_taylorglo.verdict.task_queue import TaskQueue
from optuna_taylorglo.verdict.tasks import Task

SHORTEST_WAIT = 0.1
LONGEST_WAIT = 0.7
"""Seconds between two looks at the tasks under way."""


class LocalTrainings:
    """A callable that has tasks done; workers are started when there is something to do.

    Args:
        companion: The study that holds the tasks.
        supervisor: Workers on that study.
        stop: Ends the wait with `StopRequested` when set.
        console: Where progress is shown.
    """

    def __init__(
        self, companion: Study, supervisor: Supervisor, stop: threading.Event, console: Console
    ) -> None:
        self.companion = companion
        self._queue = TaskQueue(companion)
        self._supervisor = supervisor
        self._stop = stop
        self._bar = Progress(console=console, disable=not console.is_terminal)
        # One line for all calls: some stages make many, of few tasks each.
        self._line = self._bar.add_task("trainings", total=0)
        self._asked_for = 0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()
        self._supervisor.stop()

    def __call__(self, tasks: Sequence[Task]) -> list[float | None]:
        """Do tasks that are not done yet.

        Returns:
            Their values in order, None for a training that diverged.

        Raises:
            StopRequested: If told to stop.
            UsageError: If a training ended with wrong usage.
            TrainingFailed: If one ended with another exception, again and again.
        """
        self._queue.enqueue(tasks)
        before = self._asked_for
        self._asked_for += len(tasks)
        self._bar.update(self._line, total=self._asked_for)
        wait = SHORTEST_WAIT
        while (values := self._queue.results(tasks)) is None:
            if not self._bar.disable:
                self._bar.update(self._line, completed=before + self._queue.count_done(tasks))
            if not self._supervisor.poll():
                self._supervisor.start()
            if self._stop.wait(wait):
                raise StopRequested
            # Each look reads the database on a core that the workers need.
            wait = min(1.1 * wait, LONGEST_WAIT)
        self._bar.update(self._line, completed=self._asked_for)
        return values
