"""Trainings by local workers, with a progress bar."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

from optuna.study import Study

from optuna_taylorglo.cli.progress import LiveProgress
from optuna_taylorglo.errors import StopRequested
from optuna_taylorglo.local import LocalProcesses
from optuna_taylorglo.sanitize import visible
from optuna_taylorglo.verdict.runner import TaskQueue
from optuna_taylorglo.verdict.tasks import Task, stage_in_hand, stage_of

SHORTEST_WAIT, LONGEST_WAIT = 0.1, 0.7
"""Seconds between two polls of the tasks under way."""


class LocalTrainings:
    """A callable that has tasks done; workers are started when there is something to do.

    Args:
        evaluation_study: The study that holds the tasks.
        processes: Workers on that study.
        stop: Ends the wait with `StopRequested` when set.
        live: Where progress is shown.
    """

    def __init__(
        self,
        evaluation_study: Study,
        processes: LocalProcesses,
        stop: threading.Event,
        live: LiveProgress,
    ) -> None:
        self.evaluation_study = evaluation_study
        self._queue = TaskQueue(evaluation_study)
        self._processes = processes
        self._stop = stop
        self._live = live
        # Some stages make many calls, of few tasks each.
        self._done_before: Counter[str] = Counter()

    def __call__(self, tasks: Sequence[Task]) -> list[float | None]:
        """Values of tasks in order, None for a training that diverged; trained if need be.

        Raises:
            StopRequested: If told to stop.
            UsageError: If a training ended with wrong usage.
            TrainingFailed: If one ended with another exception, again and again.
        """
        self._queue.enqueue(tasks)
        wait = SHORTEST_WAIT
        while (values := self._queue.results(tasks)) is None:
            stage, done, total = stage_in_hand(tasks, self._queue.which_done(tasks))
            before = self._done_before[stage]
            self._live.show_round(visible(stage), before + done, before + total)
            if not self._processes.poll():
                self._processes.start()
            if self._stop.wait(wait):
                raise StopRequested
            # Each poll reads the database on a core that the workers need.
            wait = min(1.1 * wait, LONGEST_WAIT)
        self._done_before.update(stage_of(task) for task in tasks)
        return values
