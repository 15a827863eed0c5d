"""Settings of a criterion besides its loss: class weights, and those of a user's module."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from optuna_taylorglo.errors import RecipeError
from optuna_taylorglo.recipes.schema import LossSettings, Recipe

FIELD = "loss.class_weights"


def with_class_weights(recipe: Recipe, loader: Any, n_classes: int) -> Recipe:
    """The recipe with a number for each class in place of "balanced".

    Raises:
        RecipeError: If the number of weights is another, or a class has no training example by
            which to balance it.
    """
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
    """n/(K n_k) for each of K classes, with n_k of the n training labels.

    An ignored class is not one of the K and has the weight 1.
    """
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
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise RecipeError(
                FIELD,
                "balanced counts the labels of batches (inputs, labels), which the data's are not; "
                "give a list of weights",
            )
        yield torch.as_tensor(batch[1]).long().flatten()


def refuse_lost_settings(criterion: object, loss: LossSettings) -> None:
    """Refuse a module's own criterion whose settings would be lost when a candidate replaces it.

    Raises:
        RecipeError: If the recipe's loss has not the same; the message names the field for it.
    """

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
            raise lost(name, name, value)
    if (reduction := own("reduction", "mean")) != "mean":
        raise RecipeError(
            "model.class_path",
            f"the module's own criterion has reduction={reduction!r}, which would be dropped: the "
            "losses of a search are means over a batch. Take it out of the module, and multiply in "
            "training_step if you need another scale",
        )
