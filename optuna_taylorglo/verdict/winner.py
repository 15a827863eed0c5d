"""The winner of a search: one decision, which file, report, dashboard and verdict are about."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from optuna.study import Study
from optuna.trial import FrozenTrial
from pydantic import TypeAdapter

from optuna_taylorglo.attributes import SELECTION
from optuna_taylorglo.errors import StudyError
from optuna_taylorglo.losses.files import Origin
from optuna_taylorglo.recipes.load import settled_recipe
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.search.candidates import Point, candidate_loss
from optuna_taylorglo.search.history import (
    SearchHistory,
    recipe_and_classes,
    trial_loss,
    winner,
)
from optuna_taylorglo.verdict.statistics import RankCorrelation, rank_correlation, spearman

if TYPE_CHECKING:
    from optuna_taylorglo.losses.tree_loss import EvolvedLoss

FINAL_MEAN = "the mean of the final distribution"

GOOD_CORRELATION = 0.7
"""Rank correlation below which evaluations and full trainings count as different orders."""


@dataclass(frozen=True)
class Finalist:
    """A loss that was trained fully for the selection.

    Attributes:
        trial: Number of its trial; None for the mean of the final distribution.
        parameters: Its parameters, in the order of the recipe's parameter names; in a GLO search a
            tree.
        evaluation: Its fitness in the search; None for the mean, which has none.
        values: Metric of each full training; None for one that diverged.
        mean: Mean of the values, with diverged trainings as bad as the worst.
    """

    trial: int | None
    parameters: Point
    evaluation: float | None
    values: tuple[float | None, ...] = ()
    mean: float | None = None

    @property
    def name(self) -> str:
        return FINAL_MEAN if self.trial is None else f"trial {self.trial}"


@dataclass(frozen=True)
class Selection:
    """What was decided.

    Attributes:
        finalists: From the winner to the worst.
    """

    finalists: tuple[Finalist, ...]

    @property
    def winner(self) -> Finalist:
        return self.finalists[0]


@dataclass(frozen=True)
class SelectedLoss:
    """The loss that a search ends with, or has come to so far.

    Attributes:
        loss: The loss, with its origin.
        trial: Its trial; None for the mean of the final distribution.
    """

    loss: EvolvedLoss
    trial: FrozenTrial | None

    @property
    def name(self) -> str:
        return FINAL_MEAN if self.trial is None else f"trial {self.trial.number}"


def is_undecided(study: Study, recipe: Recipe) -> bool:
    """Whether a selection by full trainings is due and not made."""
    return (
        recipe.selection is not None
        and study.user_attrs.get(SELECTION) is None
        and SearchHistory(study, recipe).finished
        and winner(study) is not None
    )


def save_selection(study: Study, selection: Selection, recipe: Recipe) -> bool:
    """Keep the decision in the study, unless there is one or it came too late.

    Args:
        study: The study.
        selection: The decision.
        recipe: The recipe by which it was made: the search may have been made longer since.

    Returns:
        Whether it was kept.
    """
    if study.user_attrs.get(SELECTION) is not None or settled_recipe(study) != recipe:
        return False
    # Two workers that get here at once write the same decision.
    study.set_user_attr(SELECTION, asdict(selection))
    return True


def load_selection(study: Study) -> Selection | None:
    """The decision that was made, if there is one."""
    content = study.user_attrs.get(SELECTION)
    return None if content is None else TypeAdapter(Selection).validate_python(content)


def selected_loss(study: Study) -> SelectedLoss:
    """The loss that a search ends with: the chosen one, else that of the best evaluation.

    Raises:
        StudyError: If no trial is complete.
    """
    selection = load_selection(study)
    if selection is None:
        best = winner(study)
        if best is None:
            raise StudyError(f"study {study.study_name!r} has no complete trial yet.")
        return SelectedLoss(trial_loss(study, best), best)
    return _finalist_loss(study, selection.winner)


def _finalist_loss(study: Study, chosen: Finalist) -> SelectedLoss:
    recipe, n_classes = recipe_and_classes(study)
    loss = candidate_loss(recipe, chosen.parameters, n_classes)
    loss.origin = Origin(
        study=study.study_name,
        trial=chosen.trial,
        recipe=recipe.to_dict(),
        validation_accuracy=chosen.evaluation,
        final_mean=chosen.trial is None,
        full_validation=chosen.mean,
    )
    trials = study.get_trials(deepcopy=False)
    return SelectedLoss(loss, None if chosen.trial is None else trials[chosen.trial])


@dataclass(frozen=True)
class EvaluationCheck:
    """Do evaluations rank candidates as full trainings do?

    Attributes:
        correlation: Of the fitness in the search with the mean of the first round's full trainings.
        among_full: Rank correlation of one full training of each with another, what noise allows.
    """

    correlation: RankCorrelation
    among_full: float


def evaluation_check(selection: Selection, sign: int = 1) -> EvaluationCheck:
    """Compare evaluations with the full trainings of the first round, which all finalists had.

    Args:
        selection: What was decided.
        sign: That of the recipe's fitness.
    """
    measured = [c for c in selection.finalists if c.evaluation is not None]
    n_seeds = min(len(c.values) for c in measured)
    first = [_worst_for_diverged(c.values[:n_seeds], sign) for c in measured]
    return EvaluationCheck(
        rank_correlation(
            [c.evaluation for c in measured if c.evaluation is not None],
            [sum(values) / n_seeds for values in first],
        ),
        spearman([values[0] for values in first], [values[1] for values in first]),
    )


def evaluation_advice(selection: Selection, recipe: Recipe) -> str:
    """The check in words, with what to change."""
    check, budget = evaluation_check(selection, recipe.fitness.sign), recipe.budget
    correlation = check.correlation
    if math.isnan(correlation.low):
        return "Too few candidates that differ were trained fully to say how well evaluations rank."
    length = budget.evaluation
    lines = [
        f"Rank correlation of evaluations ({length} {budget.unit}) with full trainings "
        f"({budget.full} {budget.unit}) over the best candidates: {correlation}; over all "
        "candidates, which differ more, it is higher."
    ]
    disagree = correlation.high < GOOD_CORRELATION
    noisy = not check.among_full > correlation.high
    among_full = f"Two full trainings of each correlate by {check.among_full:.2f}"
    if length == budget.full:
        lines.append(
            "Both are full trainings, so what is missing to 1 is the noise of seeds"
            + (", which the selection averages out." if disagree else ".")
        )
    elif disagree and noisy:
        lines.append(
            f"{among_full}, hardly better: the candidates differ less than the seeds of their "
            "trainings. Raising search.repeats may help."
        )
    elif disagree:
        lines.append(
            f"{among_full}: evaluations favor other losses than full trainings do. Make "
            "budget.evaluation longer."
        )
    elif correlation.low >= GOOD_CORRELATION:
        lines.append("Evaluations are long enough.")
    else:
        lines.append("That leaves open whether evaluations are long enough.")
    return " ".join(lines)


def _worst_for_diverged(values: Sequence[float | None], sign: int) -> list[float]:
    return [-sign * math.inf if value is None else value for value in values]
