"""One training step and one batch of validation, before anything is recorded.

Most mistakes in a recipe, a model or a data module show at once, but not by themselves: labels out
of range, a criterion that is never called, outputs that are probabilities already. Here each is
looked for, and answered with the field to change.
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
    """What a dry_run found, of a recipe that works.

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

    Args:
        recipe: The recipe.
        runtime: Where it runs.

    Raises:
        RecipeError: If something is wrong that a field of the recipe, or what it names, can mend.
        UserCodeError: If the user's own code raised.
    """
    try:
        training = Training(recipe, runtime)
        _check_hooks(training)
        witness = _Witness(recipe, training.n_classes)
        observer = _Observer(recipe)
        value = _dry_run(training, witness, observer)
    except (UsageError, StopRequested):
        raise
    except Exception as error:
        raise _explained(error, recipe) from error
    warnings = [*observer.warnings, *_missing_for_the_verdict(training)]
    if not math.isfinite(value):
        warnings.append(f"fitness.metric: {recipe.fitness.metric} is {value} on one batch")
    if _split_follows_the_seed(training):
        warnings.append(
            "data.class_path: the first batch of validation is another one with another seed; let "
            "the split not depend on `seed`, nor shuffle validation, or candidates are judged on "
            "different data"
        )
    return Preflight(
        n_classes=training.n_classes,
        steps_per_pass=training.steps_per_pass,
        n_parameters=observer.n_parameters,
        metric=value,
        warnings=tuple(warnings),
    )


def _dry_run(training: Training, witness: _Witness, observer: _Observer) -> float:
    """The fitness after one step with the witness as the loss, which then says how it was used."""
    try:
        value = training.run(witness, seed=0, steps=1, dry_run=observer)
    except RuntimeError:
        witness.check_logits_need_gradient()  # PyTorch says so, too, but not of what
        raise
    witness.check_use()
    return value


class _Witness(nn.Module):
    """Cross-entropy that looks at what it is given, and at whether a gradient comes back.

    Args:
        recipe: The recipe.
        n_classes: Number of classes of the data.
    """

    def __init__(self, recipe: Recipe, n_classes: int) -> None:
        super().__init__()
        self._model = recipe.model.class_path
        self._data = recipe.data.class_path
        self._n_classes = n_classes
        self._ignored = recipe.loss.ignore_index
        self._called = self._needed_gradient = self._got_gradient = False

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Cross-entropy of the batch, if it is one."""
        self._check_logits(logits)
        self._check_target(logits, target)
        loss = nn.functional.cross_entropy(logits.float(), target, ignore_index=self._ignored)
        if torch.is_grad_enabled():
            self._called = True
            if loss.requires_grad:
                self._needed_gradient = True
                loss.register_hook(self._note_gradient)  # type: ignore[no-untyped-call]
        return loss

    def check_use(self) -> None:
        """Tell of a training step that this criterion had no part in.

        Raises:
            RecipeError: If it was not called, or no gradient went through it.
        """
        if not self._called:
            raise self._blame_model(
                "never calls self.criterion in its training_step, so no candidate would train "
                "anything; write `loss = self.criterion(logits, labels)` there"
            )
        self.check_logits_need_gradient()
        if not self._got_gradient:
            raise self._blame_model(
                "does not train by what self.criterion returns: no gradient came back through it; "
                "return that loss, or something computed from it, from training_step"
            )

    def check_logits_need_gradient(self) -> None:
        """Tell of a call whose logits nothing can be learnt by.

        Raises:
            RecipeError: If there was such a call, and no other.
        """
        if self._called and not self._needed_gradient:
            raise self._blame_model(
                "gives self.criterion logits without a gradient: they are detached, computed under "
                "torch.no_grad(), or all parameters are frozen"
            )

    def _note_gradient(self, gradient: Tensor) -> None:
        self._got_gradient = True

    def _check_logits(self, logits: Tensor) -> None:
        shape, n = tuple(logits.shape), self._n_classes
        if logits.ndim < 2 or logits.shape[1] != n:
            needed = f"(B, {n}) or (B, {n}, …)"
            binary = logits.ndim < 2 or (n == 2 and logits.shape[1] == 1)
            hint = ": two classes need two logits, not one" if binary else ""
            raise self._blame_model(
                f"gives logits of shape {shape}, must be {needed} for the {n} classes of "
                f"{self._data}{hint}"
            )
        if not logits.is_floating_point():
            raise self._blame_model(f"gives logits of type {logits.dtype}, must be floating-point")
        # After the step it may be the learning rate, which is a matter of the search.
        if torch.is_grad_enabled() and not logits.isfinite().all():
            raise self._blame_model("gives logits that are not finite, from inputs that are")
        sums = logits.float().sum(dim=1)
        # Networks may compute in bfloat16, which has three digits.
        sum_to_1 = torch.allclose(sums, torch.ones_like(sums), rtol=0.0, atol=0.01)
        if len(logits) > 1 and (logits >= 0).all() and sum_to_1:
            raise self._blame_model(
                "gives probabilities (they are positive and sum to 1), must be logits: leave out "
                "the softmax at its end, the loss applies it"
            )

    def _check_target(self, logits: Tensor, target: Tensor) -> None:
        if target.is_floating_point():
            if target.shape != logits.shape:
                raise self._blame_data(
                    f"labels are {target.dtype} of shape {tuple(target.shape)}, must be class "
                    "indices: torch.int64"
                )
            return
        expected = (logits.shape[0], *logits.shape[2:])
        if tuple(target.shape) != expected:
            raise self._blame_data(
                f"labels have shape {tuple(target.shape)}, must be {expected} for logits of shape "
                f"{tuple(logits.shape)}"
            )
        if target.dtype != torch.int64:
            raise self._blame_data(f"labels are {target.dtype}, must be torch.int64: labels.long()")
        counted = target[target != self._ignored]
        if counted.numel() == 0:
            return
        low, high = int(counted.min()), int(counted.max())
        if low < 0 or high >= self._n_classes:
            raise self._blame_data(
                f"labels reach from {low} to {high}, must be 0 to {self._n_classes - 1}, as "
                f"num_classes is {self._n_classes}; loss.ignore_index names one that does not count"
            )

    def _blame_model(self, problem: str) -> RecipeError:
        return RecipeError("model.class_path", f"{self._model} {problem}")

    def _blame_data(self, problem: str) -> RecipeError:
        return RecipeError("data.class_path", f"{self._data}: {problem}")


class _Observer(pl.Callback):
    """Looks at the batches before the model does, and at the model."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self.n_parameters = 0
        self.warnings: list[str] = []

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        parameters = [p for p in pl_module.parameters() if p.requires_grad]
        self.n_parameters = sum(p.numel() for p in parameters)
        optimized = {
            id(p)
            for optimizer in trainer.optimizers
            for group in optimizer.param_groups
            for p in group["params"]
        }
        left_out = sum(p.numel() for p in parameters if id(p) not in optimized)
        if left_out:
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
        data, tensors = self._recipe.data.class_path, list(_tensors(batch))
        if not tensors:
            raise RecipeError(
                "data.class_path",
                f"{data}: {loader} gives {type(batch).__name__} without a tensor in it, must be "
                "(inputs, labels)",
            )
        for tensor in tensors:
            if not tensor.isfinite().all():
                share = 1 - float(tensor.isfinite().float().mean())
                raise RecipeError(
                    "data.class_path",
                    f"{data}: {share:.1%} of the numbers in the first batch of {loader} are NaN or "
                    "infinite",
                )


def _tensors(batch: Any) -> Iterator[Tensor]:
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for part in batch.values():
            yield from _tensors(part)
    elif isinstance(batch, Sequence) and not isinstance(batch, str | bytes):
        for part in batch:
            yield from _tensors(part)


def _check_hooks(training: Training) -> None:
    """Tell of hooks that Lightning needs, and would miss without a word or late.

    Raises:
        RecipeError: If one is missing.
    """
    recipe = training.recipe
    if not training.own_optimizer:
        return
    for hook in ("training_step", "validation_step"):
        if not training.model_has(hook):
            logs = " that logs fitness.metric" if hook == "validation_step" else ""
            raise RecipeError(
                "model.class_path", f"{recipe.model.class_path} has no {hook}; write one{logs}"
            )


def _missing_for_the_verdict(training: Training) -> list[str]:
    """What `taylorglo evaluate` will need; a search does without."""
    recipe, missing = training.recipe, []
    if training.own_optimizer and not training.model_has("test_step"):
        missing.append(
            f"model.class_path: {recipe.model.class_path} has no test_step that logs "
            f"{test_metric(recipe)}, which `taylorglo evaluate` will need"
        )
    if not training.data_has("test_dataloader"):
        missing.append(
            f"data.class_path: {recipe.data.class_path} has no test_dataloader, which `taylorglo "
            "evaluate` will need"
        )
    return missing


def _split_follows_the_seed(training: Training) -> bool:
    first, second = (training.first_validation_batch(seed) for seed in (0, 1))
    return any(
        a.shape != b.shape or not torch.equal(a, b)
        for a, b in zip(_tensors(first), _tensors(second), strict=False)
    )


def _explained(error: Exception, recipe: Recipe) -> UsageError:
    """An exception that came out of a dry_run, with where the user has to look."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _is_the_users(frame.filename)]
    said = "".join(traceback.format_exception_only(error)).strip()
    if own:
        where = "".join(traceback.format_list(own)).rstrip()
        return UserCodeError(f"your code raised an exception:\n{where}\n{said}")
    if isinstance(error, Diverged):
        return RecipeError("model.class_path", f"{recipe.model.class_path}: {said}")
    return UserCodeError(
        f"{recipe.model.class_path} does not go with the data of {recipe.data.class_path}, or with "
        f"the recipe:\n{''.join(traceback.format_list(frames[-3:])).rstrip()}\n{said}"
    )


_NOT_THE_USERS = [
    Path(package.__file__ or "").parent for package in (lightning_modules, optuna_taylorglo)
]


def _is_the_users(filename: str) -> bool:
    path = Path(filename)
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    return (
        path.is_file()
        and not installed
        and not any(path.is_relative_to(root) for root in _NOT_THE_USERS)
        and not path.is_relative_to(Path(traceback.__file__).parent)
    )
