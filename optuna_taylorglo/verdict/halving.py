"""Which of several losses ends best? Full trainings on validation, by halving over seeds.

Each round gives the losses that are left more seeds, and the better part of them goes on. All
losses of a stage have the same seeds. What is to be done next is a function of the results so far
and of nothing else, so any worker can work it out, and it does not matter who trains.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.seeds import Stage
from optuna_taylorglo.verdict.compared_losses import ComparedLoss
from optuna_taylorglo.verdict.tasks import Do, Results, Task, stage_task

SEEDS_BY_ROUND = (2, 2, 4)
"""Seeds that each round adds."""

MAX_FINALISTS = 3
"""Losses of the last round, at most."""


@dataclass(frozen=True)
class Round:
    """Trainings that are needed before anything else can be said.

    Attributes:
        number: Which round it is, from 1.
        tasks: Its trainings.
    """

    number: int
    tasks: list[Task]


@dataclass(frozen=True)
class Placed:
    """A loss in the ranking.

    Attributes:
        index: Which of the compared losses it is.
        values: Metric of each training, in order of the seeds; None for one that diverged.
        mean: Mean of the values, with diverged trainings as bad as the worst.
    """

    index: int
    values: tuple[float | None, ...]
    mean: float


def next_round(
    losses: Sequence[ComparedLoss],
    recipe: Recipe,
    stage: Stage,
    results: Results,
    *,
    favorite: int | None = None,
) -> Round | list[Placed]:
    """What to train next, or the ranking.

    Args:
        losses: The losses to compare.
        recipe: The recipe by which they are trained; its full budget counts.
        stage: Decides the seeds.
        results: Values of tasks, or None while any of them is open.
        favorite: Index of a loss that goes on to the last round in any case, and wins unless
            another's mean is better by more than a standard error of the difference.

    Returns:
        The first round that is not done, or all losses from the best to the worst: those of the
        last round by their means, then those that left it before.
    """
    values: list[list[float | None]] = [[] for _ in losses]
    staying, left = list(range(len(losses))), list[int]()
    seeds_done, sign = 0, recipe.fitness.sign
    for number, n_seeds in enumerate(SEEDS_BY_ROUND, start=1):
        tasks = [
            stage_task(recipe, losses[i], stage, seed)
            for i in staying
            for seed in range(seeds_done, seeds_done + n_seeds)
        ]
        found = results(tasks)
        if found is None:
            return Round(number, tasks)
        for place, i in enumerate(staying):
            values[i] += found[place * n_seeds : (place + 1) * n_seeds]
        seeds_done += n_seeds
        means = _means(values, sign)
        staying.sort(key=lambda i: (-sign * means[i], i))
        n_kept = len(staying) if number == len(SEEDS_BY_ROUND) else _n_kept(len(staying), number)
        going = [i for i in staying[n_kept:] if i != favorite]
        staying, left = [i for i in staying if i not in going], going + left
        if len(losses) == 1:
            break
    if favorite in staying and not _clearly_better(values[staying[0]], values[favorite], sign):
        staying.remove(favorite)
        staying.insert(0, favorite)
    return [Placed(i, tuple(values[i]), means[i]) for i in staying + left]


def halve(losses: Sequence[ComparedLoss], recipe: Recipe, do: Do, stage: Stage) -> list[Placed]:
    """The losses from the best to the worst, as `next_round` says, with `do` doing the tasks."""
    ranking = next_round(losses, recipe, stage, do)
    assert not isinstance(ranking, Round), "what does tasks leaves none open"
    return ranking


def _n_kept(n: int, round_number: int) -> int:
    """How many of n losses go on after a round: the better half, and few into the last round."""
    half = min(n, max(2, math.ceil(n / 2)))
    return min(half, MAX_FINALISTS) if round_number == len(SEEDS_BY_ROUND) - 1 else half


def _clearly_better(
    values: Sequence[float | None], others: Sequence[float | None], sign: int
) -> bool:
    """Whether a mean is better by more than a standard error; the seeds are the same in both."""
    if None in others:
        return True  # what diverges now and then is nobody's favorite
    if None in values:
        return False
    differences = [
        sign * (a - b)
        for a, b in zip(values, others, strict=True)
        if a is not None and b is not None
    ]
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    return statistics.fmean(differences) > error


def _means(values: Sequence[Sequence[float | None]], sign: int) -> list[float]:
    # Metrics need not be accuracies: 0 is the worst of those, but not of a negative one.
    worst = sign * min([0.0, *(sign * v for row in values for v in row if v is not None)])
    return [statistics.fmean(worst if v is None else v for v in row) for row in values]
