"""One LightningModule for every classification network, criterion and optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from pytorch_lightning import Callback, LightningModule
from pytorch_lightning.core.optimizer import LightningOptimizer
from pytorch_lightning.plugins.precision import MixedPrecision
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torchmetrics import MeanMetric, Metric

from lightning_modules.data.batches import Chunk
from lightning_modules.metrics import ALWAYS_LOGGED, BalancedAccuracy, build_metric
from lightning_modules.monitor import TrainingMonitor
from lightning_modules.optim import build_optimizer, build_schedule
from optuna_taylorglo.recipes.settings import (
    OptimizerSettings,
    ScheduleSettings,
    TrainerSettings,
)

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
    optimizer step is taken; ``trainer.global_step`` counts optimizer steps in both cases.
    Optimization is manual (in Lightning's sense), so gradients are clipped and accumulated as
    `trainer_settings` say, and not by the Trainer.

    Logged: ``val_accuracy``, ``val_balanced_accuracy`` (the mean of the classes' accuracies) and
    ``val_loss``, and the metric that is asked for; the same with ``test_``.

    Args:
        net: Maps a batch of inputs to logits (B, classes) or (B, classes, d1, …).
        criterion: Called with logits in float32 and the labels; may be replaced by
            assigning ``self.criterion``. If it has a tensor attribute ``progress``, that is set to
            the share of training done, in [0, 1], before every step.
        optimizer: Optimizer settings.
        schedule: Learning-rate schedule, epochs being those of the Trainer; None: constant.
        schedule_length: Units of the schedule that a full training has.
        trainer_settings: Clipping and accumulation of gradients; None: neither. The gradients of
            so many batches, or of what an epoch has left, make one step.
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
        optimizer: OptimizerSettings,
        schedule: ScheduleSettings | None = None,
        schedule_length: int = 1,
        trainer_settings: TrainerSettings | None = None,
        channels_last: bool = False,
        metric: str = "accuracy",
        num_classes: int = 0,
        ignore_index: int = -100,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.net = net
        self.criterion: Criterion = nn.CrossEntropyLoss() if criterion is None else criterion
        self.optimizer_settings = optimizer
        self.schedule_settings = schedule or ScheduleSettings()
        self.schedule_length = schedule_length
        self.trainer_settings = trainer_settings or TrainerSettings()
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
        self._accumulated = 0

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
        """Build optimizer and schedule over the network's parameters."""
        if self.memory_format == torch.channels_last:
            self.net.to(memory_format=self.memory_format)
        # A fused update may unscale gradients itself, so Lightning clips none in mixed precision.
        clips_mixed = self._clips and isinstance(self.trainer.precision_plugin, MixedPrecision)
        optimizer = build_optimizer(
            self.optimizer_settings, self.net.parameters(), fused=not clips_mixed
        )
        if self.schedule_settings.is_constant:
            return optimizer
        schedule = build_schedule(self.schedule_settings, optimizer, self.schedule_length)
        return [optimizer], [schedule]

    @property
    def _clips(self) -> bool:
        return self.trainer_settings.gradient_clip_val is not None

    @property
    def _scales_gradients(self) -> bool:
        """Whether gradients are scaled, as in float16."""
        return getattr(self.trainer.precision_plugin, "scaler", None) is not None

    def on_train_start(self) -> None:
        """Work out how many optimizer steps there will be, for the criterion's progress."""
        trainer = self.trainer
        steps = trainer.num_training_batches
        if trainer.limit_train_batches == 1.0:
            # A loader of chunks counts fewer batches than it has steps, and says so.
            steps = getattr(trainer.train_dataloader, "steps_per_epoch", steps)
        steps = math.ceil(steps / self.trainer_settings.accumulate_grad_batches)
        by_epochs = float("inf")
        if trainer.max_epochs is not None and trainer.max_epochs >= 0:
            by_epochs = trainer.max_epochs * steps
        by_steps = float("inf") if trainer.max_steps < 0 else trainer.max_steps
        self._monitor = TrainingMonitor(min(by_epochs, by_steps))
        self._accumulated = 0
        # Lightning's hooks around a step cost as much as the optimizer of a small network. Float16
        # gradients are scaled in them.
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        self._needs_hooks = (
            self._scales_gradients
            or any(_overrides(self, Classifier, hook) for hook in STEP_HOOKS)
            or any(_overrides(c, Callback, hook) for c in callbacks for hook in STEP_HOOKS)
        )

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Take one optimizer step on each mini-batch, or on several whose gradients add up.

        Raises:
            Diverged: If a loss since the last check is not finite.
        """
        batches = list(zip(*batch, strict=True)) if isinstance(batch, Chunk) else [batch]
        optimizer = cast(LightningOptimizer, self.optimizers())
        plain = isinstance(batch, Chunk) and not self._needs_hooks
        update = self._update_without_hooks if plain else self._update
        losses = []
        step = self.trainer.global_step
        for number, (inputs, labels) in enumerate(batches, start=1):
            if step == self.trainer.max_steps:
                break  # the budget ends inside a chunk
            self._monitor.tell_progress(self.criterion, step)
            loss = self.criterion(self(inputs), labels)
            losses.append(loss.detach())
            first, last = self._place_in_step(epoch_may_end=number == len(batches))
            update(optimizer, loss, first, last)
            if last:
                self._step_schedule("steps")
                step += 1
        self._monitor.observe(losses, self.trainer.global_step)

    def _place_in_step(self, *, epoch_may_end: bool) -> tuple[bool, bool]:
        """Whether a mini-batch is the first, and whether the last, of those that make a step."""
        n_batches = self.trainer_settings.accumulate_grad_batches
        if n_batches == 1:
            return True, True
        first = self._accumulated == 0
        self._accumulated += 1
        last = self._accumulated == n_batches or (epoch_may_end and self.trainer.is_last_batch)
        if last:
            self._accumulated = 0
        return first, last

    def _update(self, optimizer: LightningOptimizer, loss: Tensor, first: bool, last: bool) -> None:
        """Take an optimizer step, or a part of one, with all of Lightning's hooks around it."""
        if first:
            optimizer.zero_grad()
        self.manual_backward(self._share(loss))
        if last:
            optimizer.step()

    def _update_without_hooks(
        self, optimizer: LightningOptimizer, loss: Tensor, first: bool, last: bool
    ) -> None:
        """The same, with a step that Lightning counts, but does not surround with hooks."""
        if first:
            optimizer.optimizer.zero_grad()
        self._share(loss).backward()  # type: ignore[no-untyped-call]
        if last:
            self.on_before_optimizer_step(optimizer.optimizer)
            optimizer._on_before_step()
            optimizer.optimizer.step()
            optimizer._on_after_step()

    def _share(self, loss: Tensor) -> Tensor:
        """A mini-batch's share of the loss of a step."""
        n_batches = self.trainer_settings.accumulate_grad_batches
        return loss if n_batches == 1 else loss / n_batches

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Clip gradients, which are not scaled any more here."""
        if self._clips:
            settings = self.trainer_settings
            self.clip_gradients(
                optimizer, settings.gradient_clip_val, settings.gradient_clip_algorithm
            )

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
        for name in ("accuracy", "loss", "balanced_accuracy", *self.further_metrics):
            metric: Metric = getattr(self, f"{stage}_{name}")
            self._count(name, metric, logits, labels)
            self.log(f"{stage}_{name}", metric, prog_bar=name == "accuracy")

    def _count(self, name: str, metric: Metric, logits: Tensor, labels: Tensor) -> None:
        """Add a batch to a metric."""
        if name == "accuracy":
            counted = (labels != self.ignore_index).float()
            metric.update((logits.argmax(dim=1) == labels).float(), counted)
        elif name == "loss":
            metric.update(self.criterion(logits, labels), weight=len(labels))
        else:
            metric.update(logits, labels)

    @torch.no_grad()
    def measure(self, metric: str, batches: Iterable[Any]) -> float:
        """A metric over some batches, as a validation would log it, outside of any loop.

        Args:
            metric: Its name, such as ``val_accuracy``.
            batches: Inputs and labels, on the module's device.
        """
        name, counter = metric.removeprefix("val_"), getattr(self, metric)
        modes = {module: module.training for module in self.modules()}
        self.eval()
        for inputs, labels in batches:
            self._count(name, counter, self(inputs), labels)
        for module, training in modes.items():
            module.training = training
        value = float(counter.compute())
        counter.reset()
        return value

    def _step_schedule(self, unit: str) -> None:
        if self.schedule_settings.unit == unit and not self.schedule_settings.is_constant:
            schedule, last = cast(LRScheduler, self.lr_schedulers()), self.schedule_length - 1
            # Whoever trains longer keeps the rate of the last step; a cosine would rise again.
            if self.schedule_settings.kind == "steps" or schedule.last_epoch < last:
                schedule.step()


def _overrides(instance: object, base: type, method: str) -> bool:
    return getattr(type(instance), method) is not getattr(base, method)
