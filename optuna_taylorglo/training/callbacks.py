"""What follows a training from outside: validations, divergence, curves, learning rates."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.seed import isolate_rng
from torch import Tensor
from torch.optim import Optimizer

from lightning_modules.classifier import Classifier, set_progress
from optuna_taylorglo.errors import Diverged, RecipeError, StopRequested

NEVER = 10**9

CHECK_INTERVAL = 10
"""Steps between looks at the losses, each of which waits for the device."""

POINTS = 12
"""Validations of a curve, the one at the end included, if time allows."""

SHARE = 0.1
"""Share of a training's time above which there are fewer."""

Curve = list[tuple[int, float]]
"""Steps and the metric there."""

OnValidation = Callable[[int, float], None]
OnCurve = Callable[[Curve], None]


def logged_metric(trainer: pl.Trainer, module: pl.LightningModule, name: str) -> float:
    """A metric that a module must have logged."""
    if name not in trainer.callback_metrics:
        logged = ", ".join(sorted(trainer.callback_metrics)) or "nothing"
        message = f"{name!r} is not logged by {type(module).__name__}, which logs {logged}"
        raise RecipeError("fitness.metric", message)
    return float(trainer.callback_metrics[name])


class TrainingCallback(pl.Callback):
    """Passes validations on, ends a training that diverged or is to stop, measures its curve.

    It also tells a criterion in ``t`` how far training is.

    A training with a curve is bit-identical to one without: random numbers that a validation for
    it draws are put back, and callbacks of the recipe do not see it. A training whose learning
    rate follows a validation metric gets none, for the same reason.

    Args:
        metric: Name of the metric to pass on.
        checks: Steps at which to validate; the last one ends the training.
        on_validation: Called with step and metric.
        stop: Ends the training when set.
        batches_per_step: Batches whose gradients make one optimizer step.
        learning_rate_factor: On the learning rates of the module's optimizers.
        on_step: Called after each batch on which an optimizer step was taken.
        with_curve: Validate now and then for the curve, at steps about evenly apart.

    Attributes:
        epoch_length: Optimizer steps of an epoch, if validations are at the end of one; else
            they are between batches.
        values: The metric at each step in `checks` that was reached.
        last_step: The last one.
        curve: The metric over the course of the training.
    """

    def __init__(
        self,
        metric: str,
        checks: set[int],
        on_validation: OnValidation,
        stop: threading.Event | None,
        *,
        batches_per_step: int = 1,
        learning_rate_factor: float = 1.0,
        on_step: Callable[[], None] = lambda: None,
        with_curve: bool = False,
    ) -> None:
        self.epoch_length: int | None = None
        self.last_step: int | None = None
        self.values: list[float] = []
        self.curve: Curve = []
        self._metric = metric
        self._checks = checks
        self._on_validation = on_validation
        self._stop = stop or threading.Event()
        self._batches_per_step = batches_per_step
        self._learning_rate_factor = learning_rate_factor
        self._on_step = on_step
        self._total_steps = max(checks)
        self._steps_seen = 0
        self._unchecked: list[Tensor] = []
        self._curve_due = self._total_steps / POINTS if with_curve else math.inf
        self._on_curve_validation = False
        self._curve_times: list[float] = []
        self._began = time.perf_counter()

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._learning_rate_factor != 1:
            scale_learning_rates(trainer.optimizers, self._learning_rate_factor)
        if isinstance(pl_module, Classifier):
            pl_module.total_steps = self._total_steps

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if any(schedule.reduce_on_plateau for schedule in trainer.lr_scheduler_configs):
            self._curve_due = math.inf

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.epoch_length is not None:
            end = (trainer.current_epoch + 1) * self.epoch_length
            trainer.check_val_every_n_epoch = 1 if end in self._checks else NEVER

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self.epoch_length is None:
            ends_step = (batch_idx + 1) % self._batches_per_step == 0 or trainer.is_last_batch
            due = ends_step and trainer.global_step + 1 in self._checks
            trainer.val_check_batch = 1 if due else NEVER
        set_progress(pl_module.criterion, trainer.global_step / self._total_steps)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, *args: Any
    ) -> None:
        self._check_stop()
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if isinstance(loss, Tensor):
            self._unchecked += loss.detach().flatten()
        if len(self._unchecked) >= CHECK_INTERVAL:
            self._check_losses(trainer)
        if trainer.global_step > self._steps_seen:
            self._steps_seen = trainer.global_step
            self._on_step()
        if self._curve_due <= trainer.global_step < self._total_steps:
            self._add_to_curve(trainer)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._check_losses(trainer)
        set_progress(pl_module.criterion, trainer.global_step / self._total_steps)

    def on_validation_batch_end(self, *args: Any, **kwargs: Any) -> None:
        self._check_stop()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        step, value = trainer.global_step, logged_metric(trainer, pl_module, self._metric)
        if self._on_curve_validation or step == self._total_steps:
            self.curve += [(step, value)] if math.isfinite(value) else []
        if not self._on_curve_validation:
            self.last_step = step
            self.values.append(value)
            self._on_validation(step, value)

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise StopRequested

    def _check_losses(self, trainer: pl.Trainer) -> None:
        losses, self._unchecked = self._unchecked, []
        if losses and not torch.stack(losses).isfinite().all():
            raise Diverged(f"the loss is not finite at step {trainer.global_step}")

    def _add_to_curve(self, trainer: pl.Trainer) -> None:
        """Validate for the curve, or later if that takes too large a share of the time."""
        begin = time.perf_counter()
        # The cheapest one counts: others were slowed down by other processes.
        spent = len(self._curve_times) * min(self._curve_times, default=0.0)
        if spent > SHARE * (begin - self._began):
            return
        interval = self._total_steps / POINTS
        self._curve_due = (trainer.global_step // interval + 1) * interval
        callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
        connector = trainer._logger_connector
        first = connector._first_loop_iter
        # Early stopping and the like must not act on what they would not have seen.
        trainer.callbacks = [self]  # type: ignore[attr-defined]
        self._on_curve_validation = True
        with isolate_rng():
            trainer.validating = True
            trainer.fit_loop.epoch_loop.val_loop.run()
            trainer.training = True
        self._on_curve_validation = False
        trainer.callbacks = callbacks  # type: ignore[attr-defined]
        # As Lightning does after a validation between two batches.
        connector._first_loop_iter = first
        self._curve_times.append(time.perf_counter() - begin)


class CannotScale(Exception):
    """A module's learning rate cannot be multiplied; the message says why."""


def scale_learning_rates(optimizers: Sequence[Any], factor: float) -> None:
    """Let optimizers take all further steps with their learning rates times a factor.

    The rates that schedules and the module see stay as they are.

    Raises:
        CannotScale: If an optimizer has no learning rate; later, in a step, if the module sets the
            rate while the step is under way.
    """
    if not optimizers:
        raise CannotScale("it gives the Trainer no optimizer")
    for optimizer in optimizers:
        name = type(optimizer).__name__
        if not isinstance(optimizer, Optimizer):
            raise CannotScale(f"its optimizer {name} is not a torch.optim.Optimizer")
        if any("lr" not in group for group in optimizer.param_groups):
            raise CannotScale(f"its optimizer {name} has no learning rate")
        _scale_steps(optimizer, factor)


def _scale_steps(optimizer: Optimizer, factor: float) -> None:
    rates: list[tuple[Any, Any]] = []

    def begin(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        rates[:] = [(group["lr"], group["lr"] * factor) for group in optimizer.param_groups]
        for group, (_, scaled) in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = scaled

    def end(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for group, (own, scaled) in zip(optimizer.param_groups, rates, strict=True):
            # With automatic optimization the training step runs inside the optimizer's.
            if group["lr"] is not scaled:
                raise CannotScale("it sets the learning rate in the middle of an optimizer's step")
            group["lr"] = own

    optimizer.register_step_pre_hook(begin)
    optimizer.register_step_post_hook(end)
