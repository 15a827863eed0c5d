"""Worker processes on this machine, as several commands start them."""

from __future__ import annotations

import argparse
import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from optuna_taylorglo.cli import options
from optuna_taylorglo.cli.preflight import dry_run
from optuna_taylorglo.cli.progress import LiveProgress
from optuna_taylorglo.local import Job, LocalProcesses, prepare
from optuna_taylorglo.sanitize import as_file_name
from optuna_taylorglo.study.open import create_evaluation_study

if TYPE_CHECKING:
    from optuna_taylorglo.cli.local_trainings import LocalTrainings

LOG_DIR = Path("taylorglo-logs")


def log_dir(study_name: str) -> Path:
    """Where the processes that work on a study write their logs, whatever its name."""
    return LOG_DIR / as_file_name(study_name)


def add_workers_option(parser: argparse.ArgumentParser) -> None:
    """The option that says how many."""
    parser.add_argument(
        "--workers",
        type=options.up_to(options.MOST_PROCESSES),
        help="processes; default: one per core or GPU",
    )


def local_workers(
    study_name: str, url: str, arguments: argparse.Namespace, others: Sequence[Job] = ()
) -> tuple[LocalProcesses, int]:
    """Workers on a study and other processes, not started yet; and how many workers there are."""
    from optuna_taylorglo.worker import WorkerConfig, build_parser, run

    config = build_parser().parse_args([f"--study-name={study_name}", "--no-check"], WorkerConfig())
    config.storage, config.runtime = url, options.RuntimeOptions.of(arguments)
    environments = _environments(arguments.workers, arguments.device)
    workers = [Job(run, (config,), environment) for environment in environments]
    return LocalProcesses([*others, *workers], log_dir(study_name)), len(workers)


@contextlib.contextmanager
def trained_by_workers(
    opened: options.OpenedStudy,
    arguments: argparse.Namespace,
    stop: threading.Event,
    console: Console,
) -> Iterator[LocalTrainings]:
    """Trainings by local workers, while the body runs."""
    from optuna_taylorglo.cli.local_trainings import LocalTrainings

    prepare()
    dry_run(opened.recipe, options.machine_of(arguments))
    evaluation_study = create_evaluation_study(opened.study, opened.url)
    processes, _ = local_workers(evaluation_study.study_name, opened.url, arguments)
    try:
        with LiveProgress(console) as live:
            yield LocalTrainings(evaluation_study, processes, stop, live)
    finally:  # even if a terminal that was closed takes no last words
        processes.stop()


def _environments(workers: int | None, device: str) -> list[dict[str, str]]:
    """One environment per worker: each sees one GPU, or shares the CPU."""
    import torch

    gpus = torch.cuda.device_count() if device in ("auto", "cuda") else 0
    if gpus == 0:
        # One device that was named, such as cuda:1, is for one worker unless told otherwise.
        return [{}] * (workers or (_cores() if device in ("auto", "cpu") else 1))
    visible_gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible_gpus.split(",") if visible_gpus else [str(i) for i in range(gpus)]
    return [{"CUDA_VISIBLE_DEVICES": names[i % len(names)]} for i in range(workers or gpus)]


def _cores() -> int:
    """Cores that this process may use; not every system can say."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
