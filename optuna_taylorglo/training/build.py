"""What a training is built from: a recipe's classes, weights of a file, weights of classes."""

from __future__ import annotations

import contextlib
import inspect
import pickle
import sys
import textwrap
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from lightning_modules.classifier import class_indices, split_batch
from optuna_taylorglo.errors import RecipeError, UsageError
from optuna_taylorglo.recipes.schema import LossSettings, TrainingRecipe
from optuna_taylorglo.recipes.settings import CheckpointSettings, Component

FIELD = "loss.class_weights"


def build(cls: type[Any], component: Component, field: str, **offered: Any) -> Any:
    """An instance of a recipe's class, which also gets what its constructor takes of `offered`."""
    parameters = inspect.signature(cls).parameters
    arguments = {name: value for name, value in offered.items() if name in parameters}
    arguments |= component.init_args
    check_arguments(cls, component, field, **arguments)
    try:
        return cls(**arguments)
    # Any other error is one inside the class, whose author needs the traceback.
    except UsageError as error:
        raise _cannot_build(component, field, error) from error


def check_arguments(cls: type[Any], component: Component, field: str, **arguments: Any) -> None:
    """Refuse arguments that the constructor does not take, or too few."""
    try:
        inspect.signature(cls).bind(**arguments)
    except TypeError as error:
        raise _cannot_build(component, field, error) from error


def _cannot_build(component: Component, field: str, error: Exception) -> RecipeError:
    return RecipeError(
        f"{field}.init_args",
        f"{component.init_args!r} cannot build {component.class_path}: {error}",
    )


@contextlib.contextmanager
def ended_runs(loggers: Sequence[object]) -> Iterator[None]:
    """End the run of a WandbLogger, or the next training of this process would go on with it."""
    try:
        yield
    finally:
        wandb = sys.modules.get("wandb")  # imported when a WandbLogger first writes
        if wandb is not None and any(type(each).__name__ == "WandbLogger" for each in loggers):
            wandb.finish()


class Checkpoint:
    """The weights of a file, for any number of networks."""

    def __init__(self, settings: CheckpointSettings, data_dir: Path) -> None:
        self.skip = settings.skip
        self.path = data_dir / settings.path
        try:
            content = torch.load(self.path, map_location="cpu", weights_only=True)
        except (OSError, pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
            raise self._unusable(
                "cannot be read as weights, must be what torch.save makes of a state dict, or a "
                f"Lightning checkpoint: {str(error).splitlines()[0]}"
            ) from error
        if isinstance(content, dict):
            content = content.get("state_dict", content)
        values = content.values() if isinstance(content, dict) else []
        if not values or not all(isinstance(value, Tensor) for value in values):
            raise self._unusable("holds no state dict")
        self._weights: dict[str, Tensor] = content

    def load_into(self, network: nn.Module) -> None:
        """Load all weights into a network but those whose names begin with a text of `skip`."""
        own, weights = network.state_dict(), self._weights
        if not any(name in own for name in weights):
            # A checkpoint of a `Classifier` holds the network as `net`.
            inside = {n[4:]: value for n, value in weights.items() if n.startswith("net.")}
            weights = inside or weights
        given = {name: value for name, value in weights.items() if not name.startswith(self.skip)}
        fresh = {name: value for name, value in own.items() if name.startswith(self.skip)}
        try:
            network.load_state_dict(given | fresh)
        except RuntimeError as error:
            raise RecipeError(
                "checkpoint",
                f"{self.path} does not fit {type(network).__name__}: "
                f"{textwrap.shorten(str(error), 1000)} Names that begin with a text in "
                "checkpoint.skip are left out",
            ) from error

    def _unusable(self, problem: str) -> RecipeError:
        return RecipeError("checkpoint.path", f"{self.path} {problem}")


def with_class_weights(recipe: TrainingRecipe, loader: Any, n_classes: int) -> TrainingRecipe:
    """The recipe with a number for each class in place of "balanced"."""
    weights = recipe.loss.class_weights
    if weights == "balanced":
        weights = balanced_weights(loader, n_classes, recipe.loss.ignore_index)
        return recipe.changed(loss=recipe.loss.changed(class_weights=weights))
    if weights is not None and len(weights) != n_classes:
        raise RecipeError(
            FIELD, f"has {len(weights)} weights, must have one for each of {n_classes} classes"
        )
    return recipe


def balanced_weights(loader: Any, n_classes: int, ignore_index: int) -> tuple[float, ...]:
    """n/(K n_k) for each of K classes with n_k of the n labels; 1 for an ignored class."""
    counts = torch.zeros(n_classes, dtype=torch.int64)
    for labels in _labels(loader):
        labels = labels[labels != ignore_index]
        if labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < n_classes:
            raise RecipeError(
                FIELD,
                f"balanced finds training labels from {int(labels.min())} to {int(labels.max())}, "
                f"but there are {n_classes} classes, from 0; loss.ignore_index names one label "
                "that does not count",
            )
        counts += labels.bincount(minlength=n_classes)
    counted = {k: n for k, n in enumerate(counts.tolist()) if k != ignore_index}
    if empty := [k for k, n in counted.items() if n == 0]:
        raise RecipeError(
            FIELD,
            f"balanced has no weight for class {empty[0]}, which has no training label; give a "
            "list of weights",
        )
    total = sum(counted.values())
    weights = {k: total / (len(counted) * n) for k, n in counted.items()}
    return tuple(weights.get(k, 1.0) for k in range(n_classes))


def _labels(loader: Any) -> Iterator[Tensor]:
    """All training labels, some at a time; none is dropped where the data set can be read."""
    if isinstance(labels := getattr(loader, "labels", None), Tensor):
        yield labels
        return
    if isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset):
        # A shuffled loader that drops its last batch would count other labels each time.
        loader = DataLoader(loader.dataset, loader.batch_size or 1, collate_fn=loader.collate_fn)
    for batch in loader:
        try:
            _, labels = split_batch(batch)
        except RecipeError as error:
            problem = f"balanced counts labels, but {error.problem}; give a list of weights"
            raise RecipeError(FIELD, problem) from error
        yield class_indices(torch.as_tensor(labels)).long().flatten()


# Criteria of other problems than one label out of several classes.
_UNSUPPORTED = (
    nn.BCELoss,
    nn.BCEWithLogitsLoss,
    nn.MultiLabelMarginLoss,
    nn.MultiLabelSoftMarginLoss,
    nn.MSELoss,
    nn.L1Loss,
    nn.SmoothL1Loss,
    nn.HuberLoss,
    nn.GaussianNLLLoss,
    nn.PoissonNLLLoss,
)

SUPPORTED = "a search is for classification with one label out of several classes, as "
SUPPORTED += "nn.CrossEntropyLoss trains; several labels of one example, and regression, are not "
SUPPORTED += "supported"


def refuse_lost_settings(criterion: object, loss: LossSettings) -> None:
    """Refuse a module's own criterion with settings that the recipe's loss has not."""

    def own(name: str, default: Any) -> Any:
        if isinstance(criterion, partial):
            return criterion.keywords.get(name, default)
        return getattr(criterion, name, default)

    def lost(name: str, field: str, value: object) -> RecipeError:
        return RecipeError(
            f"loss.{field}",
            f"candidates replace the module's own criterion, whose {name}={value} would be "
            f"dropped. Write it into the recipe, where candidates and baselines honor it:\n"
            f"  loss: {{{field}: {value}}}\nor take it out of the module",
        )

    if isinstance(criterion, _UNSUPPORTED):
        name = type(criterion).__name__
        raise RecipeError("model.class_path", f"the module's own criterion is {name}: {SUPPORTED}")
    weight = own("weight", None)
    if isinstance(weight, Tensor) and weight.ndim == 1:
        weights = [float(f"{w:.6g}") for w in weight.tolist()]
        given = loss.class_weights if isinstance(loss.class_weights, tuple) else ()
        if len(given) != len(weights) or not np.allclose(weights, given):
            raise lost("weight", "class_weights", weights)
    for name in ("label_smoothing", "ignore_index"):
        default = LossSettings.model_fields[name].default
        value = own(name, default)
        if isinstance(value, int | float) and value not in (default, getattr(loss, name)):
            if name == "label_smoothing" and loss.base == "cross_entropy":
                raise RecipeError(
                    "model.class_path",
                    f"the module's own criterion has label_smoothing={value}, which would be "
                    "dropped: a search from cross-entropy finds its own. Take it out of the module",
                )
            raise lost(name, name, value)
    if (reduction := own("reduction", "mean")) != "mean":
        raise RecipeError(
            "model.class_path",
            f"the module's own criterion has reduction={reduction!r}, which would be dropped: the "
            "losses of a search are means over a batch. Take it out of the module, and multiply in "
            "training_step if you need another scale",
        )
