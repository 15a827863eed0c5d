"""What a user would take instead of an evolved loss, each tuned on validation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from optuna_taylorglo.losses.loading import load_loss
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.seeds import Stage
from optuna_taylorglo.verdict.compared_losses import (
    ComparedLoss,
    compared_evolved_loss,
    cross_entropy,
    standard_loss,
)
from optuna_taylorglo.verdict.equal_budget import best_standard_loss
from optuna_taylorglo.verdict.families import FAMILIES
from optuna_taylorglo.verdict.learning_rates import LearningRates
from optuna_taylorglo.verdict.statistics import Role
from optuna_taylorglo.verdict.tasks import Do
from optuna_taylorglo.verdict.validation import score, train_each

LEARNING_RATE_FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""Learning rates of cross-entropy, in terms of the recipe's or the module's own."""

GRID_FACTORS = (0.03, 0.1, 0.3, 1.0, 3.0)
"""Learning rates in a grid with a loss's parameter; robust losses want smaller ones."""

TUNING_SEEDS = 2


TUNED_RATE = "ce-tuned"
"""The opponent of which nothing but the learning rate is tuned."""


def opponents(
    names: Sequence[str], recipe: Recipe, do: Do, rates: LearningRates
) -> list[ComparedLoss]:
    """The losses to compare with, less one that is only a tuned rate where none can be tuned."""
    if rates.obstacle is not None:
        names = [name for name in names if name != TUNED_RATE]
    return [opponent(name, recipe, do, rates) for name in names]


def opponent(name: str, recipe: Recipe, do: Do, rates: LearningRates | None = None) -> ComparedLoss:
    """A loss to compare with, tuned if its name says so.

    Args:
        name: Out of `families.BASELINES`, or path of a loss file.
        recipe: The study's recipe.
        do: Does tasks.
        rates: What learning rates there are; None: multiples of the recipe's.
    """
    rates = rates or LearningRates.of(recipe)
    if name == "ce":
        return cross_entropy(role=Role.REFERENCE)
    if name in ("baikal", "baikal-cma"):
        return ComparedLoss(name, {"baikal": "Baikal", "baikal-cma": "BaikalCMA"}[name], name)
    if name == TUNED_RATE:
        return _tuned_cross_entropy(name, recipe, do, rates)
    if name == "ce-smoothed":
        return _smoothed_cross_entropy(name, recipe, do)
    if name == "best-standard":
        return best_standard_loss(name, recipe, do, rates)
    if name in FAMILIES:
        return _tuned_in_grid(name, recipe, do, rates)
    return compared_evolved_loss(Path(name).stem, name, Role.BASELINE, load_loss(name))


def _tuned_cross_entropy(name: str, recipe: Recipe, do: Do, rates: LearningRates) -> ComparedLoss:
    tried = [
        cross_entropy(name, f"cross-entropy, {rates.words(rate)} (tuned)", **rates.settings(rate))
        for rate in rates.times(LEARNING_RATE_FACTORS)
    ]
    return _best_on_validation(tried, TUNING_SEEDS, recipe, do)


def _smoothed_cross_entropy(name: str, recipe: Recipe, do: Do) -> ComparedLoss:
    """Label smoothing at the recipe's own learning rate, as older verdicts have it."""
    tried = [
        cross_entropy(
            name,
            f"cross-entropy, label smoothing {smoothing:g} (tuned)",
            settings={"label_smoothing": smoothing},
        )
        for smoothing in FAMILIES["label-smoothing"].grid
    ]
    return _best_on_validation(tried, TUNING_SEEDS, recipe, do)


def _tuned_in_grid(name: str, recipe: Recipe, do: Do, rates: LearningRates) -> ComparedLoss:
    family = FAMILIES[name]
    tried = [
        standard_loss(name, family, value, rates, rate)
        for value in family.grid
        for rate in rates.times(GRID_FACTORS)
    ]
    best = _best_on_validation(tried, 1, recipe, do)
    return replace(best, label=f"{best.label} (best of {len(tried)})")


def _best_on_validation(
    tried: Sequence[ComparedLoss], n_seeds: int, recipe: Recipe, do: Do
) -> ComparedLoss:
    """The loss that is best at the candidates' budget; the first of equal ones."""
    results = train_each(tried, range(n_seeds), recipe, Stage.TUNE, do)
    scores = [score(values, recipe.fitness.sign) for values in results]
    return tried[scores.index(max(scores))]
