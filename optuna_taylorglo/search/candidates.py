"""From a recipe to its search space, and from a point of that space to a loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from optuna.pruners import BasePruner, NopPruner

from optuna_taylorglo.losses.canonical import (
    collapse_ratio,
    from_canonical,
    normalise_scale,
    trainability,
)
from optuna_taylorglo.losses.taylor_loss import TaylorLoss
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.search.pruners import EarlyAbortPruner, EarlyEndPruner, FallingBehindPruner
from optuna_taylorglo.search.sampler import TaylorGLOSampler
from optuna_taylorglo.search.study import parameter_names, slot_rules


def candidate_theta(
    recipe: Recipe, parameters: Sequence[float], n_classes: int
) -> tuple[float, ...]:
    """θ of a candidate, as the loss is built from it.

    Args:
        recipe: The recipe.
        parameters: The candidate, in the order of `parameter_names`.
        n_classes: Number of classes of the data.

    Raises:
        ValueError: If scales are normalised and the candidate has none (it cannot learn).
    """
    theta = _proposed_theta(recipe, parameters)
    if recipe.search.scale == "normalised":
        reduction = recipe.loss.class_reduction
        return normalise_scale(theta, n_classes, class_reduction=reduction, **_form(recipe))
    return theta


def candidate_loss(recipe: Recipe, parameters: Sequence[float], n_classes: int) -> TaylorLoss:
    """The loss that a candidate stands for; arguments as in `candidate_theta`."""
    theta = candidate_theta(recipe, parameters, n_classes)
    loss = TaylorLoss(theta, class_reduction=recipe.loss.class_reduction, **_form(recipe))
    loss.n_classes = n_classes
    return loss


def make_sampler(recipe: Recipe, n_classes: int) -> TaylorGLOSampler:
    """The sampler that proposes the recipe's candidates."""

    def promises(parameters: Sequence[float]) -> bool:
        theta = _proposed_theta(recipe, parameters)
        if trainability(theta, n_classes, **_form(recipe)) <= 0:
            return False
        if recipe.search.filter == "trainable":
            return True
        order, folded = recipe.loss.order, recipe.loss.folded
        return collapse_ratio(theta, n_classes, order=order, folded=folded) < 1

    return TaylorGLOSampler(
        names=parameter_names(recipe),
        sigma=recipe.search.sigma,
        seed=recipe.search.seed,
        **asdict(slot_rules(recipe)),
        accept=None if recipe.search.filter == "none" else promises,
    )


def make_pruner(recipe: Recipe, in_steps: Callable[[int, str], int]) -> EarlyEndPruner:
    """The pruner that gives up the recipe's hopeless candidates; reports count optimiser steps.

    Args:
        recipe: The recipe.
        in_steps: Turns a length in "steps" or "epochs" into a number of optimiser steps.
    """
    abort: BasePruner = NopPruner()
    stop: BasePruner = NopPruner()
    if (rule := recipe.early_abort) is not None:
        abort = EarlyAbortPruner(rule.threshold, in_steps(rule.at, rule.unit))
    if (pace := recipe.early_stop) is not None:
        step = in_steps(pace.at, pace.unit)
        stop = FallingBehindPruner(popsize=recipe.search.population, keep=pace.keep, step=step)
    return EarlyEndPruner(abort, stop)


def _proposed_theta(recipe: Recipe, parameters: Sequence[float]) -> tuple[float, ...]:
    """θ as the search proposes it, before its scale is normalised."""
    if recipe.search.space == "canonical":
        return from_canonical(parameters, folded=recipe.loss.folded)
    return tuple(parameters)


def _form(recipe: Recipe) -> dict[str, Any]:
    """The form of the recipe's losses, as the functions of `canonical` take it."""
    settings = recipe.loss
    return {
        "order": settings.order,
        "variables": settings.variables,
        "folded": settings.folded,
    }
