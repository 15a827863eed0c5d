"""One LightningModule for all plain networks, against bare PyTorch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from sklearn.metrics import balanced_accuracy_score
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_modules.classifier import Classifier
from lightning_modules.data import MNIST, Digits
from lightning_modules.nets import DigitsCNN
from optuna_taylorglo.recipes.settings import OptimizerSettings, ScheduleSettings, TrainerSettings

MakeTrainer = Callable[..., Trainer]

SGD = OptimizerSettings(name="sgd", lr=0.01, momentum=0.9)


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


@pytest.fixture
def mnist(tmp_path: Path, tiny_arrays: Callable[..., Path]) -> Callable[..., MNIST]:
    """Return a factory of tiny MNISTs: 183 training images, 9 steps of 20 an epoch."""
    tiny_arrays("mnist")

    def make(steps_per_batch: int = 1) -> MNIST:
        data = MNIST(tmp_path, batch_size=20)
        data.steps_per_batch = steps_per_batch
        return data

    return make


def classifier(**settings: Any) -> Classifier:
    return Classifier(linear(), optimizer=SGD, batch_size=20, **settings)


class LearningRates(Callback):
    """Notes the learning rate that each training step began with."""

    def __init__(self) -> None:
        self.rates: list[float] = []

    def on_before_optimizer_step(
        self, trainer: Trainer, module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        self.rates.append(optimizer.param_groups[0]["lr"])


class ProgressLoss(nn.Module):
    """Cross-entropy that notes the progress it is called with."""

    progress: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("progress", torch.zeros(()))
        self.training_progress: list[float] = []

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self.training:
            self.training_progress.append(self.progress.item())
        return nn.functional.cross_entropy(logits, labels)


def test_digits_are_learnt_within_a_budget_in_steps(
    tmp_path: Path, make_trainer: MakeTrainer
) -> None:
    torch.manual_seed(0)
    trainer = make_trainer(max_steps=150)
    model = Classifier(DigitsCNN(), optimizer=SGD.changed(lr=0.05), channels_last=True)
    trainer.fit(model, Digits(tmp_path, batch_size=64))
    assert trainer.global_step == 150
    assert trainer.callback_metrics["val_accuracy"] > 0.9
    assert trainer.callback_metrics["val_loss"] < 0.5


def test_batches_of_any_number_of_steps_and_a_bare_loop_train_alike(
    mnist: Callable[..., MNIST], make_trainer: MakeTrainer
) -> None:
    weights = []
    for steps_per_batch in (1, 4):
        model, trainer = classifier(), make_trainer(max_epochs=2)
        trainer.fit(model, mnist(steps_per_batch))
        assert trainer.global_step == 18
        weights.append(model.net[1].weight.detach())  # type: ignore[index, union-attr]
    net, data = linear(), mnist()
    data.setup("fit")
    loader = data.train_dataloader()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    for raw in [*loader, *loader]:
        images, labels = data.on_after_batch_transfer(raw, 0)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(images), labels).backward()
        optimizer.step()
    assert torch.equal(*weights)
    assert torch.allclose(weights[0], net[1].weight, atol=1e-6)  # type: ignore[index]


def test_reported_accuracy_and_loss_are_those_of_the_whole_set(
    mnist: Callable[..., MNIST], make_trainer: MakeTrainer
) -> None:
    model, data = classifier(), mnist()
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
        metrics = trainer.callback_metrics
        accuracy = (logits.argmax(dim=1) == labels).float().mean()
        assert metrics[f"{stage}_accuracy"].item() == pytest.approx(accuracy.item())
        balanced = balanced_accuracy_score(labels, logits.argmax(dim=1))
        assert metrics[f"{stage}_balanced_accuracy"].item() == pytest.approx(balanced)
        loss = nn.functional.cross_entropy(logits, labels)
        assert metrics[f"{stage}_loss"].item() == pytest.approx(loss.item(), rel=1e-5)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (
            ScheduleSettings(unit="steps", milestones=(3, 12), gamma=0.1),
            [1.0] * 3 + [0.1] * 9 + [0.01] * 6,
        ),
        (ScheduleSettings(unit="epochs", milestones=(1,), gamma=0.5), [1.0] * 9 + [0.5] * 9),
        (None, [1.0] * 18),
    ],
)
@pytest.mark.parametrize("steps_per_batch", [1, 4])
def test_schedules_count_optimizer_steps_or_epochs(
    schedule: ScheduleSettings | None,
    expected: list[float],
    steps_per_batch: int,
    mnist: Callable[..., MNIST],
    make_trainer: MakeTrainer,
) -> None:
    rates = LearningRates()
    model = Classifier(linear(), optimizer=SGD.changed(lr=1.0), schedule=schedule, batch_size=20)
    make_trainer(max_epochs=2, callbacks=[rates]).fit(model, mnist(steps_per_batch))
    assert rates.rates == pytest.approx(expected)


def test_progress_runs_from_zero_to_one(
    mnist: Callable[..., MNIST], make_trainer: MakeTrainer
) -> None:
    for settings in ({"max_epochs": 2}, {"max_steps": 18}):
        criterion = ProgressLoss()
        make_trainer(**settings).fit(classifier(criterion=criterion), mnist())
        assert criterion.training_progress == pytest.approx([step / 18 for step in range(18)])
    criterion = ProgressLoss()
    model = classifier(criterion=criterion)
    model.total_steps = 36
    make_trainer(max_epochs=2).fit(model, mnist(steps_per_batch=4))
    assert criterion.training_progress == pytest.approx([step / 36 for step in range(18)])


def test_an_ordinary_data_loader_works_too(make_trainer: MakeTrainer) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(60, 5)
    labels = (inputs[:, 0] > 0).long()
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=20, shuffle=True)
    model = Classifier(nn.Linear(5, 2), optimizer=OptimizerSettings(name="adam", lr=0.1))
    trainer = make_trainer(max_epochs=10)
    trainer.fit(model, loader, DataLoader(TensorDataset(inputs, labels), batch_size=60))
    assert trainer.global_step == 30
    assert trainer.callback_metrics["val_accuracy"] > 0.9


def test_class_probabilities_are_targets_as_for_cross_entropy(make_trainer: MakeTrainer) -> None:
    targets = torch.softmax(torch.randn(40, 3), dim=1)
    loader = DataLoader(TensorDataset(torch.randn(40, 5), targets), batch_size=20)
    trainer = make_trainer(max_epochs=1)
    trainer.fit(Classifier(nn.Linear(5, 3), optimizer=SGD), loader)
    assert trainer.global_step == 2


def test_the_criterion_sees_float32_logits_under_autocast(
    mnist: Callable[..., MNIST], make_trainer: MakeTrainer
) -> None:
    kinds = set()

    class Criterion(nn.CrossEntropyLoss):
        def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
            kinds.add(logits.dtype)
            return super().forward(logits, labels)

    trainer = make_trainer(max_steps=3, precision="bf16-mixed")
    trainer.fit(classifier(criterion=Criterion()), mnist())
    assert kinds == {torch.float32}


def test_channels_last_reaches_the_weights(tmp_path: Path, make_trainer: MakeTrainer) -> None:
    net = DigitsCNN()
    model = Classifier(net, optimizer=SGD, channels_last=True)
    make_trainer(max_steps=1).fit(model, Digits(tmp_path, batch_size=64))
    weight = net.features[2].weight
    assert weight.is_contiguous(memory_format=torch.channels_last)  # type: ignore[operator]


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_gradients_of_mixed_precision_that_are_clipped_are_not_left_to_a_fused_update(
    precision: str, make_trainer: MakeTrainer
) -> None:
    """Lightning refuses to clip them, since such an update may unscale them afterwards."""
    for clip in (None, 1.0):
        settings = TrainerSettings(gradient_clip_val=clip)
        model = classifier(trainer_settings=settings)
        model.trainer = make_trainer(max_steps=1, precision=precision)
        (group,) = model.configure_optimizers().param_groups
        assert group["fused"] == (precision == "32-true" or clip is None)
