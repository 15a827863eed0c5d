"""The selection of a winner by full trainings on validation: successive halving over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from optuna.study import Study
from torch import Tensor

from optuna_taylorglo.attributes import SELECTION
from optuna_taylorglo.errors import StudyError
from optuna_taylorglo.losses.describe import logit_gradients, relative_distance
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.search.candidates import (
    Point,
    candidate_loss,
    make_sampler,
    stored_candidate,
)
from optuna_taylorglo.search.glo import GLOSampler, TreePoint
from optuna_taylorglo.search.history import ranked_trials, recipe_and_classes, trial_loss
from optuna_taylorglo.seeds import Stage
from optuna_taylorglo.verdict.statistics import Role
from optuna_taylorglo.verdict.tasks import (
    ComparedLoss,
    Do,
    Results,
    Task,
    compared_evolved_loss,
    stage_task,
)
from optuna_taylorglo.verdict.winner import (
    Finalist,
    SelectedLoss,
    Selection,
    is_undecided,
    save_selection,
    selected_loss,
)

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


SAME_FUNCTION = 0.03
"""Relative distance of gradients up to which two losses count as the same."""


class WinnerSelection:
    """The selection of a search that is over.

    Args:
        study: A study whose generations are complete.
        recipe: Its recipe, with `selection`.
    """

    def __init__(self, study: Study, recipe: Recipe) -> None:
        self.recipe = recipe
        self.finalists = finalists(study, recipe)
        _, n_classes = recipe_and_classes(study)
        self._losses = [
            compared_evolved_loss(
                "finalist", c.name, Role.EVOLVED, candidate_loss(recipe, c.parameters, n_classes)
            )
            for c in self.finalists
        ]

    def next_step(self, results: Results) -> Round | Selection:
        """What to train next, or the decision."""
        # The mean of many good candidates lies amid them; the best of them may lie at an edge
        # beyond which trainings fail, and owe its place to seeds that did not.
        means = [i for i, c in enumerate(self.finalists) if c.trial is None]
        step = next_round(
            self._losses,
            self.recipe,
            Stage.SELECTION,
            results,
            favorite=means[0] if means else None,
        )
        if isinstance(step, Round):
            return step
        return Selection(
            tuple(
                Finalist(c.trial, c.parameters, c.evaluation, placed.values, placed.mean)
                for placed in step
                for c in [self.finalists[placed.index]]
            )
        )


def finalists(study: Study, recipe: Recipe) -> list[Finalist]:
    """The best candidates that differ as functions, and the mean of the final distribution.

    Returns:
        Candidates from the best evaluation to the worst, then the mean; nothing if none trained.
    """
    _, n_classes = recipe_and_classes(study)
    limit = recipe.selection.candidates if recipe.selection is not None else 1
    found: list[Finalist] = []
    gradients: list[Tensor] = []
    for trial in ranked_trials(study):
        gradient = logit_gradients(trial_loss(study, trial), n_classes)
        if all(relative_distance(gradient, other) > SAME_FUNCTION for other in gradients):
            gradients.append(gradient)
            parameters = stored_candidate(recipe, trial)
            assert parameters is not None, "what is ranked is a candidate"
            found.append(Finalist(trial.number, parameters, trial.values[0]))
        if len(found) == limit:
            break
    mean = final_mean(study, recipe, n_classes)
    if found and mean is not None:
        try:
            candidate_loss(recipe, mean, n_classes)
        except ValueError:
            return found  # it cannot learn, so it has no scale to normalize
        found.append(Finalist(None, mean, None))
    return found


def final_mean(study: Study, recipe: Recipe, n_classes: int) -> Point | None:
    """The mean of the final distribution of CMA-ES; None if a GLO search has no second stage."""
    sampler = make_sampler(recipe, n_classes)
    states = sampler.search_state(study)
    if not states:
        return None
    if isinstance(sampler, GLOSampler) and sampler.best_tree is not None:
        return TreePoint(tuple(sampler.best_tree.to_prefix()), states[-1].mean)
    return states[-1].mean


def choose(study: Study, recipe: Recipe, do: Do) -> SelectedLoss:
    """The winner, chosen now if that is due.

    Raises:
        StudyError: If it cannot be chosen yet.
    """
    if is_undecided(study, recipe):
        selection = WinnerSelection(study, recipe).next_step(do)
        assert isinstance(selection, Selection), "what does tasks leaves none open"
        save_selection(study, selection, recipe)
    if recipe.selection is not None and study.user_attrs.get(SELECTION) is None:
        raise StudyError(
            f"study {study.study_name!r} has no winner yet: its recipe has it chosen when all "
            f"{recipe.search.total_generations} generations are complete."
        )
    return selected_loss(study)
