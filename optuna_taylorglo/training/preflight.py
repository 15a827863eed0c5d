"""One training step and one batch of validation, for mistakes that would not show by themselves."""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

import lightning_modules
import optuna_taylorglo
from optuna_taylorglo.errors import Diverged, RecipeError, StopRequested, UsageError, UserCodeError
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.training.runtime import RuntimeConfig
from optuna_taylorglo.training.training import Training, test_metric


class Preflight(NamedTuple):
    """What a dry run found about a recipe that works."""

    n_classes: int
    steps_per_pass: int  # optimizer steps of one pass over the training data
    n_parameters: int  # those that can be trained
    metric: float  # the fitness after one step, on one batch of validation
    warnings: tuple[str, ...]  # what looks wrong and may be meant


def preflight(recipe: Recipe, runtime: RuntimeConfig) -> Preflight:
    """Build data, model and loss, take one training step and validate on one batch."""
    try:
        training = Training(recipe, runtime)
        criterion, observer = _CheckingLoss(recipe, training.n_classes), _Observer(recipe)
        value = math.nan
        try:
            value = training.run(criterion, seed=0, steps=1, dry_run=observer)
        except RuntimeError:
            if criterion.reached != 1:  # else PyTorch would not say which tensor has no gradient
                raise
        if criterion.reached < len(_NOT_TRAINED):
            raise _model_error(recipe, _NOT_TRAINED[criterion.reached])
        warnings = (*observer.warnings, *_warnings(training, value))
    except (UsageError, StopRequested):
        raise
    except Exception as error:
        raise _explained(error, recipe) from error
    return Preflight(
        training.n_classes, training.steps_per_pass, observer.n_parameters, value, warnings
    )


_NOT_TRAINED = (
    "never calls self.criterion in its training_step, so no candidate would train anything; write "
    "`loss = self.criterion(logits, labels)` there",
    "gives self.criterion logits without a gradient: they are detached, computed under "
    "torch.no_grad(), or all parameters are frozen",
    "does not train by what self.criterion returns: no gradient came back through it; return that "
    "loss, or something computed from it, from training_step",
)


class _CheckingLoss(nn.Module):
    """Cross-entropy that checks its arguments."""

    def __init__(self, recipe: Recipe, n_classes: int) -> None:
        super().__init__()
        self._recipe = recipe
        self._n_classes = n_classes
        # In training: 1, it was called; 2, with logits that need a gradient; 3, one came back.
        self.reached = 0

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        if problem := self._problem_of_logits(logits):
            raise _model_error(self._recipe, f"gives {problem}")
        if problem := self._problem_of_labels(logits, target):
            raise _data_error(self._recipe, f"labels {problem}")
        ignored = self._recipe.loss.ignore_index
        loss = nn.functional.cross_entropy(logits.float(), target, ignore_index=ignored)
        if torch.is_grad_enabled():
            self.reached = max(self.reached, 2 if loss.requires_grad else 1)
        if loss.requires_grad:
            loss.register_hook(self._note_gradient)  # type: ignore[no-untyped-call]
        return loss

    def _note_gradient(self, gradient: Tensor) -> None:
        self.reached = 3

    def _problem_of_logits(self, logits: Tensor) -> str:
        shape, n = tuple(logits.shape), self._n_classes
        if logits.ndim < 2 or shape[1] != n:
            hint = ": two classes need two logits, not one" if n == 2 else ""
            return (
                f"logits of shape {shape}, must be (B, {n}) or (B, {n}, …) for the {n} classes of "
                f"{self._recipe.data.class_path}{hint}"
            )
        # After the step it may be the learning rate, which is a matter of the search.
        if torch.is_grad_enabled() and not logits.isfinite().all():
            return "logits that are not finite, from inputs that are"
        sums = logits.float().sum(dim=1)
        # Networks may compute in bfloat16, which has three digits.
        sum_to_1 = torch.allclose(sums, torch.ones_like(sums), rtol=0.0, atol=0.01)
        if len(logits) > 1 and (logits >= 0).all() and sum_to_1:
            return (
                "probabilities (they are positive and sum to 1), must be logits: leave out the "
                "softmax at its end, the loss applies it"
            )
        return ""

    def _problem_of_labels(self, logits: Tensor, target: Tensor) -> str:
        shape, expected = tuple(target.shape), (logits.shape[0], *logits.shape[2:])
        if target.is_floating_point():
            if target.shape == logits.shape:  # probabilities of classes
                return ""
            return f"are {target.dtype} of shape {shape}, must be class indices: torch.int64"
        if shape != expected:
            return (
                f"have shape {shape}, must be {expected} for logits of shape {tuple(logits.shape)}"
            )
        if target.dtype != torch.int64:
            return f"are {target.dtype}, must be torch.int64: labels.long()"
        counted = target[target != self._recipe.loss.ignore_index]
        if counted.numel() and not 0 <= counted.min() <= counted.max() < self._n_classes:
            return (
                f"reach from {counted.min()} to {counted.max()}, must be 0 to "
                f"{self._n_classes - 1}, as num_classes is {self._n_classes}; loss.ignore_index "
                "names one that does not count"
            )
        return ""


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

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, *args: Any) -> None:
        loader = "train_dataloader" if trainer.training else "val_dataloader"
        for tensor in _tensors(batch):
            if not tensor.isfinite().all():
                share = 1 - float(tensor.isfinite().float().mean())
                problem = f"{share:.1%} of the numbers in the first batch of {loader} are NaN or"
                raise _data_error(self._recipe, f"{problem} infinite")

    on_validation_batch_start = on_train_batch_start  # type: ignore[assignment]


def _tensors(batch: Any) -> Iterator[Tensor]:
    """All tensors in a batch of nested tuples, lists and dicts."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping | Sequence) and not isinstance(batch, str | bytes):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from _tensors(part)


def _warnings(training: Training, value: float) -> Iterator[str]:
    """What a search does without, but a verdict needs, or candidates would be misjudged by."""
    recipe = training.recipe
    model, data, metric = recipe.model.class_path, recipe.data.class_path, recipe.fitness.metric
    needed = "which `taylorglo evaluate` will need"
    if training.own_optimizer and not training.model_has("test_step"):
        logs = f"that logs {test_metric(recipe)}"
        yield f"model.class_path: {model} has no test_step {logs}, {needed}"
    if not training.data_has("test_dataloader"):
        yield f"data.class_path: {data} has no test_dataloader, {needed}"
    if not math.isfinite(value):
        yield f"fitness.metric: {metric} is {value} on one batch"
    batches = []
    for seed in (0, 1):
        data_module = training.build_data(seed)
        data_module.setup("fit")
        batches.append(_tensors(next(iter(data_module.val_dataloader()))))
    if not all(map(torch.equal, *batches)):
        yield (
            "data.class_path: the first batch of validation is another one with another seed; let "
            "the split not depend on `seed`, nor shuffle validation, or candidates are judged on "
            "different data"
        )


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
