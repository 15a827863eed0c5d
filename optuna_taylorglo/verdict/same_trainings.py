"""Compared losses whose trainings are the very same: one row, trained once and tested once.

Tuning may end where it began, and a loss file may hold the winner. Two rows of the same numbers
would say nothing twice, and Holm's correction would charge for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.seeds import Stage
from optuna_taylorglo.verdict.compared_losses import ComparedLoss
from optuna_taylorglo.verdict.learning_rates import LearningRates
from optuna_taylorglo.verdict.statistics import Role
from optuna_taylorglo.verdict.tasks import stage_task


@dataclass(frozen=True)
class Row:
    """One loss of a verdict, by all its names.

    Attributes:
        loss: The loss; its label says what else it is.
        also: Names of the others that it is.
    """

    loss: ComparedLoss
    also: tuple[str, ...] = ()


def one_row_each(losses: Sequence[ComparedLoss], recipe: Recipe) -> list[Row]:
    """The losses in order, those that are trained alike put together.

    Args:
        losses: The losses.
        recipe: The recipe by which they are trained.
    """
    groups: dict[str, list[ComparedLoss]] = {}
    for loss in losses:
        # The seed and the length are the same for all.
        key = stage_task(recipe, _without_defaults(loss, recipe), Stage.TEST, 0).key
        groups.setdefault(key, []).append(loss)
    return [_row(group, recipe) for group in groups.values()]


def _without_defaults(loss: ComparedLoss, recipe: Recipe) -> ComparedLoss:
    """The same training in fewer words, for comparison only: tasks are known by theirs."""
    if loss.learning_rate == LearningRates.of(recipe).base:
        loss = replace(loss, learning_rate=None)
    if loss.kind == "cross-entropy" and loss.settings.get("label_smoothing") == 0:
        settings = {k: v for k, v in loss.settings.items() if k != "label_smoothing"}
        loss = replace(loss, settings=settings)
    return loss


def _row(group: Sequence[ComparedLoss], recipe: Recipe) -> Row:
    roles = list(Role)
    first, *others = sorted(group, key=lambda loss: roles.index(loss.role))
    label = first.label
    if first.role == Role.REFERENCE and any(other.name == "ce-tuned" for other in others):
        rates = LearningRates.of(recipe)
        label = f"cross-entropy ({rates.words(rates.start)}; tuning kept it)"
        others = [other for other in others if other.name != "ce-tuned"]
    for other in dict.fromkeys(other.label for other in others if other.label != first.label):
        label += f", the same as {other}"
    also = tuple(dict.fromkeys(loss.name for loss in group if loss.name != first.name))
    return Row(replace(first, label=label), also)
