"""Which polynomials a recipe's losses are."""

from optuna_taylorglo.losses.expansion import Expansion
from optuna_taylorglo.recipes.schema import Recipe


def form_of(recipe: Recipe) -> Expansion:
    """The form of the losses of a Taylor search."""
    return Expansion(recipe.loss.order, recipe.loss.variables, recipe.loss.folded)
