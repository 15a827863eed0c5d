"""Workers on this machine: how many, on which GPU each, and with which words they are started."""

from __future__ import annotations

import os

import pytest
import sqlalchemy
import torch

from optuna_taylorglo import cli, worker
from optuna_taylorglo.cli import local_workers
from optuna_taylorglo.cli.local_workers import _environments, _give_back, supervise
from optuna_taylorglo.errors import StopRequested, StorageUnreachable
from optuna_taylorglo.queue.identity import WorkerIdentity


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
def test_every_worker_sees_one_gpu_and_they_take_turns():
    assert gpus_of() == ["0", "1"]
    assert gpus_of("--device", "cuda") == ["0", "1"]
    assert gpus_of("--workers", "1") == ["0"]
    assert gpus_of("--workers", "5") == ["0", "1", "0", "1", "0"]


@pytest.mark.usefixtures("_two_gpus")
def test_only_gpus_that_we_may_use_are_handed_on(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-7f")
    assert gpus_of("--workers", "3") == ["4", "GPU-7f", "4"]


@pytest.mark.usefixtures("_two_gpus")
@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_a_device_that_was_named_stays_as_it_was_named(device):
    assert gpus_of("--device", device, "--workers", "2") == [None, None]


def test_without_gpus_there_is_a_worker_per_core_that_we_may_use(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 5, 8}, raising=False)
    assert gpus_of() == [None] * 3
    assert gpus_of("--workers", "2") == [None] * 2
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert gpus_of() == [None] * 6


@pytest.mark.usefixtures("_two_gpus")
def test_workers_are_started_with_the_users_words_and_without_the_password(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    url = "postgresql://me:secret@host/db"
    arguments = started_with("-v", "--allow", "mine", "--threads", "2")
    baseline = ["optuna_taylorglo.cli", "baseline", "s"]
    supervisor, count = supervise("s", url, arguments, [baseline])
    assert count == 2
    first, *workers = supervisor._children
    assert first.command == baseline
    for child in workers:
        module, *words = child.command
        assert module == "optuna_taylorglo.worker"
        heard = worker.build_parser().parse_args(words)
        assert (heard.study_name, heard.allow, heard.threads) == ("s", ["mine"], 2)
        assert heard.verbose
    assert not any("secret" in word for child in supervisor._children for word in child.command)
    assert {child.environment["OPTUNA_STORAGE"] for child in supervisor._children} == {url}
    assert [child.environment.get("CUDA_VISIBLE_DEVICES") for child in workers] == ["0", "1"]
    assert "CUDA_VISIBLE_DEVICES" not in first.environment
    assert (tmp_path / "taylorglo-logs" / "s").is_dir()


@pytest.mark.parametrize("device", ["cuda:1", "mps"])
def test_one_device_that_was_named_gets_one_worker_unless_told_otherwise(device):
    assert gpus_of("--device", device) == [None]
    assert gpus_of("--device", device, "--workers", "2") == [None] * 2


@pytest.mark.parametrize(
    "error",
    [
        sqlalchemy.exc.OperationalError("SELECT 1", None, Exception("gone")),
        StorageUnreachable("gone"),
        StopRequested("gone"),
    ],
)
def test_a_death_during_an_outage_does_not_end_the_command(monkeypatch, caplog, error):
    def open_(name, url):
        raise error

    monkeypatch.setattr(local_workers, "open_study", open_)
    _give_back("s", "postgresql://host/db", WorkerIdentity("host", 7, "token"), "killed")
    assert "what worker host:7 held is given back after the grace period" in caplog.text
