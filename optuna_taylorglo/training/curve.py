"""The validation metric over the course of a training, without a trace in the training itself."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.utilities.seed import isolate_rng

from lightning_modules.classifier import Classifier
from optuna_taylorglo.errors import StopRequested

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
