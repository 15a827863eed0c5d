"""Trainings of the candidates' length by which opponents are tuned: judged on validation."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.seeds import Stage
from optuna_taylorglo.verdict.compared_losses import ComparedLoss
from optuna_taylorglo.verdict.tasks import Do, Task, stage_task


def validation_task(recipe: Recipe, loss: ComparedLoss, stage: Stage, number: int) -> Task:
    """Training `number` of a stage, judged by the recipe's fitness.

    Args:
        recipe: The study's recipe.
        loss: The loss.
        stage: The stage; losses with the same number in it start from the same weights.
        number: From 0.
    """
    length = recipe.budget.evaluation_length
    return stage_task(recipe, loss, stage, number, length=length)


def train_each(
    losses: Sequence[ComparedLoss],
    numbers: range,
    recipe: Recipe,
    stage: Stage,
    do: Do,
) -> list[list[float | None]]:
    """Have losses trained with the same seeds.

    Args:
        losses: The losses.
        numbers: Which trainings of the stage each of them gets.
        recipe: The study's recipe.
        stage: The stage.
        do: Does tasks.

    Returns:
        For each loss its values, None for a training that diverged.
    """
    tasks = [validation_task(recipe, c, stage, n) for c in losses for n in numbers]
    values = do(tasks)
    return [values[i : i + len(numbers)] for i in range(0, len(values), len(numbers))]


def score(values: Sequence[float | None], sign: int) -> float:
    """By what losses are ranked: greater is better, and one that diverged is the worst.

    Args:
        values: What the trainings reached; None for one that diverged.
        sign: That of the recipe's fitness.
    """
    return statistics.fmean(-math.inf if value is None else sign * value for value in values)
