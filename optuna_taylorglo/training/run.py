"""Trains a network as a recipe says, with any criterion, and watches its validation metric."""

from __future__ import annotations

import copy
import inspect
import logging
import math
import threading
import warnings
from collections.abc import Callable, Collection
from typing import Any, Self

import pytorch_lightning as pl
from torch import nn

from lightning_modules.classifier import Classifier
from optuna_taylorglo.errors import RecipeError, UsageError
from optuna_taylorglo.recipes.class_paths import data_module_class, model_class
from optuna_taylorglo.recipes.schema import Component, Recipe
from optuna_taylorglo.training.callback import NEVER, OnValidation, TrainingCallback
from optuna_taylorglo.training.class_weights import with_settled_weights
from optuna_taylorglo.training.fitness import bundled_metric, warn_of_own_loss
from optuna_taylorglo.training.machine import Machine
from optuna_taylorglo.training.own_criterion import refuse_lost_settings

OnTrained = Callable[[pl.LightningModule], None]


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
        self.recipe = with_settled_weights(recipe, loader, n_classes)
        if not isinstance(self._build_module(nn.CrossEntropyLoss()), Classifier):
            warn_of_own_loss(recipe.fitness)

    def in_steps(self, amount: int, unit: str) -> int:
        """A length in "steps" or "epochs" as a number of optimiser steps."""
        return amount if unit == "steps" else amount * self.steps_per_pass

    def at_learning_rate(self, rate: float) -> Self:
        """The same at another learning rate, without a look at data and network again."""
        other = copy.copy(self)
        optimiser = self.recipe.optimiser.changed(lr=rate)
        other.recipe = self.recipe.changed(optimiser=optimiser)
        return other

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
        watch = TrainingCallback(self.recipe.fitness.metric, checks, on_validation, stop)
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
        if self.recipe.fitness.take == "last":
            return watch.values[-1]
        return max(watch.values, key=lambda value: self.recipe.fitness.sign * value)

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
            refuse_lost_settings(getattr(built, "criterion", None), self.recipe.loss)
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
            metric=bundled_metric(self.recipe.fitness, self.n_classes),
            num_classes=self.n_classes,
            ignore_index=self.recipe.loss.ignore_index,
        )

    def _build_trainer(
        self,
        watch: TrainingCallback,
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
            val_check_interval=NEVER,
            check_val_every_n_epoch=None,
            **settings,
        )


def test_metric(recipe: Recipe) -> str:
    """Name of the fitness metric on the test set: ``test_accuracy`` for ``val_accuracy``."""
    return "test_" + recipe.fitness.metric.removeprefix("val_")


def _build(cls: type[Any], component: Component, field: str, offered: dict[str, Any]) -> Any:
    """An instance of a recipe's class; what it takes of `offered` is passed besides its own."""
    signature = inspect.signature(cls)
    taken = {name: value for name, value in offered.items() if name in signature.parameters}
    arguments = taken | component.init_args
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise _cannot_build(component, field, error) from error
    try:
        return cls(**arguments)
    # Any other error is one inside the class, whose author needs the traceback.
    except UsageError as error:
        raise _cannot_build(component, field, error) from error


def _cannot_build(component: Component, field: str, error: Exception) -> RecipeError:
    return RecipeError(
        f"{field}.init_args",
        f"{component.init_args!r} cannot build {component.class_path}: {error}",
    )


def _quieten_lightning() -> None:
    for name in ("pytorch_lightning.utilities.rank_zero", "pytorch_lightning.accelerators.cuda"):
        logging.getLogger(name).setLevel(logging.WARNING)
