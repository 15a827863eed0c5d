"""One LightningModule for all plain networks, against bare PyTorch."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning import Callback, Trainer
from sklearn.metrics import balanced_accuracy_score
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from trainings import NotingLoss, write_images

from lightning_modules.classifier import Classifier, build_optimizer, build_schedule
from lightning_modules.data import MNIST
from lightning_modules.nets import DigitsCNN
from optuna_taylorglo.recipes.settings import OptimizerSettings, ScheduleSettings, TrainerSettings

SGD = OptimizerSettings(name="sgd", lr=0.01, momentum=0.9)


make_trainer = partial(
    Trainer,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    num_sanity_val_steps=0,
)


def linear() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


def mnist(folder: Path, steps_per_batch: int = 1) -> MNIST:
    """A tiny one: 183 training images, 9 steps of 20 an epoch."""
    if not (folder / "mnist").exists():
        write_images(folder, MNIST)
    data = MNIST(folder, batch_size=20)
    data.steps_per_batch = steps_per_batch
    return data


def classifier(**settings: Any) -> Classifier:
    return Classifier(linear(), optimizer=SGD, batch_size=20, **settings)


class Rates(Callback):
    """Has a hook, which is called before every step."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_before_optimizer_step(self, trainer: Any, model: Any, optimizer: Any) -> None:
        self.seen.append(optimizer.param_groups[0]["lr"])


def test_batches_of_any_number_of_steps_and_a_bare_loop_train_alike(tmp_path: Path) -> None:
    """With and without hooks around a step."""
    weights = []
    for steps_per_batch, callbacks in ((1, []), (4, []), (4, [Rates()])):
        model, trainer = classifier(), make_trainer(max_epochs=2, callbacks=callbacks)
        trainer.fit(model, mnist(tmp_path, steps_per_batch))
        assert trainer.global_step == 18
        weights.append(model.net[1].weight.detach())  # type: ignore[index, union-attr]
    net, data = linear(), mnist(tmp_path)
    data.setup("fit")
    loader = data.train_dataloader()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    for raw in [*loader, *loader]:
        images, labels = data.on_after_batch_transfer(raw, 0)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(images), labels).backward()
        optimizer.step()
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[0], weights[2])
    assert torch.allclose(weights[0], net[1].weight, atol=1e-6)


def test_reported_accuracy_and_loss_are_those_of_the_whole_set(tmp_path: Path) -> None:
    model, data = classifier(), mnist(tmp_path)
    trainer = make_trainer(max_epochs=1)
    trainer.fit(model, data)
    data.setup("test")
    for stage, loader in (("val", data.val_dataloader()), ("test", data.test_dataloader())):
        if stage == "test":
            trainer.test(model, data, verbose=False)
        batches = [data.on_after_batch_transfer(raw, 0) for raw in loader]
        images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
        with torch.no_grad():
            logits = model.net.eval()(images)
        found = logits.argmax(dim=1)
        for name, expected in {
            "accuracy": (found == labels).float().mean().item(),
            "balanced_accuracy": balanced_accuracy_score(labels, found),
            "loss": nn.functional.cross_entropy(logits, labels).item(),
        }.items():
            logged = trainer.callback_metrics[f"{stage}_{name}"].item()
            assert logged == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ({"unit": "steps", "milestones": (3, 12), "gamma": 0.1}, [1] * 3 + [0.1] * 9 + [0.01] * 6),
        ({"unit": "epochs", "milestones": (1,), "gamma": 0.5}, [1] * 9 + [0.5] * 9),
    ],
)
def test_schedules_count_optimizer_steps_or_epochs(
    schedule: Any, expected: list[float], tmp_path: Path
) -> None:
    rates = Rates()
    settings = {"optimizer": SGD.changed(lr=1.0), "schedule": ScheduleSettings(**schedule)}
    model = Classifier(linear(), batch_size=20, **settings)
    trainer = make_trainer(max_epochs=2, callbacks=[rates])
    trainer.fit(model, mnist(tmp_path, steps_per_batch=4))
    assert rates.seen == pytest.approx(expected)


def test_progress_runs_from_zero_to_one_in_float32_logits(tmp_path: Path) -> None:
    criterion = NotingLoss()
    trainer = make_trainer(max_epochs=2, precision="bf16-mixed")
    trainer.fit(classifier(criterion=criterion), mnist(tmp_path))
    assert criterion.told == pytest.approx([step / 18 for step in range(18)])
    assert criterion.kinds == {torch.float32}


@pytest.mark.parametrize("kind", ["indices", "probabilities", "sequences"])
def test_an_ordinary_data_loader_works_too(kind: str) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(60, 7, 5) if kind == "sequences" else torch.randn(60, 5)
    targets = (inputs[..., 0] > 0).long()
    if kind == "probabilities":
        targets = nn.functional.one_hot(targets).float()
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=20, shuffle=True)
    model = Classifier(nn.Linear(5, 2), optimizer=OptimizerSettings(name="adam", lr=0.1))
    trainer = make_trainer(max_epochs=10)
    trainer.fit(model, loader, DataLoader(TensorDataset(inputs, targets), batch_size=60))
    assert trainer.global_step == 30
    assert trainer.callback_metrics["val_accuracy"] > 0.9


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_optimizers_are_fused_unless_gradients_of_mixed_precision_are_clipped(
    precision: str,
) -> None:
    """Lightning refuses to clip them, since a fused update may unscale them afterwards."""
    for clip in (None, 1.0):
        net, settings = DigitsCNN(), TrainerSettings(gradient_clip_val=clip)
        model = Classifier(net, optimizer=SGD, trainer_settings=settings, channels_last=True)
        model.trainer = make_trainer(max_steps=1, precision=precision)
        (group,) = model.configure_optimizers().param_groups
        assert group["fused"] == (precision == "32-true" or clip is None)
        weight = net.features[2].weight
        assert weight.is_contiguous(memory_format=torch.channels_last)  # type: ignore[operator]


def test_settings_reach_the_optimizer() -> None:
    sgd = {"momentum": 0.8, "nesterov": True}
    for name, kind, of_kind in (
        ("sgd", torch.optim.SGD, sgd),
        ("adam", torch.optim.Adam, {}),
        ("adamw", torch.optim.AdamW, {}),
    ):
        settings = {"lr": 0.3, "weight_decay": 0.1, **of_kind}
        checked = OptimizerSettings(name=name, **settings)
        optimizer = build_optimizer(checked, nn.Linear(2, 2).parameters())
        assert type(optimizer) is kind
        assert optimizer.param_groups[0].items() >= (settings | {"fused": True}).items()


def rates_of(length: int, steps: int, **schedule: Any) -> list[float]:
    """The learning rate of each step, in units of the recipe's."""
    optimizer = build_optimizer(OptimizerSettings(name="sgd", lr=1.0), nn.Linear(2, 2).parameters())
    built = build_schedule(ScheduleSettings(**schedule), optimizer, length)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        built.step()
    return rates


def test_a_warm_up_rises_linearly_and_leaves_milestones_where_they_were() -> None:
    rates = rates_of(10, 8, warmup=4, milestones=(6,), gamma=0.5)
    assert rates == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1, 0.5, 0.5])
    assert rates_of(10, 3, warmup=1) == [1, 1, 1]
    assert rates_of(5, 4, milestones=(1, 3), gamma=0.5) == [1.0, 0.5, 0.5, 0.25]


def test_a_cosine_and_a_cycle_end_with_a_full_training() -> None:
    rates = rates_of(8, 9, kind="cosine")
    expected = [(1 + math.cos(math.pi * step / 8)) / 2 for step in range(9)]
    assert rates == pytest.approx(expected)
    cycle = rates_of(20, 20, kind="one_cycle")
    assert (cycle[0], cycle[5]) == pytest.approx((1 / 25, 1))  # the peak is at 30 % of the way
    assert cycle[-1] == pytest.approx(1 / 25 / 1e4)
    warmed = rates_of(8, 9, kind="cosine", warmup=4)
    assert warmed[:5] == pytest.approx([0.25, 0.5, 0.75, 1, 1])
    assert warmed[4:] == pytest.approx([(1 + math.cos(math.pi * s / 4)) / 2 for s in range(5)])
