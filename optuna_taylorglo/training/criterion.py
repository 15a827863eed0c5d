"""What a module's criterion is given beside the loss: weights of classes and its own settings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from optuna_taylorglo.errors import RecipeError
from optuna_taylorglo.recipes.schema import LossSettings, Recipe

FIELD = "loss.class_weights"


def with_settled_weights(recipe: Recipe, loader: Any, n_classes: int) -> Recipe:
    """The recipe with a weight for each class, if it weighs them at all.

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

    A class that is ignored is none of the K, and has the weight 1.

    Args:
        loader: Training batches of (inputs, labels), which may have all labels as `labels`.
        n_classes: Number of classes.
        ignore_index: Label that does not count.

    Raises:
        RecipeError: If a label is no class, or a class has no label.
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
            f"balanced has no weight for class {empty[0]}, which no training label names; give a "
            "list of weights",
        )
    n = int(counts.sum())
    weight = {k: n / (len(counted) * int(counts[k])) for k in counted}
    return tuple(weight.get(k, 1.0) for k in range(n_classes))


def _labels(loader: Any) -> Any:
    """All training labels, some at a time; none is dropped where the data set can be read."""
    if isinstance(labels := getattr(loader, "labels", None), Tensor):
        yield labels
        return
    batches = loader
    if isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset):
        # In order and to the end: a shuffled loader that drops the last batch would not count the
        # same labels twice.
        batches = DataLoader(
            loader.dataset, loader.batch_size or 1, collate_fn=loader.collate_fn, drop_last=False
        )
    for batch in islice(batches, len(batches)):
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise RecipeError(
                FIELD,
                "balanced counts the labels of batches (inputs, labels), which the data's are not; "
                "give a list of weights",
            )
        yield torch.as_tensor(batch[1]).long()


def refuse_lost_settings(criterion: object, loss: LossSettings) -> None:
    """Refuse a criterion whose settings the search would drop with it.

    Args:
        criterion: What the module's constructor has put in the place of the search's losses.
        loss: The recipe's loss, which may say the same.

    Raises:
        RecipeError: If it does not; the message names what is lost and the field for it.
    """
    get = _getter(criterion)
    weight = get("weight", None)
    if isinstance(weight, Tensor) and weight.ndim == 1 and not _same(weight, loss.class_weights):
        raise _lost("weight", "class_weights", [float(f"{w:.6g}") for w in weight.tolist()])
    for name in ("label_smoothing", "ignore_index"):
        default = LossSettings.model_fields[name].default
        value = get(name, default)
        if isinstance(value, int | float) and value not in (default, getattr(loss, name)):
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


def _getter(criterion: object) -> Callable[[str, Any], Any]:
    if isinstance(criterion, partial):
        return criterion.keywords.get
    return lambda name, default: getattr(criterion, name, default)


def _same(weight: Tensor, class_weights: object) -> bool:
    if not isinstance(class_weights, tuple) or len(class_weights) != len(weight):
        return False
    return torch.allclose(weight.detach().cpu().double(), torch.tensor(class_weights).double())


def _lost(argument: str, field: str, value: object) -> RecipeError:
    return RecipeError(
        f"loss.{field}",
        f"the search puts its losses in the place of the module's own criterion, whose "
        f"{argument}={value} would be dropped. Write it into the recipe, where candidates and all "
        f"that they are compared with honor it:\n  loss: {{{field}: {value}}}\nor take it out of "
        "the module",
    )
