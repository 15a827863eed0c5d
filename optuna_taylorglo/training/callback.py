"""Follows a training from outside: validations, divergence, and the request to stop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl
from torch import Tensor

from lightning_modules.classifier import Classifier
from lightning_modules.monitor import TrainingMonitor
from optuna_taylorglo.errors import RecipeError, StopRequested
from optuna_taylorglo.training.learning_rate import scale_learning_rates

NEVER = 10**9

OnValidation = Callable[[int, float], None]


class TrainingCallback(pl.Callback):
    """Passes validations on, and ends a training that diverged or that is to stop.

    It also tells a criterion in ``t`` how far training is, if the module is not a `Classifier`,
    which does so itself.

    Args:
        metric: Name of the metric to pass on.
        checks: Steps at which to validate.
        on_validation: Called with step and metric.
        stop: Ends the training when set.
        batches_per_step: Batches whose gradients make one optimizer step.
        learning_rate_factor: On the learning rates of the module's optimizers.
        on_step: Called after each batch on which an optimizer step was taken.
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
    ) -> None:
        self.metric = metric
        self.checks = checks
        self.on_validation = on_validation
        self.stop = stop or threading.Event()
        self.batches_per_step = batches_per_step
        self.learning_rate_factor = learning_rate_factor
        self.on_step = on_step
        self.epoch_length: int | None = None
        self.last_step: int | None = None
        self.values: list[float] = []
        self._steps_seen = 0
        self._monitor = TrainingMonitor(total_steps=max(checks))

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.learning_rate_factor != 1:
            scale_learning_rates(trainer.optimizers, self.learning_rate_factor)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.epoch_length is not None:
            end = (trainer.current_epoch + 1) * self.epoch_length
            trainer.check_val_every_n_epoch = 1 if end in self.checks else NEVER

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self.epoch_length is None:
            ends_step = (batch_idx + 1) % self.batches_per_step == 0 or trainer.is_last_batch
            due = ends_step and trainer.global_step + 1 in self.checks
            trainer.val_check_batch = 1 if due else NEVER
        if not isinstance(pl_module, Classifier):
            self._monitor.tell_progress(pl_module.criterion, trainer.global_step)

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        self._check_stop()
        # A `Classifier` looks after itself; other modules hand their loss to Lightning.
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if isinstance(loss, Tensor):
            self._monitor.observe([loss.detach()], trainer.global_step)
        if trainer.global_step > self._steps_seen:
            self._steps_seen = trainer.global_step
            self.on_step()

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._monitor.check(trainer.global_step)

    def on_validation_batch_end(self, *args: Any, **kwargs: Any) -> None:
        self._check_stop()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.metric not in trainer.callback_metrics:
            logged = ", ".join(sorted(trainer.callback_metrics)) or "nothing"
            raise RecipeError(
                "fitness.metric",
                f"{self.metric!r} is not logged by {type(pl_module).__name__}, which logs {logged}",
            )
        self.last_step = trainer.global_step
        self.values.append(float(trainer.callback_metrics[self.metric]))
        self.on_validation(self.last_step, self.values[-1])

    def _check_stop(self) -> None:
        if self.stop.is_set():
            raise StopRequested
