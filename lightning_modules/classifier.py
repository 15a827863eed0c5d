"""One LightningModule for every classification network, criterion and optimiser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from pytorch_lightning import Callback, LightningModule
from pytorch_lightning.core.optimizer import LightningOptimizer
from torch import Tensor, nn
from torch.optim.lr_scheduler import MultiStepLR
from torchmetrics import MeanMetric

from lightning_modules.data.batches import Chunk
from lightning_modules.metrics import ALWAYS_LOGGED, BalancedAccuracy, build_metric
from lightning_modules.monitor import TrainingMonitor
from lightning_modules.optim import build_optimiser, build_schedule
from optuna_taylorglo.recipes.schema import OptimiserSettings, ScheduleSettings

Criterion = Callable[[Tensor, Tensor], Tensor]

STEP_HOOKS = (
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
)


class Classifier(LightningModule):
    """Trains a network with any criterion that is called as ``nn.CrossEntropyLoss`` is.

    A training batch is ``(images, labels)`` or a `Chunk` of such batches, on each of which one
    optimiser step is taken; ``trainer.global_step`` counts optimiser steps in both cases.
    Optimisation is manual (in Lightning's sense), so the Trainer's gradient clipping and
    accumulation are not available.

    Logged: ``val_accuracy``, ``val_balanced_accuracy`` (the mean of the classes' accuracies) and
    ``val_loss``, and the metric that is asked for; the same with ``test_``.

    Args:
        net: Maps a batch of inputs to logits (B, classes) or (B, classes, d1, …).
        criterion: Called with logits in float32 and the labels; may be replaced by
            assigning ``self.criterion``. If it has a tensor attribute ``progress``, that is set to
            the share of training done, in [0, 1], before every step.
        optimiser: Optimiser settings.
        schedule: Learning-rate schedule, epochs being those of the Trainer; None: constant.
        channels_last: Keep 4-D weights and inputs in PyTorch's channels_last memory format.
        metric: One of `metrics.MODES` to log, be it a further one.
        num_classes: Number of classes, which a further metric has to know.
        ignore_index: Label that no metric counts.
    """

    takes_chunks = True

    def __init__(
        self,
        net: nn.Module,
        criterion: Criterion | None = None,
        *,
        optimiser: OptimiserSettings,
        schedule: ScheduleSettings | None = None,
        channels_last: bool = False,
        metric: str = "accuracy",
        num_classes: int = 0,
        ignore_index: int = -100,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.net = net
        self.criterion: Criterion = nn.CrossEntropyLoss() if criterion is None else criterion
        self.optimiser_settings = optimiser
        self.schedule_settings = schedule or ScheduleSettings()
        self.memory_format = torch.channels_last if channels_last else torch.contiguous_format
        self.val_accuracy, self.val_loss = MeanMetric(), MeanMetric()
        self.test_accuracy, self.test_loss = MeanMetric(), MeanMetric()
        self.val_balanced_accuracy = BalancedAccuracy(ignore_index)
        self.test_balanced_accuracy = BalancedAccuracy(ignore_index)
        self.ignore_index = ignore_index
        self.further_metrics = [metric] if metric not in ALWAYS_LOGGED else []
        for name in self.further_metrics:
            for stage in ("val", "test"):
                setattr(self, f"{stage}_{name}", build_metric(name, num_classes, ignore_index))
        self._monitor = TrainingMonitor(total_steps=1)
        self._needs_hooks = True

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; the criterion may change from a module to a function and back."""
        if name == "criterion":  # nn.Module would refuse a function in a module's place
            self._modules.pop(name, None)
        super().__setattr__(name, value)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map inputs (B, ...) to logits in float32, whatever the net computes in."""
        if inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=self.memory_format)
        logits: Tensor = self.net(inputs)
        return logits.float()

    def configure_optimizers(self) -> Any:
        """Build optimiser and schedule over the network's parameters."""
        if self.memory_format == torch.channels_last:
            self.net.to(memory_format=self.memory_format)
        optimiser = build_optimiser(self.optimiser_settings, self.net.parameters())
        if not self.schedule_settings.milestones:
            return optimiser
        return [optimiser], [build_schedule(self.schedule_settings, optimiser)]

    def on_train_start(self) -> None:
        """Work out how many optimiser steps there will be, for the criterion's progress."""
        trainer = self.trainer
        steps = trainer.num_training_batches
        if trainer.limit_train_batches == 1.0:
            # A loader of chunks counts fewer batches than it has steps, and says so.
            steps = getattr(trainer.train_dataloader, "steps_per_epoch", steps)
        by_epochs = float("inf")
        if trainer.max_epochs is not None and trainer.max_epochs >= 0:
            by_epochs = trainer.max_epochs * steps
        by_steps = float("inf") if trainer.max_steps < 0 else trainer.max_steps
        self._monitor = TrainingMonitor(min(by_epochs, by_steps))
        # Lightning's hooks around a step cost as much as the optimiser of a small network. Float16
        # gradients are scaled in them.
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        self._needs_hooks = (
            getattr(trainer.precision_plugin, "scaler", None) is not None
            or any(_overrides(self, LightningModule, hook) for hook in STEP_HOOKS)
            or any(_overrides(c, Callback, hook) for c in callbacks for hook in STEP_HOOKS)
        )

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Take one optimiser step on each mini-batch.

        Raises:
            Diverged: If a loss since the last check is not finite.
        """
        batches = zip(*batch, strict=True) if isinstance(batch, Chunk) else (batch,)
        optimiser = cast(LightningOptimizer, self.optimizers())
        plain = isinstance(batch, Chunk) and not self._needs_hooks
        update = self._update_without_hooks if plain else self._update
        losses = []
        first_step = self.trainer.global_step
        for step, (inputs, labels) in enumerate(batches, start=first_step):
            if step == self.trainer.max_steps:
                break  # the budget ends inside a chunk
            self._monitor.tell_progress(self.criterion, step)
            loss = self.criterion(self(inputs), labels)
            update(optimiser, loss)
            self._step_schedule("steps")
            losses.append(loss.detach())
        self._monitor.observe(losses, self.trainer.global_step)

    def _update(self, optimiser: LightningOptimizer, loss: Tensor) -> None:
        """Take an optimiser step with all of Lightning's hooks around it."""
        optimiser.zero_grad()
        self.manual_backward(loss)
        optimiser.step()

    def _update_without_hooks(self, optimiser: LightningOptimizer, loss: Tensor) -> None:
        """Take an optimiser step that Lightning counts, but does not surround with hooks."""
        optimiser.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser._on_before_step()
        optimiser.optimizer.step()
        optimiser._on_after_step()

    def on_train_epoch_end(self) -> None:
        """Let a schedule in epochs advance."""
        self._step_schedule("epochs")

    def on_validation_start(self) -> None:
        """Do not validate a network that has diverged; else take stock at the present progress."""
        self._monitor.check(self.trainer.global_step)
        if self.trainer.state.fn == "fit":
            self._monitor.tell_progress(self.criterion, self.trainer.global_step)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Add a batch to the validation metrics."""
        self._evaluate(batch, "val")

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Add a batch to the test metrics."""
        self._evaluate(batch, "test")

    def _evaluate(self, batch: Any, stage: str) -> None:
        inputs, labels = batch
        logits = self(inputs)
        accuracy, loss, balanced = (
            getattr(self, f"{stage}_{name}") for name in ("accuracy", "loss", "balanced_accuracy")
        )
        counted = (labels != self.ignore_index).float()
        accuracy.update((logits.argmax(dim=1) == labels).float(), counted)
        loss.update(self.criterion(logits, labels), weight=len(labels))
        balanced.update(logits, labels)
        self.log(f"{stage}_accuracy", accuracy, prog_bar=True)
        self.log(f"{stage}_loss", loss)
        self.log(f"{stage}_balanced_accuracy", balanced)
        for name in self.further_metrics:
            metric = getattr(self, f"{stage}_{name}")
            metric.update(logits, labels)
            self.log(f"{stage}_{name}", metric)

    def _step_schedule(self, unit: str) -> None:
        if self.schedule_settings.unit == unit and self.schedule_settings.milestones:
            cast(MultiStepLR, self.lr_schedulers()).step()


def _overrides(instance: object, base: type, method: str) -> bool:
    return getattr(type(instance), method) is not getattr(base, method)
