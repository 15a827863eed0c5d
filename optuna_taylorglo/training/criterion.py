"""Settings of a criterion besides its loss: class weights, and those of a user's module."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from optuna_taylorglo.errors import RecipeError
from optuna_taylorglo.recipes.schema import LossSettings, Recipe

FIELD = "loss.class_weights"


def with_class_weights(recipe: Recipe, loader: Any, n_classes: int) -> Recipe:
    """The recipe with a number in place of "balanced" for each class.

    Args:
        recipe: The recipe.
        loader: Training batches of (inputs, labels).
        n_classes: Number of classes.

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

    Raises:
        RecipeError: If a label is out of range, or a class has no label.
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
        counts += torch.bincount(labels.flatten(), minlength=n_classes)
    counted = [k for k in range(n_classes) if k != ignore_index]
    if empty := [k for k in counted if counts[k] == 0]:
        raise RecipeError(
            FIELD,
            f"balanced has no weight for class {empty[0]}, which has no training label; give a "
            "list of weights",
        )
    n = int(counts.sum())
    weight = {k: n / (len(counted) * int(counts[k])) for k in counted}
    return tuple(weight.get(k, 1.0) for k in range(n_classes))


def _labels(loader: Any) -> Iterator[Tensor]:
    """All training labels, some at a time; none is dropped where the data set can be read."""
    if isinstance(labels := getattr(loader, "labels", None), Tensor):
        yield labels
        return
    if isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset):
        # A shuffled loader that drops its last batch would count other labels each time.
        loader = DataLoader(loader.dataset, loader.batch_size or 1, collate_fn=loader.collate_fn)
    for batch in islice(loader, len(loader)):
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise RecipeError(
                FIELD,
                "balanced counts the labels of batches (inputs, labels), which the data's are not; "
                "give a list of weights",
            )
        yield torch.as_tensor(batch[1]).long()


def refuse_lost_settings(criterion: object, loss: LossSettings) -> None:
    """Refuse a module's own criterion whose settings would be lost when a candidate replaces it.

    Args:
        criterion: What the module's constructor made.
        loss: The recipe's loss, which may have the same settings.

    Raises:
        RecipeError: If it has not; the message names the setting and the field for it.
    """

    def get(name: str, default: Any) -> Any:
        if isinstance(criterion, partial):
            return criterion.keywords.get(name, default)
        return getattr(criterion, name, default)

    weight = get("weight", None)
    if isinstance(weight, Tensor) and weight.ndim == 1 and not _same(weight, loss.class_weights):
        raise _lost("weight", "class_weights", [float(f"{w:.6g}") for w in weight.tolist()])
    for name in ("label_smoothing", "ignore_index"):
        default = LossSettings.model_fields[name].default
        value = get(name, default)
        if not isinstance(value, int | float) or value in (default, getattr(loss, name)):
            continue
        if name == "label_smoothing" and loss.base == "cross_entropy":
            raise RecipeError(
                "loss.base",
                f"cross_entropy searches label smoothing, so {name}={value} of the module's "
                "own criterion would be dropped; take it out of the module",
            )
        raise _lost(name, name, value)
    if (reduction := get("reduction", "mean")) != "mean":
        raise RecipeError(
            "model.class_path",
            f"the module's own criterion has reduction={reduction!r}, which would be dropped: the "
            "losses of a search are means over a batch. Take it out of the module, and multiply in "
            "training_step if you need another scale",
        )


def _same(weight: Tensor, class_weights: object) -> bool:
    if not isinstance(class_weights, tuple) or len(class_weights) != len(weight):
        return False
    return torch.allclose(weight.detach().cpu().double(), torch.tensor(class_weights).double())


def _lost(argument: str, field: str, value: object) -> RecipeError:
    return RecipeError(
        f"loss.{field}",
        f"candidates replace the module's own criterion, whose {argument}={value} would be "
        f"dropped. Write it into the recipe, where candidates and baselines honor it:\n"
        f"  loss: {{{field}: {value}}}\nor take it out of the module",
    )
