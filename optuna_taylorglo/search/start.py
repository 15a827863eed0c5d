"""Where a Taylor search starts: at θ = 0, or at the expansion of a loss (`search.start`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optuna_taylorglo.errors import LossFileError, RecipeError
from optuna_taylorglo.losses.expansion import Expansion
from optuna_taylorglo.losses.tree import (
    BAIKAL,
    BAIKAL_CMA_COEFFICIENTS,
    CROSS_ENTROPY,
    Tree,
)
from optuna_taylorglo.losses.tree_expansion import expanded_theta
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.recipes.search_settings import StartSettings
from optuna_taylorglo.search.form import form_of

if TYPE_CHECKING:
    from optuna_taylorglo.losses.loading import EvolvedLoss
    from optuna_taylorglo.losses.taylor_loss import TaylorLoss

NAMED: dict[str, tuple[Tree, tuple[float, ...] | None]] = {
    "cross_entropy": (CROSS_ENTROPY, None),
    "baikal": (BAIKAL, None),
    "baikal_cma": (BAIKAL, BAIKAL_CMA_COEFFICIENTS),
}
"""Losses that are known by name, as trees with their coefficients."""


def settle_start(recipe: Recipe) -> Recipe:
    """The recipe with the θ that its search starts at, which a study keeps in place of a file.

    Raises:
        RecipeError: If the loss cannot be read or expanded.
    """
    start, form = recipe.search.start, form_of(recipe)
    if start is None:
        return recipe
    if start.theta is None:
        start = start.changed(theta=_expansion(start, form))
    elif len(start.theta) != form.n_parameters:
        raise RecipeError(
            "search.start.theta",
            f"has {len(start.theta)} numbers, must have {form.n_parameters}: {form}",
        )
    return recipe.changed(search=recipe.search.changed(start=start))


def _expansion(start: StartSettings, form: Expansion) -> tuple[float, ...]:
    assert start.loss is not None, "a start without θ has a loss"
    tree, coefficients = NAMED.get(start.loss, (None, None))
    if tree is None:
        from optuna_taylorglo.losses.taylor_loss import TaylorLoss

        loss = _file(start.loss)
        if isinstance(loss, TaylorLoss):
            return _same_form(loss, form, start.loss)
        tree, coefficients = loss.tree, loss.coefficients
    center = (start.at[0], start.at[1])
    try:
        return expanded_theta(tree, coefficients, form=form, center=center)
    except ValueError as error:
        raise RecipeError("search.start.at", f"{list(center)} is not allowed: {error}") from error


def _file(path: str) -> EvolvedLoss:
    from optuna_taylorglo.losses.loading import load_loss

    try:
        return load_loss(path)
    except LossFileError as error:
        sentence = f"{path!r} is none of {', '.join(NAMED)}, and no loss file: {error}"
        raise RecipeError("search.start.loss", sentence) from error


def _same_form(loss: TaylorLoss, form: Expansion, path: str) -> tuple[float, ...]:
    """θ of a Taylor loss, which needs no expansion if it is one of the recipe's."""
    if loss.form != form or loss.anchor is not None:
        base = "" if loss.anchor is None else " on cross-entropy"
        raise RecipeError(
            "search.start.loss",
            f"{path!r} has a loss of another form, {loss.form}{base}; the recipe's is {form}",
        )
    return loss.theta
