"""What follows a training from outside: validations, divergence, curves, learning rates."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.utilities.seed import isolate_rng
from torch import Tensor
from torch.optim import Optimizer

from lightning_modules.classifier import Classifier
from lightning_modules.monitor import TrainingMonitor
from optuna_taylorglo.errors import RecipeError, StopRequested


class CannotScale(Exception):
    """A module's learning rate cannot be multiplied; the message says why."""


def scale_learning_rates(optimizers: Sequence[Any], factor: float) -> None:
    """Let optimizers take all further steps with their learning rates times a factor.

    Args:
        optimizers: What the Trainer holds.
        factor: The factor.

    Raises:
        CannotScale: If one of them has no learning rate; later, in a step, if the module sets the
            rate while the step is under way.
    """
    if not optimizers:
        raise CannotScale("it gives the Trainer no optimizer")
    for optimizer in optimizers:
        name = type(optimizer).__name__
        if not isinstance(optimizer, Optimizer):
            raise CannotScale(f"its optimizer {name} is none of PyTorch's kind")
        if any("lr" not in group for group in optimizer.param_groups):
            raise CannotScale(f"its optimizer {name} has no learning rate")
        scaled = _ScaledSteps(factor)
        optimizer.register_step_pre_hook(scaled.begin)
        optimizer.register_step_post_hook(scaled.end)


class _ScaledSteps:
    """The two hooks of one optimizer."""

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._own: list[Any] = []
        self._used: list[Any] = []

    def begin(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._own = [group["lr"] for group in optimizer.param_groups]
        self._used = [rate * self._factor for rate in self._own]
        self._set(optimizer, self._used)

    def end(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        # With automatic optimization the training step runs inside the optimizer's.
        for group, used in zip(optimizer.param_groups, self._used, strict=True):
            if group["lr"] is not used:
                raise CannotScale("it sets the learning rate in the middle of an optimizer's step")
        self._set(optimizer, self._own)

    @staticmethod
    def _set(optimizer: Optimizer, rates: list[Any]) -> None:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


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


Curve = list[tuple[int, float]]
"""Steps and what the metric was there."""

OnCurve = Callable[[Curve], None]

POINTS = 12
"""Validations of a curve, the one at the end included, if time allows."""

SHARE = 0.05
"""Share of a training's time above which there are fewer."""


class CurveCallback(pl.Callback):
    """Validates now and then, for little of the time, at steps about evenly apart.

    What is trained is the same to the last bit as without it: random numbers that a validation
    draws are put back, and callbacks of the recipe do not hear of it. A training whose learning
    rate follows a validation metric gets no curve, for the same reason. What a module of one's own
    does in its hooks around validations happens more often.

    Args:
        metric: Name of the metric, such as ``val_accuracy``.
        steps: Optimizer steps of the training. Of the last one there is a validation anyway.
        stop: Ends a validation when set.

    Attributes:
        curve: Steps and values, the end left out.
    """

    def __init__(self, metric: str, steps: int, stop: threading.Event | None = None) -> None:
        self.metric = metric
        self.curve: Curve = []
        self._steps = steps
        self._stop = stop or threading.Event()
        self._due = steps / POINTS
        self._began = 0.0
        self._done = 0
        self._cost = math.inf
        self._loader: Any = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._began = time.perf_counter()
        if any(schedule.reduce_on_plateau for schedule in trainer.lr_scheduler_configs):
            self._due = math.inf

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any
    ) -> None:
        step = trainer.global_step
        if not self._due <= step < self._steps:
            return
        # Where batches come in chunks, or validations are too dear, it comes a little later. They
        # are as dear as the cheapest: others were slowed down by what else the machine does.
        begin = time.perf_counter()
        if self._done and self._done * self._cost > SHARE * (begin - self._began):
            return
        interval = self._steps / POINTS
        self._due = (step // interval + 1) * interval
        with isolate_rng():
            value = self._validate(trainer, pl_module)
        if math.isfinite(value):
            self.curve.append((step, value))
        self._done += 1
        self._cost = min(self._cost, time.perf_counter() - begin)

    def _validate(self, trainer: pl.Trainer, module: pl.LightningModule) -> float:
        if isinstance(module, Classifier):
            if self._loader is None:
                self._loader = trainer.datamodule.val_dataloader()  # type: ignore[attr-defined]
            # Lightning's loop takes ten times as long for a small network.
            return module.measure(self.metric, self._batches(trainer))
        return self._validate_by_lightning(trainer)

    def _validate_by_lightning(self, trainer: pl.Trainer) -> float:
        callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
        connector = trainer._logger_connector
        first = connector._first_loop_iter
        # Early stopping and the like must not act on what they would not have seen.
        trainer.callbacks = [self]  # type: ignore[attr-defined]
        trainer.validating = True
        trainer.fit_loop.epoch_loop.val_loop.run()
        trainer.training = True
        trainer.callbacks = callbacks  # type: ignore[attr-defined]
        # As Lightning does after a validation between two batches.
        connector._first_loop_iter = first
        return float(trainer.callback_metrics.get(self.metric, math.nan))

    def on_validation_batch_end(self, *args: Any, **kwargs: Any) -> None:
        self._check_stop()

    def _batches(self, trainer: pl.Trainer) -> Iterator[Any]:
        """Validation batches as a `validation_step` gets them."""
        with trainer.precision_plugin.val_step_context():
            for batch in self._loader:
                self._check_stop()
                yield trainer.strategy.batch_to_device(batch, dataloader_idx=0)

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise StopRequested
