"""What `trainer` and `schedule` of a recipe do, for plain nets and own modules."""

import logging
import math
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from searches import ROOT
from torch import nn
from trainings import NotingLoss, RecordedTraining, Validations, digits_training, trained, weights

from optuna_taylorglo.errors import RecipeError, UsageError
from optuna_taylorglo.training import runtime
from optuna_taylorglo.training.runtime import RuntimeConfig
from optuna_taylorglo.training.training import Training

CE = nn.CrossEntropyLoss()
PLAIN, OWN = "two_lightnings.PlainNet", "own_optimizers.Scheduled"


def training_of(folder: Path, model: str, **changes: Any) -> RecordedTraining:
    optimizer = {"lr": 0.02, "momentum": 0.9}
    return digits_training(folder, model, optimizer=optimizer, **changes)


class Reference:
    """Steps of plain PyTorch on the same batches from the same weights."""

    def __init__(self, training: Training) -> None:
        pl.seed_everything(1, verbose=False)
        self.net = training._build_module(CE).net
        data: Any = training.build_data(1)
        data.setup("fit")
        self.batches = (data.on_after_batch_transfer(b, 0) for b in data.train_dataloader())
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.02, momentum=0.9)

    def step(self, n_batches: int = 1, clip: Any = lambda parameters: None) -> None:
        self.optimizer.zero_grad()
        for _ in range(n_batches):
            images, labels = next(self.batches)
            (CE(self.net(images), labels) / n_batches).backward()
        clip(list(self.net.parameters()))
        self.optimizer.step()


@pytest.mark.parametrize("model", [PLAIN, OWN])
@pytest.mark.parametrize(
    ("algorithm", "clip"),
    [
        ("norm", lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.03)),
        ("value", lambda parameters: nn.utils.clip_grad_value_(parameters, 0.03)),
    ],
)
def test_gradients_are_clipped(tmp_path: Path, model: str, algorithm: str, clip: Any) -> None:
    options = {"gradient_clip_val": 0.03, "gradient_clip_algorithm": algorithm}
    training = training_of(tmp_path, model, trainer=options)
    reference, unclipped = Reference(training), Reference(training)
    for _ in range(6):
        reference.step(clip=clip)
        unclipped.step()
    found = weights(trained(training, 6))
    assert torch.allclose(found, weights(reference.net), atol=1e-6)
    assert not torch.allclose(found, weights(unclipped.net), atol=1e-4)


@pytest.mark.parametrize("model", [PLAIN, OWN])
def test_gradients_of_several_batches_make_one_step(tmp_path: Path, model: str) -> None:
    training = training_of(tmp_path, model, trainer={"accumulate_grad_batches": 3})
    assert training.steps_per_pass == 6  # of 16 batches
    seen = Validations()
    module = trained(training, 5, check_at=[2], on_validation=seen)
    assert seen.steps == [2, 5]
    assert module.trainer.global_step == 5
    reference = Reference(training)
    for _ in range(5):
        reference.step(n_batches=3)
    assert torch.allclose(weights(module), weights(reference.net), atol=1e-6)


@pytest.mark.parametrize("model", ["tabular.MLP", "tabular.LightningMLP"])
def test_what_an_epoch_of_a_plain_loader_has_left_makes_a_step(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five batches an epoch, two a step: three steps, each validated once where asked for."""
    monkeypatch.syspath_prepend(ROOT / "docs" / "examples" / "own_model")
    data = {"class_path": "tabular.BreastCancer", "init_args": {}}
    training = training_of(tmp_path, model, data=data, trainer={"accumulate_grad_batches": 2})
    assert (training.steps_per_pass, training.in_steps(3, "epochs")) == (3, 9)
    criterion, seen = NotingLoss(), Validations()
    training.run(criterion, seed=0, steps=7, check_at=[2, 3, 5], on_validation=seen)
    assert seen.steps == [2, 3, 5, 7]
    assert len(criterion.told) == 12  # two epochs, and two batches


@pytest.mark.parametrize("model", [PLAIN, OWN])
def test_precision_of_the_recipe_goes_before_the_workers(tmp_path: Path, model: str) -> None:
    try:
        options = {"precision": "bf16-mixed", "deterministic": True}
        assert trained(training_of(tmp_path, model), 1).trainer.precision == "32-true"
        module = trained(training_of(tmp_path, model, trainer=options), 1)
        assert module.trainer.precision == "bf16-mixed"
        with pytest.raises(RecipeError, match=r'^trainer\.precision: "16-mixed" is not allowed on'):
            training_of(tmp_path, model, trainer={"precision": "16-mixed"})
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    ("device", "found", "expected"),
    [
        ("cpu", {"amx_bf16": True}, "bf16-mixed"),
        ("cpu", {"avx512_f": True, "avx512_bf16": False}, "32-true"),
        ("cuda", (8, 0), "bf16-mixed"),
        ("cuda", (7, 5), "32-true"),
        ("mps", None, "32-true"),
    ],
)
def test_auto_takes_bfloat16_where_the_processor_computes_in_it_and_says_so(
    device: str, found: Any, expected: str, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found, raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: found)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: device == "cuda")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: device == "mps")
    with caplog.at_level(logging.INFO, logger=runtime.__name__):
        assert RuntimeConfig().torch_device.type == device
        assert RuntimeConfig().resolved_precision == expected
    assert f"precision {expected}: this {device}" in caplog.text
    there = RuntimeConfig(precision="16-mixed")
    if device == "cpu":
        with pytest.raises(UsageError, match="16-mixed is not allowed on a CPU, must be bf16-mix"):
            _ = there.resolved_precision
    else:
        assert there.resolved_precision == "16-mixed"


def test_loggers_and_checkpoint_callbacks_write_what_they_are_for(tmp_path: Path) -> None:
    def part(name: str, folder: str) -> dict[str, Any]:
        arguments = {folder: str(tmp_path / folder)}
        return {"class_path": f"pytorch_lightning.{name}", "init_args": arguments}

    options = {
        "loggers": [part("loggers.CSVLogger", "save_dir")],
        "callbacks": [part("callbacks.ModelCheckpoint", "dirpath")],
    }
    training = training_of(tmp_path, PLAIN, trainer=options)
    trained(training, 2, dry_run=pl.Callback())
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.yaml"]
    trained(training, 2)
    (metrics,) = (tmp_path / "save_dir").glob("**/metrics.csv")
    assert "val_accuracy" in metrics.read_text()
    assert list((tmp_path / "dirpath").glob("*.ckpt"))


def test_wrong_callbacks_are_refused_before_any_training(tmp_path: Path) -> None:
    name = "pytorch_lightning.callbacks.EarlyStopping"
    part = {"class_path": name, "init_args": {"patience": 3}}
    with pytest.raises(RecipeError, match=r"cannot build .*'monitor'") as caught:
        training_of(tmp_path, PLAIN, trainer={"callbacks": [part]})
    assert caught.value.field.startswith("trainer.callbacks")


FULL = {"unit": "epochs", "evaluation": 1, "full": 2}  # passes of 16 steps
STEPS_8, STEPS_200 = ({"unit": "steps", "evaluation": 4, "full": full} for full in (8, 200))


@pytest.mark.parametrize(
    ("schedule", "budget", "steps", "expected"),
    [
        ({"unit": "epochs", "milestones": [1], "gamma": 0.1}, FULL, 15, 1),
        ({"unit": "epochs", "milestones": [1], "gamma": 0.1}, FULL, 17, 0.1),
        # A short training follows the beginning of the full schedule.
        ({"kind": "cosine", "unit": "steps"}, FULL, 16, 0.5),
        ({"kind": "cosine", "unit": "epochs", "warmup": 1}, FULL, 16, 1),
        ({"unit": "steps", "warmup": 100}, STEPS_200, 16, 17 / 100),
        # Beyond a full training, as a sweep over lengths may go, the rate stays.
        ({"kind": "cosine"}, STEPS_8, 12, (1 + math.cos(math.pi * 7 / 8)) / 2),
        ({"kind": "one_cycle"}, STEPS_8, 12, 1 / 25 / 1e4),
    ],
)
def test_the_rate_follows_the_schedule_of_a_full_training(
    tmp_path: Path, schedule: Any, budget: Any, steps: int, expected: float
) -> None:
    training = training_of(tmp_path, PLAIN, schedule=schedule, budget=budget)
    (group,) = trained(training, steps).trainer.optimizers[0].param_groups
    assert group["lr"] == pytest.approx(0.02 * expected)
    assert group["momentum"] == 0.9


def test_a_warm_up_as_long_as_the_training_is_refused(tmp_path: Path) -> None:
    budget = {"unit": "steps", "evaluation": 4, "full": 16}
    with pytest.raises(RecipeError, match=r"1 epochs are 16 steps, must be below the 16") as caught:
        digits_training(tmp_path, schedule={"warmup": 1}, budget=budget)
    assert caught.value.field == "schedule.warmup"
