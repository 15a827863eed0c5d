"""Worker processes on this machine, as several commands start them."""

from __future__ import annotations

import argparse
import contextlib
import os
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING

from optuna.study import Study
from rich.console import Console

from optuna_taylorglo.cli import options
from optuna_taylorglo.cli.progress import LiveProgress
from optuna_taylorglo.errors import StopRequested
from optuna_taylorglo.local import Job, LocalProcesses, prepare
from optuna_taylorglo.study.open import create_evaluation_study
from optuna_taylorglo.text import as_file_name, visible

if TYPE_CHECKING:
    from optuna_taylorglo.verdict.runner import TaskQueue
    from optuna_taylorglo.verdict.tasks import Task


def log_dir(study_name: str) -> Path:
    return Path("taylorglo-logs") / as_file_name(study_name)


def add_workers_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--workers",
        type=options.up_to(options.MOST_PROCESSES),
        help="processes; default: one per core or GPU",
    )


def local_workers(
    study_name: str, url: str, arguments: argparse.Namespace, others: Sequence[Job] = ()
) -> tuple[LocalProcesses, int]:
    """Workers on a study and other processes, not started yet; and how many workers there are."""
    from optuna_taylorglo.worker import WorkerConfig, run

    config = WorkerConfig(study_name, url, options.RuntimeOptions.of(arguments), check=False)
    environments = _environments(arguments.workers, arguments.device)
    workers = [Job(run, (config,), environment) for environment in environments]
    return LocalProcesses([*others, *workers], log_dir(study_name)), len(workers)


def _environments(workers: int | None, device: str) -> list[dict[str, str]]:
    """One environment per worker: each sees one GPU, or shares the CPU."""
    import joblib  # type: ignore[import-untyped]
    import torch

    gpus = torch.cuda.device_count() if device in ("auto", "cuda") else 0
    if gpus == 0:
        # Cores that this process may use; a device that was named, such as cuda:1, has one worker.
        return [{}] * (workers or (joblib.cpu_count() if device in ("auto", "cpu") else 1))
    visible_gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible_gpus.split(",") if visible_gpus else [str(i) for i in range(gpus)]
    return [{"CUDA_VISIBLE_DEVICES": names[i % len(names)]} for i in range(workers or gpus)]


@contextlib.contextmanager
def trained_by_workers(
    opened: options.OpenedStudy,
    arguments: argparse.Namespace,
    stop: threading.Event,
    console: Console,
) -> Iterator[LocalTrainings]:
    """Trainings by local workers, while the body runs."""
    prepare()
    options.dry_run(opened.recipe, options.machine_of(arguments))
    from optuna_taylorglo.verdict.runner import TaskQueue

    evaluation_study = create_evaluation_study(opened.study, opened.url)
    processes, _ = local_workers(evaluation_study.study_name, opened.url, arguments)
    try:
        with LiveProgress(console) as live:
            queue = TaskQueue(evaluation_study)
            yield LocalTrainings(evaluation_study, queue, processes, stop, live)
    finally:  # even if a closed terminal takes no output
        processes.stop()


@dataclass
class LocalTrainings:
    """A callable that trains tasks; workers are started when there is something to do."""

    evaluation_study: Study
    queue: TaskQueue
    processes: LocalProcesses
    stop: threading.Event
    live: LiveProgress
    _done_before: Counter[str] = field(default_factory=Counter)  # by earlier calls, by stage

    def __call__(self, tasks: Sequence[Task]) -> list[float | None]:
        """Values of tasks in order, None for a training that diverged; trained if need be."""
        self.queue.enqueue(tasks)
        stages, wait = [task.stage for task in tasks], 0.1
        while (values := self.queue.results(tasks)) is None:
            done = Counter(compress(stages, self.queue.which_done(tasks)))
            stage = next((each for each in stages if done[each] < stages.count(each)), stages[-1])
            before, total = self._done_before[stage], stages.count(stage)
            self.live.show_round(visible(stage), before + done[stage], before + total)
            if not self.processes.poll():
                self.processes.start()
            if self.stop.wait(wait):
                raise StopRequested
            # Each poll reads the database on a core that the workers need.
            wait = min(1.1 * wait, 0.7)
        self._done_before.update(stages)
        return values
