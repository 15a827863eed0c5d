"""Trains a network as a recipe says, with any criterion, and watches its validation metric."""

from __future__ import annotations

import copy
import inspect
import logging
import math
import pickle
import threading
import warnings
from collections.abc import Callable, Collection
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from lightning_modules.classifier import Classifier
from lightning_modules.metrics import MODES
from optuna_taylorglo.errors import RecipeError, UsageError
from optuna_taylorglo.recipes.class_paths import (
    callback_class,
    data_module_class,
    data_module_for,
    lightning_of,
    logger_class,
    model_class,
)
from optuna_taylorglo.recipes.schema import FitnessSettings, Recipe, own_loss_warning
from optuna_taylorglo.recipes.settings import (
    CheckpointSettings,
    Component,
    OptimizerSettings,
    ScheduleSettings,
    TrainerSettings,
)
from optuna_taylorglo.training.callbacks import (
    NEVER,
    CannotScale,
    CurveCallback,
    OnCurve,
    OnValidation,
    TrainingCallback,
)
from optuna_taylorglo.training.criterion import refuse_lost_settings, with_settled_weights
from optuna_taylorglo.training.runtime import Precision, RuntimeConfig, resolve_precision

_SHOWN = 5
"""Names of weights in a message, at most."""


class Checkpoint:
    """The weights of a file, for any number of networks.

    Args:
        settings: Which file, and what of it is left out.
        data_dir: Where a relative path begins.

    Raises:
        RecipeError: If the file cannot be read or holds no weights.
    """

    def __init__(self, settings: CheckpointSettings, data_dir: Path) -> None:
        self.settings = settings
        self.path = data_dir / settings.path
        self._weights = _read(self.path)

    def load_into(self, network: nn.Module) -> None:
        """Put the weights into a network, every one of them but those that are to be skipped.

        Raises:
            RecipeError: If names or shapes do not fit.
        """
        own = network.state_dict()
        weights = self._named_for(own)
        given = {name: value for name, value in weights.items() if not self._skips(name)}
        problems = [
            *_problem("is without", [n for n in own if n not in given and not self._skips(n)]),
            *_problem("has besides", [n for n in given if n not in own]),
            *_problem(
                "has in another shape",
                [
                    f"{n} {tuple(given[n].shape)} for {tuple(own[n].shape)}"
                    for n in given
                    if n in own and given[n].shape != own[n].shape
                ],
            ),
        ]
        if problems:
            raise RecipeError(
                "checkpoint",
                f"{self.path} does not fit {type(network).__name__}: it {'; it '.join(problems)}. "
                "Names that begin with a text in checkpoint.skip are left out",
            )
        network.load_state_dict(given, strict=False)

    def _skips(self, name: str) -> bool:
        return name.startswith(self.settings.skip)

    def _named_for(self, own: dict[str, Any]) -> dict[str, Tensor]:
        """The weights under a network's own names: a module of ours holds the network as `net`."""
        inside = {n.removeprefix("net."): v for n, v in self._weights.items() if n[:4] == "net."}
        fits = any(name in own for name in self._weights)
        return self._weights if fits or not inside else inside


def _read(path: Path) -> dict[str, Tensor]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise RecipeError("checkpoint.path", f"{path} cannot be read: {error.strerror}") from error
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise RecipeError(
            "checkpoint.path",
            f"{path} cannot be read as weights, must be what torch.save makes of a state dict, or "
            f"a Lightning checkpoint: {str(error).splitlines()[0]}",
        ) from error
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if (
        not isinstance(content, dict)
        or not content
        or not all(isinstance(value, Tensor) for value in content.values())
    ):
        raise RecipeError("checkpoint.path", f"{path} holds no state dict")
    return content


def _problem(what: str, names: list[str]) -> list[str]:
    if not names:
        return []
    shown = ", ".join(names[:_SHOWN])
    rest = len(names) - _SHOWN
    return [f"{what} {shown}" + (f" and {rest} more" if rest > 0 else "")]


logger = logging.getLogger(__name__)

_FEWEST_FOR_TOP_5 = 6


def bundled_metric(fitness: FitnessSettings, n_classes: int) -> str:
    """The metric that a `Classifier` has to log for a plain network's fitness.

    Args:
        fitness: The recipe's fitness.
        n_classes: Number of classes.

    Returns:
        Its name in `MODES`, without ``val_``.

    Raises:
        RecipeError: If there is no such metric, the other direction is better, the data have too
            few classes, or it is each candidate's own loss.
    """
    name = fitness.metric.removeprefix("val_")
    if fitness.metric == "val_loss":
        raise RecipeError(
            "fitness.metric",
            "val_loss is each candidate's own loss, so it cannot compare candidates; write "
            "metric: val_nll and mode: min, the cross-entropy of the predictions whatever loss "
            "trained them",
        )
    if name not in MODES or name == fitness.metric:
        known = ", ".join(f"val_{metric}" for metric in MODES)
        raise RecipeError(
            "fitness.metric",
            f"{fitness.metric!r} is not logged for a plain network, for which it may be {known}; "
            "a LightningModule may log any",
        )
    if fitness.mode != MODES[name]:
        better = "greater" if MODES[name] == "max" else "smaller"
        raise RecipeError(
            "fitness.mode",
            f"{fitness.mode} is not allowed with {fitness.metric}, of which {better} is better; "
            f"write mode: {MODES[name]}",
        )
    if name == "top5_accuracy" and n_classes < _FEWEST_FOR_TOP_5:
        raise RecipeError(
            "fitness.metric",
            f"val_top5_accuracy is 1 whatever is learnt, as the data have {n_classes} classes; it "
            f"needs {_FEWEST_FOR_TOP_5}, use val_accuracy",
        )
    return name


def warn_of_own_loss(fitness: FitnessSettings) -> None:
    """Say so in the log if an own module's metric may be made of the criterion."""
    if warning := own_loss_warning(fitness):
        logger.warning("%s", warning)


logger = logging.getLogger(__name__)

OnTrained = Callable[[pl.LightningModule], None]


class Training:
    """Builds the recipe's data and network afresh for each training and trains them.

    Args:
        recipe: The recipe.
        runtime: Where it runs.

    Attributes:
        n_classes: Number of classes of the data.
        own_optimizer: Whether the model is a LightningModule, which brings its own optimizer.
        steps_per_pass: Optimizer steps that one pass over the training data takes.

    Raises:
        RecipeError: If the recipe names something that cannot be built.
    """

    def __init__(self, recipe: Recipe, runtime: RuntimeConfig) -> None:
        _quieten_lightning()
        self.recipe = recipe
        self.runtime = runtime
        allowed = runtime.allowed_packages
        self._model_class = model_class(recipe.model.class_path, allowed)
        own_lightning = lightning_of(self._model_class)
        self.own_optimizer = own_lightning is not None
        self._lightning: ModuleType = own_lightning or pl
        self._data_class = data_module_for(
            data_module_class(recipe.data.class_path, allowed), self._lightning
        )
        self._trainer_parts = {
            field: [(find(part.class_path, allowed), part) for part in parts]
            for field, find, parts in (
                ("callbacks", callback_class, recipe.trainer.callbacks),
                ("loggers", logger_class, recipe.trainer.loggers),
            )
        }
        for field, parts in self._trainer_parts.items():
            for cls, part in parts:
                _check_arguments(cls, part, f"trainer.{field}", part.init_args)
        self._learning_rate_factor = 1.0
        self._checkpoint = (
            None if recipe.checkpoint is None else Checkpoint(recipe.checkpoint, runtime.data_dir)
        )
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
        self._check_loaders_exist()
        loader = data.train_dataloader()
        batches = self._count_batches(loader)
        # What is left at the end of an epoch makes a step, too.
        self.steps_per_pass = math.ceil(batches / recipe.trainer.accumulate_grad_batches)
        self.recipe = with_settled_weights(recipe, loader, n_classes)
        module = self._build_module(nn.CrossEntropyLoss())
        if self.own_optimizer:
            warn_of_own_loss(recipe.fitness)
            self._check_own_module(module)

    def _check_loaders_exist(self) -> None:
        for hook in ("train_dataloader", "val_dataloader"):
            if not self.data_has(hook):
                name = self.recipe.data.class_path
                raise RecipeError("data.class_path", f"{name} has no {hook}; write one")

    def _count_batches(self, loader: Any) -> int:
        """Batches of one pass over the training data."""
        recipe, name = self.recipe, self.recipe.data.class_path
        try:
            batches: int = getattr(loader, "steps_per_epoch", None) or len(loader)
        except TypeError as error:
            raise RecipeError(
                "data.class_path",
                f"{name}: its train_dataloader does not say how many batches it has ({error}); "
                "give its data set a __len__",
            ) from error
        if batches == 0:
            raise RecipeError(
                "batch_size",
                f"{recipe.batch_size} leaves {name} no training batch: there are fewer examples, "
                "and drop_last drops them",
            )
        return batches

    def in_steps(self, amount: int, unit: str) -> int:
        """A length in "steps" or "epochs" as a number of optimizer steps."""
        return amount if unit == "steps" else amount * self.steps_per_pass

    def at_learning_rate(self, rate: float) -> Self:
        """The same at another learning rate in place of the recipe's, without a look at data and
        network again."""
        optimizer = self._recipe_optimizer()
        if self.own_optimizer:
            return self.at_learning_rate_factor(rate / optimizer.lr)
        other = copy.copy(self)
        other.recipe = self.recipe.changed(optimizer=optimizer.changed(lr=rate))
        return other

    def at_learning_rate_factor(self, factor: float) -> Self:
        """The same with the learning rates of the module's own optimizers times a factor.

        Trainings raise `CannotScale` if the module does not let that be done.
        """
        if not self.own_optimizer:
            return self.at_learning_rate(self._recipe_optimizer().lr * factor)
        other = copy.copy(self)
        other._learning_rate_factor = factor
        return other

    def learning_rate_obstacle(self) -> str | None:
        """Why the learning rate cannot be multiplied, found by one step; None if it can."""
        try:
            self.at_learning_rate_factor(0.5).run(
                nn.CrossEntropyLoss(), seed=0, steps=1, on_step=_end_training
            )
        except CannotScale as obstacle:
            return f"{self.recipe.model.class_path} cannot be multiplied: {obstacle}"
        except _Enough:
            pass
        return None

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
        on_step: Callable[[], None] = lambda: None,
        stop: threading.Event | None = None,
        dry_run: pl.Callback | None = None,
        on_curve: OnCurve | None = None,
    ) -> float:
        """Train one network and return how good it is.

        Args:
            criterion: Loss with cross-entropy's signature.
            seed: Decides initial weights, order of data, dropout and augmentation.
            steps: Optimizer steps to take.
            on_validation: Called with the step and the metric after each validation; what it
                raises ends the training.
            check_at: Steps at which to validate besides the end.
            on_test_set: Judge the trained network by the test set and not by the recipe's fitness.
            on_trained: Called with the trained module.
            on_step: Called after each batch on which an optimizer step was taken; what it raises
                ends the training.
            stop: Ends the training with `StopRequested` when set.
            dry_run: Watches a training that leaves nothing behind and validates on one batch.
            on_curve: Called in the end with the validation metric over the course of the training,
                which is measured only if this is given, and changes nothing.

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
        watch = TrainingCallback(
            self.recipe.fitness.metric,
            checks,
            on_validation,
            stop,
            batches_per_step=self.recipe.trainer.accumulate_grad_batches,
            learning_rate_factor=self._learning_rate_factor,
            on_step=on_step,
        )
        curve = CurveCallback(self.recipe.fitness.metric, steps, stop)
        trainer = self._build_trainer(watch, data, steps, math.gcd(*checks), dry_run)
        if on_curve is not None:
            trainer.callbacks.append(curve)  # type: ignore[attr-defined]
        with warnings.catch_warnings():
            # Lightning advises on loaders with worker processes, which whole batches do not need.
            warnings.filterwarnings("ignore", ".*does not have many workers.*")
            warnings.filterwarnings("ignore", ".*`IterableDataset` has `__len__`.*")
            trainer.fit(module, datamodule=data)
            on_trained(module)
            if on_curve is not None:
                end = [(steps, watch.values[-1])] if watch.last_step == steps else []
                on_curve([*curve.curve, *end])
            if on_test_set:
                return self._test(trainer, module, data)
            if watch.last_step != steps:
                trainer.validate(module, datamodule=data, verbose=False)
        if self.recipe.fitness.take == "last":
            return watch.values[-1]
        return max(watch.values, key=lambda value: self.recipe.fitness.sign * value)

    def model_has(self, hook: str) -> bool:
        """Whether the model, a LightningModule, has a hook of its own."""
        base = self._lightning.LightningModule
        return getattr(self._model_class, hook) is not getattr(base, hook)

    def data_has(self, hook: str) -> bool:
        """Whether the data module has a hook of its own."""
        base = self._lightning.LightningDataModule
        return getattr(self._data_class, hook) is not getattr(base, hook)

    def first_validation_batch(self, seed: int) -> Any:
        """What the data module with a seed gives first, as its loader gives it."""
        data = self._build_data(seed)
        data.setup("fit")
        return next(iter(data.val_dataloader()))

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
            "data_dir": self.runtime.data_dir,
            "batch_size": self.recipe.batch_size,
            "seed": seed,
        }
        data: pl.LightningDataModule = _build(self._data_class, self.recipe.data, "data", offered)
        return data

    def _build_module(self, criterion: nn.Module) -> pl.LightningModule:
        offered = {"num_classes": self.n_classes}
        built = _build(self._model_class, self.recipe.model, "model", offered)
        if self._checkpoint is not None:
            self._checkpoint.load_into(built)
        if self.own_optimizer:
            refuse_lost_settings(getattr(built, "criterion", None), self.recipe.loss)
            built.criterion = criterion
            module: pl.LightningModule = built
            return module
        return Classifier(
            built,
            criterion,
            optimizer=self._recipe_optimizer(),
            schedule=self._schedule_in_steps(),
            schedule_length=self.in_steps(self.recipe.budget.full, self.recipe.budget.unit),
            trainer_settings=self.recipe.trainer,
            channels_last=self._precision.channels_last,
            metric=bundled_metric(self.recipe.fitness, self.n_classes),
            num_classes=self.n_classes,
            ignore_index=self.recipe.loss.ignore_index,
        )

    def _recipe_optimizer(self) -> OptimizerSettings:
        if self.recipe.optimizer is None:
            raise RecipeError(
                "optimizer",
                f"missing, must be there to train {self.recipe.model.class_path}, a plain net; "
                "only a LightningModule brings its own",
            )
        return self.recipe.optimizer

    def _schedule_in_steps(self) -> ScheduleSettings:
        """The schedule in steps, because an epoch of the Trainer is the way to a validation."""
        schedule, budget = self.recipe.schedule, self.recipe.budget
        warmup = self.in_steps(schedule.warmup, schedule.unit)
        full = self.in_steps(budget.full, budget.unit)
        if warmup >= full:
            raise RecipeError(
                "schedule.warmup",
                f"{schedule.warmup} {schedule.unit} are {warmup} steps, must be below the {full} "
                "of budget.full",
            )
        milestones = [self.in_steps(m, schedule.unit) for m in schedule.milestones]
        return schedule.changed(unit="steps", milestones=milestones, warmup=warmup)

    @cached_property
    def _precision(self) -> Precision:
        asked_for = self.recipe.trainer.precision
        if asked_for is None:
            return self.runtime.resolved_precision
        return resolve_precision(asked_for, self.runtime.torch_device)

    def _check_own_module(self, module: pl.LightningModule) -> None:
        """Tell what of the recipe a LightningModule does not use, and refuse what it cannot do."""
        recipe, name = self.recipe, self.recipe.model.class_path
        base = self._lightning.LightningModule
        if type(module).configure_optimizers is base.configure_optimizers:
            raise RecipeError(
                "model.class_path",
                f"{name} has no configure_optimizers, so nothing would train it; write it, or name "
                "a plain nn.Module, which the recipe's optimizer trains",
            )
        if recipe.optimizer is not None:
            logger.warning("optimizer: not used, %s configures its own", name)
        if recipe.schedule != ScheduleSettings():
            logger.warning("schedule: not used, %s configures its own", name)
        if module.automatic_optimization:
            return
        for field, fix in (
            ("gradient_clip_val", "call self.clip_gradients in its training_step"),
            ("accumulate_grad_batches", "step its optimizer every so many batches"),
        ):
            if (value := getattr(recipe.trainer, field)) != getattr(TrainerSettings(), field):
                raise RecipeError(
                    f"trainer.{field}",
                    f"{value:g} is not allowed with {name}, whose optimization is manual "
                    f"(automatic_optimization = False), where a Trainer cannot do it: {fix}",
                )

    def _build_trainer(
        self,
        watch: TrainingCallback,
        data: pl.LightningDataModule,
        steps: int,
        common_interval: int,
        dry_run: pl.Callback | None = None,
    ) -> pl.Trainer:
        lightning, options = self._lightning, self.recipe.trainer
        callbacks, loggers = (
            [_build(cls, part, f"trainer.{field}", {}) for cls, part in parts]
            for field, parts in self._trainer_parts.items()
        )
        device = self.runtime.torch_device
        settings: dict[str, Any] = {
            "accelerator": {"cuda": "gpu"}.get(device.type, device.type),
            "devices": 1 if device.index is None else [device.index],
            "precision": self._precision.trainer,
            "callbacks": [watch, *callbacks],
            "logger": loggers or False,
            "enable_checkpointing": any(
                isinstance(callback, lightning.callbacks.Checkpoint) for callback in callbacks
            ),
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "num_sanity_val_steps": 0,
        }
        if dry_run is not None:
            writes = lightning.callbacks.Checkpoint
            settings |= {
                "callbacks": [
                    watch,
                    dry_run,
                    *(c for c in callbacks if not isinstance(c, writes)),
                ],
                "logger": [lightning.loggers.logger.DummyLogger() for _ in loggers] or False,
                "enable_checkpointing": False,
                "limit_val_batches": 1,
            }
        if options.deterministic:
            settings["deterministic"] = True
        if self.own_optimizer:  # a `Classifier` does it itself
            settings["accumulate_grad_batches"] = options.accumulate_grad_batches
            if options.gradient_clip_val is not None:
                settings["gradient_clip_val"] = options.gradient_clip_val
                settings["gradient_clip_algorithm"] = options.gradient_clip_algorithm
        if hasattr(data, "steps_per_epoch"):
            data.steps_per_epoch = common_interval * options.accumulate_grad_batches
            watch.epoch_length = common_interval
            settings["max_epochs"] = steps // common_interval
        else:
            settings |= {
                "max_steps": steps,
                "max_epochs": -1,
                "val_check_interval": NEVER,
                "check_val_every_n_epoch": None,
            }
        trainer: pl.Trainer = lightning.Trainer(**settings)
        return trainer


def test_metric(recipe: Recipe) -> str:
    """Name of the fitness metric on the test set: ``test_accuracy`` for ``val_accuracy``."""
    return "test_" + recipe.fitness.metric.removeprefix("val_")


class _Enough(Exception):
    """Ends a training of which no more is wanted."""


def _end_training() -> None:
    raise _Enough


def _build(cls: type[Any], component: Component, field: str, offered: dict[str, Any]) -> Any:
    """An instance of a recipe's class; what it takes of `offered` is passed besides its own."""
    parameters = inspect.signature(cls).parameters
    taken = {name: value for name, value in offered.items() if name in parameters}
    arguments = taken | component.init_args
    _check_arguments(cls, component, field, arguments)
    try:
        return cls(**arguments)
    # Any other error is one inside the class, whose author needs the traceback.
    except UsageError as error:
        raise _cannot_build(component, field, error) from error


def _check_arguments(
    cls: type[Any], component: Component, field: str, arguments: dict[str, Any]
) -> None:
    try:
        inspect.signature(cls).bind(**arguments)
    except TypeError as error:
        raise _cannot_build(component, field, error) from error


def _cannot_build(component: Component, field: str, error: Exception) -> RecipeError:
    return RecipeError(
        f"{field}.init_args",
        f"{component.init_args!r} cannot build {component.class_path}: {error}",
    )


def _quieten_lightning() -> None:
    for package in ("pytorch_lightning", "lightning.pytorch"):
        for name in ("utilities.rank_zero", "accelerators.cuda"):
            logging.getLogger(f"{package}.{name}").setLevel(logging.WARNING)
