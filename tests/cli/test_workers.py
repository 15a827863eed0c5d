"""Workers on this machine: how many, on which GPU each, and what they are told."""

from __future__ import annotations

import io
import threading
from unittest.mock import Mock

import joblib
import optuna
import pytest
import torch
from rich.console import Console

from optuna_taylorglo import cli
from optuna_taylorglo.progress import LiveProgress
from optuna_taylorglo.session import _environments, _LocalTrainings
from optuna_taylorglo.verdict.runner import TaskQueue
from optuna_taylorglo.verdict.tasks import Task, cross_entropy


def gpus_of(*words):
    """The GPUs that each worker sees, None for all or none."""
    arguments = cli.build_parser().parse_args(["run", "r.yaml", *words])
    found = _environments(arguments.workers, arguments.device)
    return [environment.get("CUDA_VISIBLE_DEVICES") for environment in found]


def test_workers_take_turns_on_the_gpus_that_we_may_use(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpus_of() == gpus_of("--device", "cuda") == ["0", "1"]
    assert gpus_of("--workers", "1") == ["0"]
    assert gpus_of("--workers", "5") == ["0", "1", "0", "1", "0"]
    assert gpus_of("--device", "cpu", "--workers", "2") == [None, None]
    assert gpus_of("--device", "cuda:1", "--workers", "2") == [None, None]
    for device in ("cuda:1", "mps"):
        assert gpus_of("--device", device) == [None], "one worker for a device that was named"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-7f")
    assert gpus_of("--workers", "3") == ["4", "GPU-7f", "4"]


def test_without_gpus_there_is_a_worker_per_core_that_we_may_use(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(joblib, "cpu_count", lambda: 3)
    assert gpus_of() == [None] * 3
    assert gpus_of("--workers", "2") == [None] * 2


def tasks(name, label, seeds, *, on_test_set=False):
    loss = cross_entropy(name, label)
    return [Task(loss, seed, 10, "steps", on_test_set) for seed in seeds]


@pytest.mark.parametrize("terminal", [True, False])
def test_stages_are_named_and_counted_over_several_calls(terminal):
    evaluation_study = optuna.create_study(direction="maximize")
    output = io.StringIO()
    queue, shown = TaskQueue(evaluation_study), []

    def do_one_task():
        (line,) = live.tasks
        shown.append(f"{line.description} {line.completed}/{line.total}")
        queue.finish(queue.claim(), 0.5)
        return True

    with LiveProgress(Console(file=output, force_terminal=terminal, width=80)) as live:
        workers = Mock(poll=do_one_task)
        train = _LocalTrainings(evaluation_study, workers, threading.Event(), live)
        train(tasks("label-smoothing", "a", range(2)))
        train(tasks("label-smoothing", "b", range(2, 3)))
        ends = tasks("ce", "cross-entropy", range(2), on_test_set=True)
        train([*ends, *tasks("winner", "evolved loss", range(5, 6), on_test_set=True)])
        assert train(ends) == [0.5, 0.5]
    assert shown == [
        *("tuning label smoothing 0/2", "tuning label smoothing 1/2", "tuning label smoothing 2/3"),
        *("testing cross-entropy 0/2", "testing cross-entropy 1/2", "testing evolved loss 0/1"),
    ]
    if not terminal:
        assert output.getvalue().splitlines() == [
            "tuning label smoothing: 2 trainings",
            "testing cross-entropy: 2 trainings",
            "testing evolved loss: 1 training",
        ]
