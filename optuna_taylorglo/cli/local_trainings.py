"""Trainings by local workers, with a progress bar."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Self

from optuna.study import Study
from rich.console import Console

from optuna_taylorglo.cli.progress import live_bar
from optuna_taylorglo.errors import StopRequested
from optuna_taylorglo.local import LocalProcesses
from optuna_taylorglo.sanitize import visible
from optuna_taylorglo.verdict.task_queue import TaskQueue
from optuna_taylorglo.verdict.task_stages import stage_in_hand, stage_of
from optuna_taylorglo.verdict.tasks import Task

SHORTEST_WAIT = 0.1
LONGEST_WAIT = 0.7
"""Seconds between two looks at the tasks under way."""


class LocalTrainings:
    """A callable that has tasks done; workers are started when there is something to do.

    Args:
        companion: The study that holds the tasks.
        processes: Workers on that study.
        stop: Ends the wait with `StopRequested` when set.
        console: Where progress is shown.
    """

    def __init__(
        self, companion: Study, processes: LocalProcesses, stop: threading.Event, console: Console
    ) -> None:
        self.companion = companion
        self._queue = TaskQueue(companion)
        self._processes = processes
        self._stop = stop
        self._console = console
        self._bar, self._line = live_bar(console)
        # Some stages make many calls, of few tasks each.
        self._done_before: Counter[str] = Counter()
        self._told: set[str] = set()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._bar.stop()
        finally:  # a terminal that was closed takes no last words
            self._processes.stop()

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
        wait = SHORTEST_WAIT
        while (values := self._queue.results(tasks)) is None:
            self._show(tasks)
            if not self._processes.poll():
                self._processes.start()
            if self._stop.wait(wait):
                raise StopRequested
            # Each look reads the database on a core that the workers need.
            wait = min(1.1 * wait, LONGEST_WAIT)
        self._done_before.update(stage_of(task) for task in tasks)
        return values

    def _show(self, tasks: Sequence[Task]) -> None:
        stage, done, total = stage_in_hand(tasks, self._queue.which_done(tasks))
        before = self._done_before[stage]
        self._bar.update(
            self._line,
            total=before + total,
            completed=before + done,
            stage=visible(stage),
            count=f"{before + done}/{before + total}",
            text="trainings",
        )
        if not self._console.is_terminal and stage not in self._told:
            self._told.add(stage)
            self._console.print(stage, highlight=False, soft_wrap=True)
