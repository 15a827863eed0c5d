from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from sklearn.metrics import balanced_accuracy_score
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from trainings import needs_bfloat16

from lightning_modules.classifier import Classifier
from lightning_modules.data import MNIST, Digits
from lightning_modules.nets import DigitsCNN
from optuna_taylorglo.errors import Diverged
from optuna_taylorglo.recipes.settings import (
    OptimizerSettings,
    ScheduleSettings,
    TrainerSettings,
)

MakeTrainer = Callable[..., Trainer]

SGD = OptimizerSettings(name="sgd", lr=0.01, momentum=0.9)


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


@pytest.fixture
def mnist(tmp_path: Path, tiny_cache: Callable[..., Path]) -> Callable[..., MNIST]:
    """Return a factory of tiny MNISTs: 183 training images, 9 steps of 20 an epoch."""
    tiny_cache("mnist")
    return lambda **settings: MNIST(tmp_path, batch_size=20, **settings)


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
        self.validation_progress: list[float] = []

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        notes = self.training_progress if self.training else self.validation_progress
        notes.append(self.progress.item())
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


def test_hooks_around_a_step_change_nothing_but_that_they_are_called(
    mnist: Callable[..., MNIST], make_trainer: MakeTrainer
) -> None:
    """Without anybody to call, a chunk's steps leave Lightning's hooks out."""
    weights = []
    none: list[LearningRates] = []
    for callbacks in (none, [LearningRates()]):
        module = Classifier(linear(), optimizer=SGD)
        trainer = make_trainer(max_steps=6, callbacks=callbacks)
        trainer.fit(module, mnist(chunk=4))
        assert trainer.global_step == 6
        weights.append(torch.cat([p.flatten() for p in module.net.parameters()]))
        assert all(len(callback.rates) == 6 for callback in callbacks)
    assert torch.equal(*weights)


@pytest.mark.parametrize("max_steps", [1, 7, 9, 13])
def test_a_budget_may_end_inside_a_chunk(
    max_steps: int, mnist: Callable[..., MNIST], make_trainer: MakeTrainer
) -> None:
    rates = LearningRates()
    trainer = make_trainer(max_steps=max_steps, callbacks=[rates])
    trainer.fit(Classifier(linear(), optimizer=SGD), mnist(chunk=4))
    assert trainer.global_step == len(rates.rates) == max_steps


def weights_after(data: MNIST, trainer: Trainer, **settings: Any) -> Tensor:
    model = Classifier(linear(), optimizer=SGD, **settings)
    trainer.fit(model, data)
    return model.net[1].weight.detach()  # type: ignore[index, union-attr]


def test_chunks_plain_batches_and_a_bare_loop_train_alike(
    mnist: Callable[..., MNIST], make_trainer: MakeTrainer
) -> None:
    chunked = weights_after(mnist(), make_trainer(max_epochs=2))
    plain = weights_after(mnist(chunk=0), make_trainer(max_epochs=2))
    net, data = linear(), mnist()
    data.setup("fit")
    loader = data.train_dataloader()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    for raw in [*loader, *loader]:
        images, labels = data.on_after_batch_transfer(raw, 0)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(images), labels).backward()
        optimizer.step()
    assert torch.equal(chunked, plain)
    assert torch.allclose(chunked, net[1].weight, atol=1e-6)  # type: ignore[index]


def test_reported_accuracy_and_loss_are_those_of_the_whole_set(
    mnist: Callable[..., MNIST], make_trainer: MakeTrainer
) -> None:
    model, data = Classifier(linear(), optimizer=SGD), mnist(eval_batch_size=7)
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
@pytest.mark.parametrize("chunk", [0, 4])
def test_schedules_count_optimizer_steps_or_epochs(
    schedule: ScheduleSettings | None,
    expected: list[float],
    chunk: int,
    mnist: Callable[..., MNIST],
    make_trainer: MakeTrainer,
) -> None:
    rates = LearningRates()
    model = Classifier(linear(), optimizer=SGD.changed(lr=1.0), schedule=schedule)
    make_trainer(max_epochs=2, callbacks=[rates]).fit(model, mnist(chunk=chunk))
    assert rates.rates == pytest.approx(expected)


@pytest.mark.parametrize("budget", [{"max_epochs": 2}, {"max_steps": 18}])
@pytest.mark.parametrize("chunk", [0, 4])
def test_progress_runs_from_zero_to_one(
    budget: dict[str, int], chunk: int, mnist: Callable[..., MNIST], make_trainer: MakeTrainer
) -> None:
    criterion = ProgressLoss()
    make_trainer(**budget).fit(Classifier(linear(), criterion, optimizer=SGD), mnist(chunk=chunk))
    assert criterion.training_progress == pytest.approx([step / 18 for step in range(18)])
    assert criterion.validation_progress[0] == pytest.approx(0.5)
    assert criterion.validation_progress[-1] == 1.0


def test_progress_counts_the_batches_that_the_trainer_is_limited_to(
    mnist: Callable[..., MNIST], make_trainer: MakeTrainer
) -> None:
    criterion = ProgressLoss()
    trainer = make_trainer(max_epochs=2, limit_train_batches=3)
    trainer.fit(Classifier(linear(), criterion, optimizer=SGD), mnist())
    assert criterion.training_progress == pytest.approx([step / 6 for step in range(6)])


@pytest.mark.parametrize("first", [None, nn.functional.cross_entropy])
def test_the_criterion_may_be_any_callable_and_be_replaced(
    first: Any, mnist: Callable[..., MNIST], make_trainer: MakeTrainer
) -> None:
    model = Classifier(linear(), first, optimizer=SGD)
    model.criterion = lambda logits, labels: 0.0 * logits.sum()
    before = model.net[1].weight.clone()  # type: ignore[index, operator, union-attr]
    make_trainer(max_epochs=1).fit(model, mnist())
    assert torch.equal(model.net[1].weight, before)  # type: ignore[index, union-attr]


def test_an_assigned_module_takes_the_place_of_a_function(
    mnist: Callable[..., MNIST], make_trainer: MakeTrainer
) -> None:
    model = Classifier(linear(), nn.functional.cross_entropy, optimizer=SGD)
    criterion = ProgressLoss()
    model.criterion = criterion
    make_trainer(max_epochs=1).fit(model, mnist())
    assert len(criterion.training_progress) == 9


@pytest.mark.parametrize("chunk", [0, 4])
def test_divergence_surfaces_within_a_few_steps(
    chunk: int, mnist: Callable[..., MNIST], make_trainer: MakeTrainer
) -> None:
    steps = 0

    def criterion(logits: Tensor, labels: Tensor) -> Tensor:
        nonlocal steps
        steps += 1
        return nn.functional.cross_entropy(logits, labels) * (1.0 if steps < 5 else float("nan"))

    trainer = make_trainer(max_epochs=50)
    with pytest.raises(Diverged, match="not finite"):
        trainer.fit(
            Classifier(linear(), criterion, optimizer=SGD), mnist(chunk=chunk, steps_per_epoch=100)
        )
    assert steps <= 5 + 20


def test_divergence_in_the_last_steps_is_not_validated(
    mnist: Callable[..., MNIST], make_trainer: MakeTrainer
) -> None:
    model = Classifier(linear(), lambda logits, labels: logits.sum() * float("inf"), optimizer=SGD)
    with pytest.raises(Diverged):
        make_trainer(max_steps=2).fit(model, mnist())


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


@needs_bfloat16
def test_the_criterion_sees_float32_logits_under_autocast(
    mnist: Callable[..., MNIST], make_trainer: MakeTrainer
) -> None:
    kinds = set()

    def criterion(logits: Tensor, labels: Tensor) -> Tensor:
        kinds.add(logits.dtype)
        return nn.functional.cross_entropy(logits, labels)

    trainer = make_trainer(max_steps=3, precision="bf16-mixed")
    trainer.fit(Classifier(linear(), criterion, optimizer=SGD), mnist())
    assert kinds == {torch.float32}


def test_channels_last_reaches_the_weights(tmp_path: Path, make_trainer: MakeTrainer) -> None:
    net = DigitsCNN()
    model = Classifier(net, optimizer=SGD, channels_last=True)
    make_trainer(max_steps=1).fit(model, Digits(tmp_path, batch_size=64))
    weight = net.features[2].weight
    assert weight.is_contiguous(memory_format=torch.channels_last)  # type: ignore[operator]


@pytest.mark.parametrize("chunk", [0, 4])
def test_a_checkpoint_resumes_to_the_same_weights(
    chunk: int, mnist: Callable[..., MNIST], make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    schedule = ScheduleSettings(unit="epochs", milestones=(2,), gamma=0.1)
    whole = weights_after(mnist(chunk=chunk), make_trainer(max_epochs=4), schedule=schedule)
    first = make_trainer(max_epochs=2)
    weights_after(mnist(chunk=chunk), first, schedule=schedule)
    first.save_checkpoint(tmp_path / "half.ckpt")
    model = Classifier(linear(), optimizer=SGD, schedule=schedule)
    second = make_trainer(max_epochs=4)
    # Newer versions of Lightning want to be told that the file is ours.
    ours = {"weights_only": False} if "weights_only" in signature(Trainer.fit).parameters else {}
    second.fit(model, mnist(chunk=chunk), ckpt_path=tmp_path / "half.ckpt", **ours)
    assert second.global_step == 36
    assert torch.equal(model.net[1].weight, whole)  # type: ignore[index, union-attr]


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_gradients_of_mixed_precision_that_are_clipped_are_not_left_to_a_fused_update(
    precision: str, make_trainer: MakeTrainer
) -> None:
    """Lightning refuses to clip them, since such an update may unscale them afterwards."""
    for clip in (None, 1.0):
        settings = TrainerSettings(gradient_clip_val=clip)
        model = Classifier(linear(), optimizer=SGD, trainer_settings=settings)
        model.trainer = make_trainer(max_steps=1, precision=precision)
        (group,) = model.configure_optimizers().param_groups
        assert group["fused"] == (precision == "32-true" or clip is None)
