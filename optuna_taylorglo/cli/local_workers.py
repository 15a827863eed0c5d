"""Worker processes on this machine, as several verbs start them."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from optuna_taylorglo.cli import forked
from optuna_taylorglo.cli.foreign_text import as_file_name
from optuna_taylorglo.cli.options import (
    MOST_PROCESSES,
    OpenedStudy,
    machine_of,
    machine_words,
    up_to,
)
from optuna_taylorglo.cli.preflight import rehearse
from optuna_taylorglo.cli.supervisor import Supervisor
from optuna_taylorglo.errors import StudyError
from optuna_taylorglo.queue.identity import WorkerIdentity
from optuna_taylorglo.queue.lost_workers import give_up_trials_of
from optuna_taylorglo.storage.open_study import companion_name, create_companion, open_study
from optuna_taylorglo.storage.retry import without_retry

if TYPE_CHECKING:
    from optuna_taylorglo.cli.local_trainings import LocalTrainings

LOG_DIR = Path("taylorglo-logs")

logger = logging.getLogger(__name__)


def log_dir(study_name: str) -> Path:
    """Where the processes that work on a study write their logs, whatever its name."""
    return LOG_DIR / as_file_name(study_name)


def add_workers_option(parser: argparse.ArgumentParser) -> None:
    """The option that says how many."""
    parser.add_argument(
        "--workers", type=up_to(MOST_PROCESSES), help="processes; default: one per core or GPU"
    )


def supervise(
    study_name: str,
    url: str,
    arguments: argparse.Namespace,
    others: Sequence[Sequence[str]] = (),
) -> tuple[Supervisor, int]:
    """Workers on a study, not started yet.

    Args:
        study_name: The study.
        url: Its storage.
        arguments: With the machine's options and the number of workers.
        others: Modules and arguments of further processes, such as a baseline.

    Returns:
        Their supervisor, and how many workers it has.
    """
    machine = machine_words(arguments)
    environments = _environments(arguments.workers, arguments.device)
    worker = ["optuna_taylorglo.worker", "--study-name", study_name, "--no-check", *machine]
    words = [*others, *([worker] * len(environments))]
    # The URL goes by the environment: a command line, with the password in it, is for all to see.
    storage = {"OPTUNA_STORAGE": url}

    supervisor = Supervisor(
        words,
        forked.start,
        log_dir(study_name),
        [extra | storage for extra in (*([{}] * len(others)), *environments)],
        lambda dead, cause: _give_back(study_name, url, dead, cause),
    )
    return supervisor, len(environments)


@contextlib.contextmanager
def trained_by_workers(
    opened: OpenedStudy, arguments: argparse.Namespace, stop: threading.Event, console: Console
) -> Iterator[LocalTrainings]:
    """What has a study's tasks done by local workers, while the body runs."""
    from optuna_taylorglo.cli.local_trainings import LocalTrainings

    forked.prepare()
    rehearse(opened.recipe, machine_of(arguments))
    companion = create_companion(opened.study, opened.url)
    supervisor, _ = supervise(companion.study_name, opened.url, arguments)
    with LocalTrainings(companion, supervisor, stop, console) as train:
        yield train


def _give_back(study_name: str, url: str, dead: WorkerIdentity, cause: str) -> None:
    """Let others go on at once with what a dead worker held, in the study or beside it."""
    for name in (study_name, companion_name(study_name)):
        try:
            with without_retry():
                study = open_study(name, url, patience=0.0)
        except StudyError:
            continue
        except Exception as error:
            # Whoever looks after workers must not end with the database, nor wait for it.
            logger.warning(
                "what worker %s held is given back after the grace period: %s", dead, error
            )
            return
        give_up_trials_of(study, dead, cause)


def _environments(workers: int | None, device: str) -> list[dict[str, str]]:
    """One environment per worker: each sees one GPU, or shares the CPU."""
    import torch

    gpus = torch.cuda.device_count() if device in ("auto", "cuda") else 0
    if gpus == 0:
        # One device that was named, such as cuda:1, is for one worker unless somebody says so.
        return [{}] * (workers or (_cores() if device in ("auto", "cpu") else 1))
    count = workers or gpus
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(i) for i in range(gpus)]
    return [{"CUDA_VISIBLE_DEVICES": names[i % len(names)]} for i in range(count)]


def _cores() -> int:
    """Cores that this process may use; not every system can say."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
