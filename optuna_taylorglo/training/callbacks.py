"""What follows a training from outside: validations, divergence, curves, learning rates."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.seed import isolate_rng
from torch import Tensor
from torch.optim import Optimizer

from lightning_modules.classifier import Classifier, set_progress
from optuna_taylorglo.errors import Diverged, RecipeError, StopRequested

NEVER = 10**9

CHECK_INTERVAL = 10  # steps between looks at the losses, each of which waits for the device

# Validations of a curve, the one at the end included: of a verdict's training and of a candidate's.
POINTS, CANDIDATE_POINTS = 12, 4
SHARE = 0.1  # of a training's time, above which there are fewer

Curve = list[tuple[int, float]]  # steps and the metric there
OnValidation = Callable[[int, float], None]
OnCurve = Callable[[Curve], None]


def logged_metric(trainer: pl.Trainer, module: pl.LightningModule, name: str) -> float:
    """A metric that a module must have logged."""
    if name not in trainer.callback_metrics:
        logged = ", ".join(sorted(trainer.callback_metrics)) or "nothing"
        message = f"{name!r} is not logged by {type(module).__name__}, which logs {logged}"
        raise RecipeError("fitness.metric", message)
    return float(trainer.callback_metrics[name])


@dataclass(eq=False)
class TrainingCallback(pl.Callback):
    """Passes validations on, ends a training that diverged or is to stop, measures its curve.

    It also tells a criterion in `t` how far training is.

    A training with a curve is bit-identical to one without: random numbers that a validation for
    it draws are put back, and callbacks of the recipe do not see it. A training whose learning
    rate follows a validation metric gets none, for the same reason.
    """

    metric: str
    checks: set[int]  # steps at which to validate; the last one ends the training
    on_validation: OnValidation
    stop: threading.Event | None
    epoch_length: int | None  # in optimizer steps, if a batch may hold several
    batches_per_step: int  # otherwise
    learning_rate_factor: float  # on the learning rates of the module's optimizers
    curve_points: int | None  # None: as many as their time allows, up to `POINTS`; 0: no curve
    validations: dict[int, float] = field(default_factory=dict, init=False)
    curve: Curve = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._total_steps = max(self.checks)
        self._unchecked: list[Tensor] = []
        self._interval = math.inf
        if self.curve_points != 0:
            self._interval = self._total_steps / (self.curve_points or POINTS)
        self._curve_due = self._interval
        self._on_curve_validation = False
        self._began = time.perf_counter()
        self._curve_time = 0.0

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.learning_rate_factor != 1:
            scale_learning_rates(trainer.optimizers, self.learning_rate_factor)
        if isinstance(pl_module, Classifier):
            pl_module.total_steps = self._total_steps
        if any(schedule.reduce_on_plateau for schedule in trainer.lr_scheduler_configs):
            self._curve_due = math.inf

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        ends_step, step = trainer.is_last_batch, trainer.global_step + 1
        if self.epoch_length is not None:
            step = (trainer.current_epoch + 1) * self.epoch_length
        elif (batch_idx + 1) % self.batches_per_step == 0:
            ends_step = True
        trainer.val_check_batch = 1 if ends_step and step in self.checks else NEVER
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
        if self._curve_due <= trainer.global_step < self._total_steps:
            self._add_to_curve(trainer)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._check_losses(trainer)
        set_progress(pl_module.criterion, trainer.global_step / self._total_steps)

    def on_validation_batch_end(self, *args: Any, **kwargs: Any) -> None:
        self._check_stop()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        step, value = trainer.global_step, logged_metric(trainer, pl_module, self.metric)
        if math.isfinite(value) and (self._on_curve_validation or step == self._total_steps):
            self.curve.append((step, value))
        if not self._on_curve_validation:
            self.validations[step] = value
            self.on_validation(step, value)

    def _check_stop(self) -> None:
        if self.stop is not None and self.stop.is_set():
            raise StopRequested

    def _check_losses(self, trainer: pl.Trainer) -> None:
        losses, self._unchecked = self._unchecked, []
        if losses and not torch.stack(losses).isfinite().all():
            raise Diverged(f"the loss is not finite at step {trainer.global_step}")

    def _add_to_curve(self, trainer: pl.Trainer) -> None:
        """Validate for the curve, or later if that takes too large a share of the time."""
        begin = time.perf_counter()
        if self.curve_points is None and self._curve_time > SHARE * (begin - self._began):
            return
        self._curve_due = (trainer.global_step // self._interval + 1) * self._interval
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
        self._curve_time += time.perf_counter() - begin


class CannotScale(Exception):
    """A module's learning rate cannot be multiplied; the message says why."""


def scale_learning_rates(optimizers: Sequence[Any], factor: float) -> None:
    """Let optimizers take all further steps with their learning rates times a factor.

    The rates that schedules and the module see stay as they are.
    """

    def before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for group in optimizer.param_groups:
            group["own_lr"], group["scaled_lr"] = group["lr"], group["lr"] * factor
            group["lr"] = group["scaled_lr"]

    def after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for group in optimizer.param_groups:
            # With automatic optimization the training step runs inside the optimizer's.
            if group["lr"] is not group.pop("scaled_lr"):
                raise CannotScale("it sets the learning rate in the middle of an optimizer's step")
            group["lr"] = group.pop("own_lr")

    if not optimizers:
        raise CannotScale("it gives the Trainer no optimizer")
    for optimizer in optimizers:
        if any("lr" not in group for group in optimizer.param_groups):
            raise CannotScale(f"its optimizer {type(optimizer).__name__} has no learning rate")
        optimizer.register_step_pre_hook(before_step)
        optimizer.register_step_post_hook(after_step)
