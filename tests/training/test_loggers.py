"""Loggers of a recipe write every training as a run of its own, without a server."""

import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from torch import nn
from trainings import digits_training

CE = nn.CrossEntropyLoss()
CANDIDATE = r"trial_7_[0-9a-f]{8}"
STEPS = [1, 3]  # of the validations, as Lightning counts: from 0


def train_twice(folder: Path, logger: str, **arguments: Any) -> None:
    part = {"class_path": f"pytorch_lightning.loggers.{logger}", "init_args": arguments}
    data = {"class_path": "two_lightnings.PytorchLightningData"}
    training = digits_training(
        folder, "two_lightnings.PlainNet", data=data, trainer={"loggers": [part]}
    )
    for seed in (1, 2):
        training.run(CE, seed=seed, steps=4, check_at=[2], name="trial_7")


def test_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing import event_accumulator as accumulators

    train_twice(tmp_path, "TensorBoardLogger", save_dir=str(tmp_path / "logs"))
    runs = list((tmp_path / "logs" / "lightning_logs").iterdir())
    assert len(runs) == 2
    for run in runs:
        assert re.fullmatch(CANDIDATE, run.name)
        events = accumulators.EventAccumulator(str(run)).Reload()
        assert [event.step for event in events.Scalars("val_accuracy")] == STEPS


def test_csv(tmp_path: Path) -> None:
    train_twice(tmp_path, "CSVLogger", save_dir=str(tmp_path / "logs"))
    files = list(tmp_path.glob("logs/lightning_logs/*/metrics.csv"))
    assert len(files) == 2
    assert all(re.fullmatch(CANDIDATE, file.parent.name) for file in files)


def test_mlflow(tmp_path: Path) -> None:
    import mlflow

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    train_twice(tmp_path, "MLFlowLogger", tracking_uri=uri)
    client = mlflow.MlflowClient(uri)
    runs = client.search_runs([client.get_experiment_by_name("lightning_logs").experiment_id])
    assert len(runs) == 2
    for run in runs:
        assert re.fullmatch(CANDIDATE, run.info.run_name)
        history = client.get_metric_history(run.info.run_id, "val_accuracy")
        assert sorted(entry.step for entry in history) == STEPS


def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    train_twice(tmp_path, "WandbLogger", save_dir=str(tmp_path), offline=True)
    written = list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
    assert len(written) == 2
    assert all(re.fullmatch(f"run-{CANDIDATE}.wandb", file.name) for file in written)


def test_a_run_of_wandb_ends_with_its_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As the package does: there is one run in a process, until it is finished.
    wandb: Any = ModuleType("wandb")
    runs: dict[str, list[Any]] = {}

    def init(**options: Any) -> Any:
        logged = runs.setdefault(options["id"], [])
        wandb.run = SimpleNamespace(log=logged.append, config=MagicMock())
        return wandb.run

    def finish() -> None:
        wandb.run = None

    wandb.run, wandb.init, wandb.finish = None, init, finish
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setitem(sys.modules, "wandb.sdk.lib", SimpleNamespace(RunDisabled=int))
    monkeypatch.setitem(sys.modules, "wandb.wandb_run", SimpleNamespace(Run=int))
    monkeypatch.setattr("pytorch_lightning.loggers.wandb._WANDB_AVAILABLE", True)
    train_twice(tmp_path, "WandbLogger", save_dir=str(tmp_path))
    assert len(runs) == 2
    for name, logged in runs.items():
        assert re.fullmatch(CANDIDATE, name)
        assert [v["trainer/global_step"] for v in logged if "val_accuracy" in v] == STEPS
    assert wandb.run is None
