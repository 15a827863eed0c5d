"""From a recipe to its search space, and from a point of that space to a loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from optuna.pruners import BasePruner, NopPruner

from optuna_taylorglo.canonical import Canonical, from_canonical, normalise_scale, trainability
from optuna_taylorglo.loss import TaylorLoss
from optuna_taylorglo.pruner import EarlyAbortPruner
from optuna_taylorglo.recipe import Recipe
from optuna_taylorglo.sampler import TaylorGLOSampler
from optuna_taylorglo.studies import slot_rules
from optuna_taylorglo.taylor import expansion


def parameter_names(recipe: Recipe) -> tuple[str, ...]:
    """Names of the parameters that the search varies."""
    if recipe.search.space == "canonical":
        return Canonical._fields
    return expansion(recipe.loss.order, recipe.loss.variables, recipe.loss.folded).parameter_names


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
    settings = recipe.loss
    theta = tuple(parameters)
    if recipe.search.space == "canonical":
        theta = from_canonical(theta, folded=settings.folded)
    if recipe.search.scale == "normalised":
        theta = normalise_scale(
            theta,
            n_classes,
            order=settings.order,
            variables=settings.variables,
            folded=settings.folded,
            class_reduction=settings.class_reduction,
        )
    return theta


def candidate_loss(recipe: Recipe, parameters: Sequence[float], n_classes: int) -> TaylorLoss:
    """The loss that a candidate stands for; arguments as in `candidate_theta`."""
    settings = recipe.loss
    loss = TaylorLoss(
        candidate_theta(recipe, parameters, n_classes),
        order=settings.order,
        variables=settings.variables,
        folded=settings.folded,
        class_reduction=settings.class_reduction,
    )
    loss.n_classes = n_classes
    return loss


def make_sampler(recipe: Recipe, n_classes: int) -> TaylorGLOSampler:
    """The sampler that proposes the recipe's candidates."""
    settings = recipe.loss

    def can_begin_to_learn(parameters: Sequence[float]) -> bool:
        theta = tuple(parameters)
        if recipe.search.space == "canonical":
            theta = from_canonical(theta, folded=settings.folded)
        h = trainability(
            theta,
            n_classes,
            order=settings.order,
            variables=settings.variables,
            folded=settings.folded,
        )
        return h > 0

    return TaylorGLOSampler(
        names=parameter_names(recipe),
        sigma=recipe.search.sigma,
        seed=recipe.search.seed,
        **asdict(slot_rules(recipe)),
        accept=can_begin_to_learn if recipe.search.filter == "trainable" else None,
    )


def make_pruner(recipe: Recipe) -> BasePruner:
    """The pruner that gives up the recipe's hopeless candidates."""
    if recipe.early_abort is None:
        return NopPruner()
    return EarlyAbortPruner(recipe.early_abort.threshold, recipe.early_abort.at)
