"""What an own module's criterion was set to, which a search must not drop in silence."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from optuna_taylorglo.errors import RecipeError
from optuna_taylorglo.recipes.schema import LossSettings


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
