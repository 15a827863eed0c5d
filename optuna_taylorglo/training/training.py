"""Trains a network as a recipe says, with any criterion, and watches its validation metric."""

from __future__ import annotations

import contextlib
import copy
import logging
import math
import threading
import warnings
from collections.abc import Callable, Collection
from types import ModuleType
from typing import Any, Self
from uuid import uuid4

import pytorch_lightning as pl
from torch import Tensor, nn

from lightning_modules.classifier import Classifier
from lightning_modules.data import ImageData
from lightning_modules.metrics import metric_of
from optuna_taylorglo.errors import RecipeError
from optuna_taylorglo.recipes import load
from optuna_taylorglo.recipes.schema import TrainingRecipe, own_loss_warning
from optuna_taylorglo.recipes.settings import (
    DEFAULT_OPTIMIZER,
    Component,
    OptimizerSettings,
    ScheduleSettings,
    SearchedScale,
)
from optuna_taylorglo.training import scale
from optuna_taylorglo.training.build import (
    Checkpoint,
    build,
    check_arguments,
    ended_runs,
    refuse_lost_settings,
    with_class_weights,
)
from optuna_taylorglo.training.callbacks import (
    CANDIDATE_POINTS,
    NEVER,
    SHARE,
    CannotScale,
    OnCurve,
    OnValidation,
    TrainingCallback,
    logged_metric,
)
from optuna_taylorglo.training.candidate import Candidate
from optuna_taylorglo.training.runtime import RuntimeConfig

logger = logging.getLogger(__name__)

OnTrained = Callable[[pl.LightningModule], None]


class ScaledCrossEntropy(nn.CrossEntropyLoss):
    """Cross-entropy times a factor."""

    def __init__(self, factor: float, ignore_index: int) -> None:
        super().__init__(ignore_index=ignore_index)
        self.factor = factor

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return self.factor * super().forward(logits, target)


class Training:
    """Builds the recipe's data and network afresh for each training and trains them.

    Attributes:
        recipe: The recipe, with balanced class weights as numbers and a plain net's optimizer.
        n_classes: Number of classes of the data.
        own_optimizer: Whether the model is a LightningModule, which brings its own optimizer.
        steps_per_pass: Optimizer steps that one pass over the training data takes.
    """

    def __init__(self, recipe: TrainingRecipe, runtime: RuntimeConfig) -> None:
        for package in ("pytorch_lightning", "lightning.pytorch"):
            for name in ("utilities.rank_zero", "accelerators.cuda"):
                logging.getLogger(f"{package}.{name}").setLevel(logging.WARNING)
        self.recipe = recipe
        self.runtime = runtime
        self._learning_rate_factor = 1.0
        self._import_classes()
        if not self.own_optimizer:
            self.recipe = recipe.changed(optimizer=self._recipe_optimizer())
        weights = recipe.checkpoint
        self._checkpoint = Checkpoint(weights, runtime.data_dir) if weights else None
        self._precision = runtime.precision_of(recipe.trainer)
        self._measure_data()
        self._build_module(nn.CrossEntropyLoss())
        if self.own_optimizer:
            self._check_own_module()

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
        dry_run: pl.Callback | None = None,
        curve_points: int | None = None,
        on_curve: OnCurve | None = None,
        name: str = "training",
    ) -> float:
        """Train one network and return how good it is.

        Args:
            criterion: Loss with cross-entropy's signature.
            seed: Decides initial weights, order of data, dropout and augmentation.
            steps: Optimizer steps to take.
            on_validation: Called with step and metric; what it raises ends the training.
            check_at: Steps at which to validate besides the end.
            on_test_set: Return the metric on the test set, in place of the recipe's fitness.
            on_trained: Called with the trained module.
            stop: Ends the training with `StopRequested` when set.
            dry_run: Watches a training that writes nothing and validates on one batch.
            curve_points: Validations of the curve; None: as many as the time that they take allows.
            on_curve: Called in the end with the validation metric over the course of the training.
            name: Beginning of the run's name in the recipe's loggers.

        Raises:
            Diverged: If the loss stopped being finite.
        """
        recipe, fitness = self.recipe, self.recipe.fitness
        pl.seed_everything(seed, verbose=False)
        module = self._build_module(criterion)
        data = self.build_data(seed)
        checks = {steps, *(step for step in check_at if step < steps)}
        if fitness.take == "best":
            checks |= set(range(self.steps_per_pass, steps, self.steps_per_pass))
        n_accumulate = recipe.trainer.accumulate_grad_batches
        epoch_length = None
        if isinstance(data, ImageData):
            # A batch may hold several steps, so validations are at the ends of epochs.
            epoch_length = math.gcd(*checks)
            data.steps_per_epoch = epoch_length * n_accumulate
            if not self.own_optimizer:
                data.fill_batches()
        watch = TrainingCallback(
            metric=fitness.metric,
            checks=checks,
            on_validation=on_validation,
            stop=stop,
            epoch_length=epoch_length,
            batches_per_step=n_accumulate,
            learning_rate_factor=self._learning_rate_factor,
            curve_points=curve_points if on_curve is not None else 0,
        )
        trainer = self._build_trainer(watch, steps, dry_run, f"{name}_{uuid4().hex[:8]}")
        with warnings.catch_warnings(), ended_runs(trainer.loggers):
            # Lightning advises on loaders with worker processes, which whole batches do not need.
            warnings.filterwarnings("ignore", ".*does not have many workers.*")
            warnings.filterwarnings("ignore", ".*`IterableDataset` has `__len__`.*")
            warnings.filterwarnings("ignore", ".*treespec, LeafSpec.*")
            trainer.fit(module, datamodule=data)
            on_trained(module)
            if on_curve is not None:
                on_curve(list(watch.curve))
            if on_test_set:
                trainer.test(module, datamodule=data, verbose=False)
                try:
                    return logged_metric(trainer, module, fitness.test_metric)
                except RecipeError as error:
                    advice = f"log {fitness.test_metric} in test_step, the counterpart of"
                    problem = f"{error.problem}; {advice} {fitness.metric}"
                    raise RecipeError(error.field, problem) from error
            if steps not in watch.validations:  # a callback of the recipe ended the training
                trainer.validate(module, datamodule=data, verbose=False)
        values = list(watch.validations.values())
        if fitness.take == "last":
            return values[-1]
        return max(values, key=lambda value: fitness.sign * value)

    def evaluate(self, candidate: Candidate) -> float:
        """Train with a candidate's loss for the length of an evaluation; returns its fitness."""
        training, budget = self, self.recipe.budget
        if (factor := candidate.lr_factor) != 1:
            training = self.at_learning_rate_factor(factor)
        steps = self.in_steps(budget.evaluation, budget.unit)
        return training.run(
            candidate.loss,
            seed=candidate.seed,
            steps=steps,
            check_at=self.check_steps,
            on_validation=lambda step, value: candidate.report(value, step),
            stop=candidate.stop,
            name=candidate.name,
            curve_points=self._curve_points(steps),
            on_curve=candidate.curve.extend,
        )

    @property
    def check_steps(self) -> list[int]:
        """Optimizer steps at which a candidate is checked before the end of its evaluation."""
        rules = (self.recipe.early_abort, self.recipe.early_stop)
        return [self.in_steps(rule.at, rule.unit) for rule in rules if rule is not None]

    def _curve_points(self, steps: int) -> int:
        """Validations in all that take little of a training's time, the same for every process."""
        # A pass without a gradient takes a third of one with it.
        relative_cost = self._n_validation / (3 * steps * self.recipe.batch_size)
        return min(CANDIDATE_POINTS, 1 + int(SHARE / relative_cost))

    def in_steps(self, amount: int, unit: str) -> int:
        """A length in "steps" or "epochs" as a number of optimizer steps."""
        return amount if unit == "steps" else amount * self.steps_per_pass

    def at_learning_rate(self, rate: float) -> Self:
        """The same at another learning rate in place of the recipe's, without building anew."""
        other = copy.copy(self)
        other.recipe = self.recipe.changed(optimizer=self._recipe_optimizer().changed(lr=rate))
        return other

    def at_learning_rate_factor(self, factor: float) -> Self:
        """The same with the learning rates of the module's own optimizers times a factor."""
        other = copy.copy(self)
        other._learning_rate_factor = factor
        return other

    def learning_rate_obstacle(self) -> str | None:
        """Why the learning rate cannot be multiplied, found by one step; None if it can."""
        scaled = self.at_learning_rate_factor(0.5)
        try:
            scaled.run(self.cross_entropy(), seed=0, steps=1, dry_run=pl.Callback())
        except CannotScale as obstacle:
            return f"that of {self.recipe.model.class_path} cannot be multiplied: {obstacle}"
        return None

    def cross_entropy(self, factor: float = 1.0) -> nn.Module:
        """Cross-entropy times a factor, without the label that does not count."""
        return ScaledCrossEntropy(factor, self.recipe.loss.ignore_index)

    def searched_scale(self) -> SearchedScale:
        """How the scale of losses is searched where `search.scale` is auto, found by one step."""

        def first_step(factor: float) -> None:
            self.run(
                self.cross_entropy(factor), seed=0, steps=scale.MOST_STEPS, dry_run=pl.Callback()
            )

        if scale.acts(first_step) is not False:
            return "free"
        can_multiply = not self.own_optimizer or self.learning_rate_obstacle() is None
        return "learning_rate" if can_multiply else "fixed"

    def _import_classes(self) -> None:
        """Import what the recipe names, and check the arguments of callbacks and loggers."""
        recipe, allowed = self.recipe, self.runtime.allowed_packages
        self._model_class = load.model_class(recipe.model.class_path, allowed)
        own_lightning = load.lightning_of(self._model_class)
        self.own_optimizer = own_lightning is not None
        self._lightning: ModuleType = own_lightning or pl
        data_class = load.data_module_class(recipe.data.class_path, allowed)
        self._data_class = load.data_module_for(data_class, self._lightning)
        self._parts: dict[str, list[tuple[type[Any], Component]]] = {}
        for field, find in (
            ("trainer.callbacks", load.callback_class),
            ("trainer.loggers", load.logger_class),
        ):
            components = getattr(recipe.trainer, field.removeprefix("trainer."))
            self._parts[field] = [(find(c.class_path, allowed), c) for c in components]
            for cls, component in self._parts[field]:
                check_arguments(cls, component, field, **component.init_args)

    def _measure_data(self) -> None:
        """Find the number of classes, the steps of a pass and the weights of classes."""
        recipe = self.recipe

        def refused(problem: str) -> RecipeError:
            return RecipeError("data.class_path", f"{recipe.data.class_path} {problem}")

        data = self.build_data(seed=0)
        data.prepare_data()
        data.setup("fit")
        n_classes = getattr(data, "num_classes", None)
        if not isinstance(n_classes, int) or n_classes < 2:
            raise refused(
                f"has num_classes {n_classes!r}; a data module must say in this attribute how many "
                "classes there are, at least 2"
            )
        for hook in ("train_dataloader", "val_dataloader"):
            if not self.data_has(hook):
                raise refused(f"has no {hook}; write one")
        loader: Any = data.train_dataloader()
        try:
            batches = len(loader)
        except TypeError as error:
            raise refused(
                f"has a train_dataloader that does not say how many batches it has ({error}); give "
                "its data set a __len__"
            ) from error
        if batches == 0:
            raise RecipeError(
                "batch_size",
                f"{recipe.batch_size} leaves {recipe.data.class_path} no training batch: there are "
                "fewer examples, and drop_last drops them",
            )
        self.n_classes = n_classes
        self._n_validation = math.inf  # unless it is known
        validation: Any = data.val_dataloader()
        with contextlib.suppress(TypeError):
            per_batch = getattr(validation, "batch_size", None) or recipe.batch_size
            self._n_validation = max(1, len(validation) * per_batch)
        # What is left at the end of an epoch makes a step, too.
        self.steps_per_pass = math.ceil(batches / recipe.trainer.accumulate_grad_batches)
        self.recipe = with_class_weights(recipe, loader, n_classes)

    def _check_own_module(self) -> None:
        """Refuse a LightningModule that cannot train, and tell what of the recipe it leaves."""
        recipe, name = self.recipe, self.recipe.model.class_path
        for hook, advice in (
            ("configure_optimizers", "it, or name a plain net, which the recipe trains"),
            ("training_step", "one"),
            ("validation_step", "one that logs fitness.metric"),
        ):
            if not self.model_has(hook):
                raise RecipeError("model.class_path", f"{name} has no {hook}; write {advice}")
        if warning := own_loss_warning(recipe.fitness):
            logger.warning("%s", warning)
        for field, unused in (
            ("optimizer", recipe.optimizer is not None),
            ("schedule", recipe.schedule != ScheduleSettings()),
        ):
            if unused:
                logger.warning("%s: not used, %s configures its own", field, name)

    def build_data(self, seed: int) -> pl.LightningDataModule:
        data: pl.LightningDataModule = build(
            self._data_class,
            self.recipe.data,
            "data",
            data_dir=self.runtime.data_dir,
            batch_size=self.recipe.batch_size,
            seed=seed,
        )
        return data

    def _build_module(self, criterion: nn.Module) -> pl.LightningModule:
        recipe = self.recipe
        built = build(self._model_class, recipe.model, "model", num_classes=self.n_classes)
        if self._checkpoint is not None:
            self._checkpoint.load_into(built)
        if self.own_optimizer:
            refuse_lost_settings(getattr(built, "criterion", None), recipe.loss)
            built.criterion = criterion
            module: pl.LightningModule = built
            return module
        return Classifier(
            built,
            criterion,
            optimizer=self._recipe_optimizer(),
            schedule=self._schedule_in_steps(),
            schedule_length=self.in_steps(recipe.budget.full, recipe.budget.unit),
            trainer_settings=recipe.trainer,
            # On a CPU it makes steps up to 25 % shorter.
            channels_last=self.runtime.torch_device.type in ("cpu", "cuda"),
            metric=metric_of(recipe.fitness, self.n_classes),
            num_classes=self.n_classes,
            ignore_index=recipe.loss.ignore_index,
            batch_size=recipe.batch_size if issubclass(self._data_class, ImageData) else None,
        )

    def _recipe_optimizer(self) -> OptimizerSettings:
        return self.recipe.optimizer or DEFAULT_OPTIMIZER

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

    def _build_trainer(
        self, watch: TrainingCallback, steps: int, dry_run: pl.Callback | None, run: str
    ) -> pl.Trainer:
        lightning, options = self._lightning, self.recipe.trainer
        # Loggers' own versions count up, and two workers may arrive at the same one.
        names = {"trainer.loggers": {"version": run, "run_name": run}}
        callbacks, loggers = (
            [build(cls, component, field, **names.get(field, {})) for cls, component in parts]
            for field, parts in self._parts.items()
        )
        writes = lightning.callbacks.Checkpoint
        if dry_run is not None:
            callbacks = [dry_run, *(c for c in callbacks if not isinstance(c, writes))]
            loggers = [lightning.loggers.logger.DummyLogger() for _ in loggers]
        gradients: dict[str, Any] = {}
        if self.own_optimizer:  # a `Classifier` does it itself
            gradients = options.model_dump(
                include={"accumulate_grad_batches", "gradient_clip_val", "gradient_clip_algorithm"}
            )
        device = self.runtime.torch_device
        trainer: pl.Trainer = lightning.Trainer(
            accelerator=device.type,
            devices=1 if device.index is None else [device.index],
            precision=self._precision,
            deterministic=options.deterministic or None,
            max_steps=steps,
            max_epochs=-1,
            val_check_interval=NEVER,  # `watch` decides when
            check_val_every_n_epoch=None,
            limit_val_batches=None if dry_run is None else 1,
            limit_test_batches=None if dry_run is None else 1,
            num_sanity_val_steps=0,
            callbacks=[watch, *callbacks],
            logger=loggers or False,
            enable_checkpointing=any(isinstance(callback, writes) for callback in callbacks),
            enable_progress_bar=False,
            enable_model_summary=False,
            **gradients,
        )
        return trainer

    def model_has(self, hook: str) -> bool:
        """Whether the model, a LightningModule, has a hook of its own."""
        base = self._lightning.LightningModule
        return getattr(self._model_class, hook) is not getattr(base, hook)

    def data_has(self, hook: str) -> bool:
        """Whether the data module has a hook of its own."""
        base = self._lightning.LightningDataModule
        return getattr(self._data_class, hook) is not getattr(base, hook)
