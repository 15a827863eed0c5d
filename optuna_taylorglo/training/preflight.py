"""One training step and one batch of validation, for mistakes that would not show by themselves."""

from __future__ import annotations

import logging
import math
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytorch_lightning as pl
import torch
from torch import Tensor

import lightning_modules
import optuna_taylorglo
from optuna_taylorglo.errors import Diverged, RecipeError, StopRequested, UsageError, UserCodeError
from optuna_taylorglo.recipes.load import line_of
from optuna_taylorglo.recipes.schema import TrainingRecipe
from optuna_taylorglo.recipes.settings import SearchedScale
from optuna_taylorglo.training.checking_loss import NOT_TRAINED, CheckingLoss
from optuna_taylorglo.training.runtime import RuntimeConfig
from optuna_taylorglo.training.training import Training

TIMED_STEPS, TIMED_SECONDS = 200, 2.0

logger = logging.getLogger(__name__)


class Preflight(NamedTuple):
    """What a dry run found about a recipe that works."""

    n_classes: int
    steps_per_pass: int  # optimizer steps of one pass over the training data
    n_parameters: int  # those that can be trained
    metric: float  # the fitness after one step, on one batch of validation
    scale: SearchedScale  # how the scale of losses is searched: a value of `search.scale`
    warnings: tuple[str, ...]  # what looks wrong and may be meant
    missing: RecipeError | None  # why there can be no verdict


def preflight(
    recipe: TrainingRecipe, runtime: RuntimeConfig, *, for_verdict: bool = False
) -> Preflight:
    """Build data, model and loss, take one training step and validate on one batch.

    For a verdict, a batch of the test set is tried too, if there can be one.
    """
    try:
        training = Training(recipe, runtime)
        missing = _missing_for_verdict(training)
        criterion, observer = _checking_loss(recipe, training.n_classes), _Observer(recipe)
        values: list[float] = []
        try:
            training.run(
                criterion,
                seed=0,
                steps=1,
                on_validation=lambda step, value: values.append(value),
                on_test_set=for_verdict and missing is None,
                dry_run=observer,
            )
        except RuntimeError:
            if criterion.reached != 1:  # else PyTorch would not say which tensor has no gradient
                raise
        if criterion.reached < len(NOT_TRAINED):
            problem = NOT_TRAINED[criterion.reached].format(loss="self.criterion")
            advice = "; training_step must return `self.criterion(logits, labels)`, or what follows"
            raise _model_error(recipe, f"{problem}{advice} from it")
        value = next(iter(values), math.nan)
        warnings = (*observer.warnings, *_warnings(training, value))
        scale = recipe.search.scale
        if scale == "auto":
            scale = training.searched_scale()
    except (UsageError, StopRequested):
        raise
    except Exception as error:
        raise _explained(error, recipe) from error
    return Preflight(
        training.n_classes,
        training.steps_per_pass,
        observer.n_parameters,
        value,
        scale,
        warnings,
        missing,
    )


class _Stopwatch(pl.Callback):
    """Ends a training when some seconds of it have been timed."""

    def __init__(self) -> None:
        self.times: list[tuple[int, float]] = []  # steps, and when they were taken

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.times.append((0, time.perf_counter()))

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        self.times.append((trainer.global_step, time.perf_counter()))
        if self.times[-1][1] - self.times[0][1] > TIMED_SECONDS:
            trainer.should_stop = True


def seconds_per_step(recipe: TrainingRecipe, runtime: RuntimeConfig) -> float:
    """The time of an optimizer step with cross-entropy, without validations."""
    watch = _Stopwatch()
    training = Training(recipe, runtime)
    training.run(training.cross_entropy(), seed=0, steps=TIMED_STEPS, dry_run=watch)
    # The first batch warms up, unless it is all there is.
    first = 1 if len(watch.times) > 2 else 0
    (steps, began), (last, ended) = watch.times[first], watch.times[-1]
    return (ended - began) / max(1, last - steps)


def dry_run(
    recipe: TrainingRecipe,
    runtime: RuntimeConfig,
    path: Path | None = None,
    *,
    for_verdict: bool = False,
) -> Preflight:
    """The preflight, with what looks wrong in the log, and errors that name a line of the file.

    `path` is that of the recipe's file; None for a recipe out of a study.
    """
    try:
        found = preflight(recipe, runtime, for_verdict=for_verdict)
    except RecipeError as error:
        if path is None:
            raise
        line = line_of(path, error.field)
        raise error.from_source(f"{path}, line {line}" if line else str(path)) from error.__cause__
    for warning in filter(None, (*found.warnings, found.missing)):
        logger.warning("%s", warning)
    return found


def _checking_loss(recipe: TrainingRecipe, n_classes: int) -> CheckingLoss:
    def logits_error(problem: str) -> RecipeError:
        return _model_error(recipe, f"on {recipe.data.class_path} gives {problem}")

    return CheckingLoss(
        n_classes,
        recipe.loss.ignore_index,
        logits_error,
        lambda problem: _data_error(recipe, f"labels {problem}"),
    )


class _Observer(pl.Callback):
    """Looks at the batches before the model does, and at the model."""

    def __init__(self, recipe: TrainingRecipe) -> None:
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


def _missing_for_verdict(training: Training) -> RecipeError | None:
    """What a search does without, but a verdict needs."""
    recipe, needed = training.recipe, "which `taylorglo evaluate` will need"
    if training.own_optimizer and not training.model_has("test_step"):
        return _model_error(
            recipe, f"has no test_step that logs {recipe.fitness.test_metric}, {needed}"
        )
    if not training.data_has("test_dataloader"):
        name = recipe.data.class_path
        return RecipeError("data.class_path", f"{name} has no test_dataloader, {needed}")
    return None


def _warnings(training: Training, value: float) -> Iterator[str]:
    """What candidates would be misjudged by."""
    metric = training.recipe.fitness.metric
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


def _model_error(recipe: TrainingRecipe, problem: str) -> RecipeError:
    return RecipeError("model.class_path", f"{recipe.model.class_path} {problem}")


def _data_error(recipe: TrainingRecipe, problem: str) -> RecipeError:
    return RecipeError("data.class_path", f"{recipe.data.class_path}: {problem}")


def _explained(error: Exception, recipe: TrainingRecipe) -> UsageError:
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
