"""What a training that diverged counts as.

It has no metric, and leaving it out would flatter a loss that is a gamble. So it counts as the
worst value that any of the trainings compared with it reached; and for an accuracy as guessing, one
of n classes at random, if that is worse.
"""

from __future__ import annotations

from collections.abc import Sequence

from optuna_taylorglo.errors import OperationError
from optuna_taylorglo.recipes.schema import Recipe


def is_accuracy(metric: str, mode: str) -> bool:
    """Whether a metric is a share of right answers, so that guessing comes to 1/n."""
    return mode == "max" and "accuracy" in metric.lower()


def value_of_divergence(
    values: Sequence[float | None], recipe: Recipe, n_classes: int | None
) -> float:
    """What each diverged training among some counts as.

    Args:
        values: What the trainings reached; None for those that diverged.
        recipe: Their recipe.
        n_classes: Number of classes; None if unknown.

    Raises:
        OperationError: If all diverged, so that there is nothing to compare.
    """
    fitness = recipe.fitness
    reached = [value for value in values if value is not None]
    if not reached:
        raise OperationError(
            f"all {len(values)} trainings diverged, the evolved loss's and the others': there is "
            "nothing to compare. A smaller learning rate may help."
        )
    guessing = [1 / n_classes] if n_classes and is_accuracy(fitness.metric, fitness.mode) else []
    return min([*reached, *guessing], key=lambda value: fitness.sign * value)
