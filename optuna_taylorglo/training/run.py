"""Trains a network as a recipe says, with any criterion, and watches its validation metric."""

from __future__ import annotations

import inspect
import logging
import math
import threading
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from lightning_modules.classifier import Classifier
from optuna_taylorglo.errors import Diverged, RecipeError, StopRequested
from optuna_taylorglo.recipes.class_paths import data_module_class, model_class
from optuna_taylorglo.recipes.schema import Component, Recipe
from optuna_taylorglo.training.memory import keep_freed_memory
from optuna_taylorglo.training.precision import Precision, PrecisionName, resolve_precision

_NEVER = 10**9
_STEPS_BETWEEN_CHECKS = 10

OnValidation = Callable[[int, float], None]
OnTrained = Callable[[pl.LightningModule], None]


@dataclass(frozen=True)
class Machine:
    """What belongs to the machine and not to the recipe.

    Attributes:
        data_dir: Where data sets lie.
        device: "auto", "cpu", "cuda", "mps" or one device such as "cuda:1".
        precision: "auto", or a precision of `optuna_taylorglo.training.precision`.
        allowed_packages: Packages, besides the bundled ones, whose classes a recipe may name.
    """

    data_dir: Path = Path("data")
    device: str = "auto"
    precision: PrecisionName = "auto"
    allowed_packages: tuple[str, ...] = ()

    @cached_property
    def torch_device(self) -> torch.device:
        """The device that trains.

        Raises:
            ValueError: If this machine has no such device.
        """
        present = {
            "cuda": torch.cuda.is_available(),
            "mps": torch.backends.mps.is_available(),
            "cpu": True,
        }
        if self.device == "auto":
            return torch.device(next(name for name in present if present[name]))
        try:
            device = torch.device(self.device)
        except RuntimeError:
            device = None
        if device is None or not present.get(device.type):
            available = ", ".join(["auto", *(name for name in present if present[name])])
            raise ValueError(f"device {self.device!r} is not on this machine; it has {available}.")
        return device

    def prepare(self, *, threads: int) -> None:
        """Set this process up: one device that exists, so many CPU threads, memory that stays."""
        torch.set_num_threads(threads)
        if self.torch_device.type == "cpu":
            keep_freed_memory()

    @cached_property
    def resolved_precision(self) -> Precision:
        """Precision and memory format on that device."""
        return resolve_precision(self.precision, self.torch_device)


class Training:
    """Builds the recipe's data and network afresh for each training and trains them.

    Args:
        recipe: The recipe.
        machine: Where it runs.

    Attributes:
        n_classes: Number of classes of the data.
        steps_per_pass: Optimiser steps that one pass over the training data takes.

    Raises:
        RecipeError: If the recipe names something that cannot be built.
    """

    def __init__(self, recipe: Recipe, machine: Machine) -> None:
        _quieten_lightning()
        self.recipe = recipe
        self.machine = machine
        self._data_class = data_module_class(recipe.data.class_path, machine.allowed_packages)
        self._model_class = model_class(recipe.model.class_path, machine.allowed_packages)
        data = self._build_data(seed=0)
        data.prepare_data()
        data.setup("fit")
        n_classes = getattr(data, "num_classes", None)
        if not isinstance(n_classes, int) or n_classes < 2:
            raise RecipeError(
                "data.class_path",
                f"{recipe.data.class_path} has num_classes {n_classes!r}; a data module must say "
                "in this attribute how many classes there are, at least 2",
            )
        self.n_classes = n_classes
        loader = data.train_dataloader()
        self.steps_per_pass: int = getattr(loader, "steps_per_epoch", None) or len(loader)
        self._build_module(nn.CrossEntropyLoss())

    def in_steps(self, amount: int, unit: str) -> int:
        """A length in "steps" or "epochs" as a number of optimiser steps."""
        return amount if unit == "steps" else amount * self.steps_per_pass

    def run(
        self,
        criterion: nn.Module,
        *,
        seed: int,
        steps: int,
        on_validation: OnValidation = lambda step, value: None,
        check_at: Collection[int] = (),
        on_test_set: bool = False,
        on_trained: OnTrained = lambda module: None,
        stop: threading.Event | None = None,
    ) -> float:
        """Train one network and return how good it is.

        Args:
            criterion: Loss with cross-entropy's signature.
            seed: Decides initial weights, order of data, dropout and augmentation.
            steps: Optimiser steps to take.
            on_validation: Called with the step and the metric after each validation; what it
                raises ends the training.
            check_at: Steps at which to validate besides the end.
            on_test_set: Judge the trained network by the test set and not by the recipe's fitness.
            on_trained: Called with the trained module.
            stop: Ends the training with `StopRequested` when set.

        Returns:
            The recipe's fitness, the last or the best validation's metric; or the same metric on
            the test set after the last step.

        Raises:
            Diverged: If the loss stopped being finite.
            StopRequested: If `stop` was set.
        """
        pl.seed_everything(seed, verbose=False)
        module = self._build_module(criterion)
        data = self._build_data(seed)
        checks = {steps, *(step for step in check_at if step < steps)}
        if self.recipe.fitness.take == "best":
            checks |= set(range(self.steps_per_pass, steps, self.steps_per_pass))
        watch = _Watch(self.recipe.fitness.metric, checks, on_validation, stop)
        trainer = self._build_trainer(watch, data, steps, math.gcd(*checks))
        with warnings.catch_warnings():
            # Lightning advises on loaders with worker processes, which whole batches do not need.
            warnings.filterwarnings("ignore", ".*does not have many workers.*")
            warnings.filterwarnings("ignore", ".*`IterableDataset` has `__len__`.*")
            trainer.fit(module, datamodule=data)
            on_trained(module)
            if on_test_set:
                return self._test(trainer, module, data)
            if watch.last_step != steps:
                trainer.validate(module, datamodule=data, verbose=False)
        return watch.values[-1] if self.recipe.fitness.take == "last" else max(watch.values)

    def _test(
        self, trainer: pl.Trainer, module: pl.LightningModule, data: pl.LightningDataModule
    ) -> float:
        metric = test_metric(self.recipe)
        (results,) = trainer.test(module, datamodule=data, verbose=False)
        if metric not in results:
            logged = ", ".join(sorted(results)) or "nothing"
            raise RecipeError(
                "fitness.metric",
                f"{metric!r}, its counterpart on the test set, is not logged by "
                f"{type(module).__name__}, which logs {logged}",
            )
        return float(results[metric])

    def _build_data(self, seed: int) -> pl.LightningDataModule:
        offered = {
            "data_dir": self.machine.data_dir,
            "batch_size": self.recipe.batch_size,
            "seed": seed,
        }
        data: pl.LightningDataModule = _build(self._data_class, self.recipe.data, "data", offered)
        return data

    def _build_module(self, criterion: nn.Module) -> pl.LightningModule:
        offered = {"num_classes": self.n_classes}
        built = _build(self._model_class, self.recipe.model, "model", offered)
        if isinstance(built, pl.LightningModule):
            built.criterion = criterion
            return built
        schedule = self.recipe.schedule
        milestones = [self.in_steps(m, schedule.unit) for m in schedule.milestones]
        return Classifier(
            built,
            criterion,
            optimiser=self.recipe.optimiser,
            # In steps, because an epoch of the Trainer is the way to a validation here.
            schedule=schedule.changed(unit="steps", milestones=milestones),
            channels_last=self.machine.resolved_precision.channels_last,
        )

    def _build_trainer(
        self,
        watch: _Watch,
        data: pl.LightningDataModule,
        steps: int,
        common_interval: int,
    ) -> pl.Trainer:
        device = self.machine.torch_device
        settings: dict[str, Any] = {
            "accelerator": {"cuda": "gpu"}.get(device.type, device.type),
            "devices": 1 if device.index is None else [device.index],
            "precision": self.machine.resolved_precision.trainer,
            "callbacks": [watch],
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "num_sanity_val_steps": 0,
        }
        if hasattr(data, "steps_per_epoch"):
            data.steps_per_epoch = common_interval
            watch.epoch_length = common_interval
            return pl.Trainer(max_epochs=steps // common_interval, **settings)
        return pl.Trainer(
            max_steps=steps,
            max_epochs=-1,
            val_check_interval=_NEVER,
            check_val_every_n_epoch=None,
            **settings,
        )


def test_metric(recipe: Recipe) -> str:
    """Name of the fitness metric on the test set: ``test_accuracy`` for ``val_accuracy``."""
    return "test_" + recipe.fitness.metric.removeprefix("val_")


class _Watch(pl.Callback):
    """Passes validations on, and ends a training that diverged or that is to stop.

    It also tells a criterion in ``t`` how far training is, if the module is not a `Classifier`,
    which does so itself.

    Args:
        metric: Name of the metric to pass on.
        checks: Steps at which to validate.
        on_validation: Called with step and metric.
        stop: Ends the training when set.
    """

    def __init__(
        self,
        metric: str,
        checks: set[int],
        on_validation: OnValidation,
        stop: threading.Event | None,
    ) -> None:
        self.metric = metric
        self.checks = checks
        self.on_validation = on_validation
        self.stop = stop or threading.Event()
        self.epoch_length: int | None = None
        self.last_step: int | None = None
        self.values: list[float] = []
        self._unchecked: list[Tensor] = []

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.epoch_length is not None:
            end = (trainer.current_epoch + 1) * self.epoch_length
            trainer.check_val_every_n_epoch = 1 if end in self.checks else _NEVER

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self.epoch_length is None:
            trainer.val_check_batch = 1 if trainer.global_step + 1 in self.checks else _NEVER
        progress = getattr(pl_module.criterion, "progress", None)
        if isinstance(progress, Tensor) and not isinstance(pl_module, Classifier):
            progress.fill_(trainer.global_step / max(self.checks))

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
            self._unchecked.append(loss.detach())
        if len(self._unchecked) >= _STEPS_BETWEEN_CHECKS:
            self._check_divergence(trainer.global_step)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._check_divergence(trainer.global_step)

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

    def _check_divergence(self, step: int) -> None:
        losses, self._unchecked = self._unchecked, []
        if losses and not torch.stack(losses).isfinite().all():
            raise Diverged(f"the loss is not finite at step {step}")


def _build(cls: type[Any], component: Component, field: str, offered: dict[str, Any]) -> Any:
    """An instance of a recipe's class; what it takes of `offered` is passed besides its own."""
    parameters = inspect.signature(cls).parameters
    taken = {name: value for name, value in offered.items() if name in parameters}
    try:
        return cls(**(taken | component.init_args))
    except (TypeError, ValueError) as error:
        raise RecipeError(
            f"{field}.init_args",
            f"{component.init_args!r} cannot build {component.class_path}: {error}",
        ) from error


def _quieten_lightning() -> None:
    for name in ("pytorch_lightning.utilities.rank_zero", "pytorch_lightning.accelerators.cuda"):
        logging.getLogger(name).setLevel(logging.WARNING)
