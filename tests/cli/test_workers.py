"""Workers on this machine: how many, on which GPU each, and what they are told."""

from __future__ import annotations

import pickle

import joblib
import pytest
import torch

from optuna_taylorglo import cli
from optuna_taylorglo.cli.workers import _environments, local_workers
from optuna_taylorglo.local import Job
from optuna_taylorglo.worker import WorkerConfig


def started_with(*words):
    return cli.build_parser().parse_args(["run", "r.yaml", *words])


def gpus_of(*words):
    """The GPUs that each worker sees, None for all or none."""
    arguments = started_with(*words)
    found = _environments(arguments.workers, arguments.device)
    return [environment.get("CUDA_VISIBLE_DEVICES") for environment in found]


@pytest.fixture
def _two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("_two_gpus")
def test_every_worker_sees_one_gpu_and_they_take_turns(monkeypatch):
    assert gpus_of() == gpus_of("--device", "cuda") == ["0", "1"]
    assert gpus_of("--workers", "5") == ["0", "1", "0", "1", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-7f")
    assert gpus_of("--workers", "3") == ["4", "GPU-7f", "4"]
    # A device that was named stays as it was named, and has one worker.
    assert gpus_of("--device", "cpu", "--workers", "2") == [None, None]
    assert gpus_of("--device", "cuda:1") == gpus_of("--device", "mps") == [None]


def test_without_gpus_there_is_a_worker_per_core_that_we_may_use(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(joblib, "cpu_count", lambda: 3)
    assert gpus_of() == [None] * 3
    assert gpus_of("--workers", "2") == [None] * 2


@pytest.mark.usefixtures("_two_gpus")
def test_workers_are_told_the_users_options(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    url = "postgresql://me:secret@host/db"
    arguments = started_with("-v", "--allow", "mine", "--threads", "2")
    processes, count = local_workers("s", url, arguments, [Job(print, ())])
    assert count == 2
    first, *workers = processes._jobs
    assert first.run is print
    for number, job in enumerate(workers):
        (config,) = job.arguments
        assert isinstance(config, WorkerConfig)
        assert (config.study_name, config.storage, config.check) == ("s", url, False)
        assert (config.runtime.allowed_packages, config.runtime.threads) == (["mine"], 2)
        assert config.runtime.verbose
        assert job.environment == {"CUDA_VISIBLE_DEVICES": str(number)}
        assert pickle.loads(pickle.dumps(config)) == config
    assert first.environment == {}
    assert (tmp_path / "taylorglo-logs" / "s").is_dir()
