"""One training step and one batch of validation, before anything is recorded.

Many mistakes in a recipe, a model or a data module would not show by themselves: labels out of
range, a criterion that is never called, outputs that are probabilities already. Each is looked for
here, and answered with the field to change.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

import lightning_modules
import optuna_taylorglo
from optuna_taylorglo.errors import Diverged, RecipeError, StopRequested, UsageError, UserCodeError
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.training.runtime import RuntimeConfig
from optuna_taylorglo.training.training import Training, test_metric


@dataclass(frozen=True)
class Preflight:
    """What a dry run found about a recipe that works.

    Attributes:
        n_classes: Number of classes of the data.
        steps_per_pass: Optimizer steps of one pass over the training data.
        n_parameters: Trainable parameters of the model.
        metric: The fitness after one step, on one batch of validation.
        warnings: What looks wrong and may be meant.
    """

    n_classes: int
    steps_per_pass: int
    n_parameters: int
    metric: float
    warnings: tuple[str, ...]


def preflight(recipe: Recipe, runtime: RuntimeConfig) -> Preflight:
    """Build data, model and loss, take one training step and validate on one batch.

    Raises:
        RecipeError: If something is wrong that a field of the recipe, or what it names, can mend.
        UserCodeError: If the user's own code raised.
    """
    try:
        training = Training(recipe, runtime)
        for hook, logs in (("training_step", ""), ("validation_step", " that logs fitness.metric")):
            if training.own_optimizer and not training.model_has(hook):
                raise _model_error(recipe, f"has no {hook}; write one{logs}")
        criterion = _CheckingLoss(recipe, training.n_classes)
        observer = _Observer(recipe)
        try:
            value = training.run(criterion, seed=0, steps=1, dry_run=observer)
        except RuntimeError:
            criterion.check_logits()  # PyTorch would not say which tensor has no gradient
            raise
        criterion.check_logits()
        criterion.check_gradient()
        warnings = [*observer.warnings, *_warnings(training, value)]
    except (UsageError, StopRequested):
        raise
    except Exception as error:
        raise _explained(error, recipe) from error
    return Preflight(
        training.n_classes, training.steps_per_pass, observer.n_parameters, value, tuple(warnings)
    )


def _warnings(training: Training, value: float) -> list[str]:
    """What a search does without, but a verdict needs, or candidates would be misjudged by."""
    recipe = training.recipe
    model, data, metric = recipe.model.class_path, recipe.data.class_path, recipe.fitness.metric
    warnings = []
    if training.own_optimizer and not training.model_has("test_step"):
        warnings.append(
            f"model.class_path: {model} has no test_step that logs {test_metric(recipe)}, which "
            "`taylorglo evaluate` will need"
        )
    if not training.data_has("test_dataloader"):
        warnings.append(
            f"data.class_path: {data} has no test_dataloader, which `taylorglo evaluate` will need"
        )
    if not math.isfinite(value):
        warnings.append(f"fitness.metric: {metric} is {value} on one batch")
    batches = [_tensors(training.first_validation_batch(seed)) for seed in (0, 1)]
    if not all(torch.equal(a, b) for a, b in zip(*batches, strict=False)):
        warnings.append(
            "data.class_path: the first batch of validation is another one with another seed; let "
            "the split not depend on `seed`, nor shuffle validation, or candidates are judged on "
            "different data"
        )
    return warnings


class _CheckingLoss(nn.Module):
    """Cross-entropy that checks its arguments, and whether a gradient comes back.

    Args:
        recipe: The recipe.
        n_classes: Number of classes of the data.
    """

    def __init__(self, recipe: Recipe, n_classes: int) -> None:
        super().__init__()
        self._recipe = recipe
        self._n_classes = n_classes
        self._called = self._needed_gradient = self._got_gradient = False

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Cross-entropy of a batch, whose logits are (B, classes, …)."""
        self._check_logits(logits)
        self._check_target(logits, target)
        ignored = self._recipe.loss.ignore_index
        loss = nn.functional.cross_entropy(logits.float(), target, ignore_index=ignored)
        if torch.is_grad_enabled():
            self._called = True
            if loss.requires_grad:
                self._needed_gradient = True
                loss.register_hook(self._note_gradient)  # type: ignore[no-untyped-call]
        return loss

    def check_logits(self) -> None:
        """Refuse a training step whose logits have no gradient."""
        if self._called and not self._needed_gradient:
            raise _model_error(
                self._recipe,
                "gives self.criterion logits without a gradient: they are detached, computed under "
                "torch.no_grad(), or all parameters are frozen",
            )

    def check_gradient(self) -> None:
        """Refuse a training step in which this criterion had no part."""
        if not self._called:
            raise _model_error(
                self._recipe,
                "never calls self.criterion in its training_step, so no candidate would train "
                "anything; write `loss = self.criterion(logits, labels)` there",
            )
        if not self._got_gradient:
            raise _model_error(
                self._recipe,
                "does not train by what self.criterion returns: no gradient came back through it; "
                "return that loss, or something computed from it, from training_step",
            )

    def _note_gradient(self, gradient: Tensor) -> None:
        self._got_gradient = True

    def _check_logits(self, logits: Tensor) -> None:
        shape, n, problem = tuple(logits.shape), self._n_classes, ""
        if logits.ndim < 2 or shape[1] != n:
            problem = (
                f"gives logits of shape {shape}, must be (B, {n}) or (B, {n}, …) for the {n} "
                f"classes of {self._recipe.data.class_path}"
            )
            if logits.ndim < 2 or (n == 2 and shape[1] == 1):
                problem += ": two classes need two logits, not one"
        elif not logits.is_floating_point():
            problem = f"gives logits of type {logits.dtype}, must be floating-point"
        # After the step it may be the learning rate, which is a matter of the search.
        elif torch.is_grad_enabled() and not logits.isfinite().all():
            problem = "gives logits that are not finite, from inputs that are"
        elif len(logits) > 1 and (logits >= 0).all():
            sums = logits.float().sum(dim=1)
            # Networks may compute in bfloat16, which has three digits.
            if torch.allclose(sums, torch.ones_like(sums), rtol=0.0, atol=0.01):
                problem = (
                    "gives probabilities (they are positive and sum to 1), must be logits: leave "
                    "out the softmax at its end, the loss applies it"
                )
        if problem:
            raise _model_error(self._recipe, problem)

    def _check_target(self, logits: Tensor, target: Tensor) -> None:
        shape, expected = tuple(target.shape), (logits.shape[0], *logits.shape[2:])
        counted = target[target != self._recipe.loss.ignore_index]
        low, high = (int(counted.min()), int(counted.max())) if counted.numel() else (0, 0)
        problem = ""
        if target.is_floating_point():
            if target.shape != logits.shape:
                problem = f"are {target.dtype} of shape {shape}, must be class indices: torch.int64"
        elif shape != expected:
            problem = (
                f"have shape {shape}, must be {expected} for logits of shape {tuple(logits.shape)}"
            )
        elif target.dtype != torch.int64:
            problem = f"are {target.dtype}, must be torch.int64: labels.long()"
        elif low < 0 or high >= self._n_classes:
            problem = (
                f"reach from {low} to {high}, must be 0 to {self._n_classes - 1}, as num_classes "
                f"is {self._n_classes}; loss.ignore_index names one that does not count"
            )
        if problem:
            raise _data_error(self._recipe, f"labels {problem}")


class _Observer(pl.Callback):
    """Looks at the batches before the model does, and at the model."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self.n_parameters = 0
        self.warnings: list[str] = []

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        parameters = [p for p in pl_module.parameters() if p.requires_grad]
        self.n_parameters = sum(p.numel() for p in parameters)
        groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
        optimized = {id(p) for group in groups for p in group["params"]}
        if left_out := sum(p.numel() for p in parameters if id(p) not in optimized):
            self.warnings.append(
                f"model.class_path: {left_out:,} of {self.n_parameters:,} trainable parameters are "
                "in no optimizer and stay as they are"
            )

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        self._check(batch, "train_dataloader")

    def on_validation_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, *args: Any, **kwargs: Any
    ) -> None:
        self._check(batch, "val_dataloader")

    def _check(self, batch: Any, loader: str) -> None:
        tensors = list(_tensors(batch))
        if not tensors:
            raise _data_error(
                self._recipe,
                f"{loader} gives {type(batch).__name__} without a tensor in it, must be "
                "(inputs, labels)",
            )
        for tensor in tensors:
            if not tensor.isfinite().all():
                share = 1 - float(tensor.isfinite().float().mean())
                raise _data_error(
                    self._recipe,
                    f"{share:.1%} of the numbers in the first batch of {loader} are NaN or "
                    "infinite",
                )


def _tensors(batch: Any) -> Iterator[Tensor]:
    """All tensors in a batch of nested tuples, lists and dicts."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping | Sequence) and not isinstance(batch, str | bytes):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from _tensors(part)


def _model_error(recipe: Recipe, problem: str) -> RecipeError:
    return RecipeError("model.class_path", f"{recipe.model.class_path} {problem}")


def _data_error(recipe: Recipe, problem: str) -> RecipeError:
    return RecipeError("data.class_path", f"{recipe.data.class_path}: {problem}")


def _explained(error: Exception, recipe: Recipe) -> UsageError:
    """An exception out of a dry run, with where the user has to look."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _is_users(Path(frame.filename))]
    message = "".join(traceback.format_exception_only(error)).strip()
    shown = "".join(traceback.format_list(own or frames[-3:])).rstrip()
    if own:
        return UserCodeError(f"your code raised an exception:\n{shown}\n{message}")
    if isinstance(error, Diverged):
        return RecipeError("model.class_path", f"{recipe.model.class_path}: {message}")
    return UserCodeError(
        f"{recipe.model.class_path} does not go with the data of {recipe.data.class_path}, or with "
        f"the recipe:\n{shown}\n{message}"
    )


def _is_users(path: Path) -> bool:
    """Whether a file is of neither an installed package, Python nor this project."""
    modules = (lightning_modules, optuna_taylorglo, traceback)
    others = [Path(module.__file__ or "").parent for module in modules]
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    return path.is_file() and not installed and not any(path.is_relative_to(o) for o in others)
