"""From a recipe to its search space, and from a point of that space to a loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from optuna.pruners import BasePruner, NopPruner

from optuna_taylorglo.losses.canonical import (
    Canonical,
    collapse_ratio,
    from_canonical,
    normalise_scale,
    trainability,
)
from optuna_taylorglo.losses.expansion import Expansion
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.search.pruners import EarlyAbortPruner, EarlyEndPruner, FallingBehindPruner
from optuna_taylorglo.search.sampler import TaylorGLOSampler
from optuna_taylorglo.search.study import slot_rules

if TYPE_CHECKING:
    from optuna_taylorglo.losses.taylor_loss import TaylorLoss


def form_of(recipe: Recipe) -> Expansion:
    """The form of the recipe's losses."""
    return Expansion(recipe.loss.order, recipe.loss.variables, recipe.loss.folded)


def parameter_names(recipe: Recipe) -> tuple[str, ...]:
    """Names of the parameters that the search varies."""
    if recipe.search.space == "canonical":
        return Canonical._fields
    return form_of(recipe).parameter_names


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
    form = form_of(recipe)
    theta = _proposed_theta(recipe, form, parameters)
    if recipe.search.scale == "free":
        return theta
    return normalise_scale(theta, n_classes, form, class_reduction=recipe.loss.class_reduction)


def candidate_loss(recipe: Recipe, parameters: Sequence[float], n_classes: int) -> TaylorLoss:
    """The loss that a candidate stands for; arguments as in `candidate_theta`."""
    from optuna_taylorglo.losses.taylor_loss import TaylorLoss

    theta = candidate_theta(recipe, parameters, n_classes)
    reduction = recipe.loss.class_reduction
    loss = TaylorLoss(theta, **asdict(form_of(recipe)), class_reduction=reduction)
    loss.n_classes = n_classes
    return loss


def make_sampler(recipe: Recipe, n_classes: int) -> TaylorGLOSampler:
    """The sampler that proposes the recipe's candidates."""
    form = form_of(recipe)

    def promises(parameters: Sequence[float]) -> bool:
        theta = _proposed_theta(recipe, form, parameters)
        if trainability(theta, n_classes, form) <= 0:
            return False
        return recipe.search.filter == "trainable" or collapse_ratio(theta, n_classes, form) < 1

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


def _proposed_theta(
    recipe: Recipe, form: Expansion, parameters: Sequence[float]
) -> tuple[float, ...]:
    """θ as the search proposes it, before its scale is normalised."""
    if recipe.search.space == "canonical":
        return from_canonical(parameters, form)
    return tuple(parameters)
