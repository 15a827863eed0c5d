"""The winner of a search: one decision, which file, report, dashboard and verdict are all about.

With `choice` in the recipe it is made by full trainings (`verdict.choosing`); without it the single
best evaluation wins, as in the paper.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from optuna.study import Study
from optuna.trial import FrozenTrial
from pydantic import TypeAdapter

from optuna_taylorglo.attributes import CHOICE
from optuna_taylorglo.errors import StudyError
from optuna_taylorglo.losses.files import Origin
from optuna_taylorglo.recipes.in_study import settled_recipe
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.search.candidates import Point, candidate_loss
from optuna_taylorglo.search.history import (
    SearchHistory,
    recipe_and_classes,
    trial_loss,
    winner,
)
from optuna_taylorglo.verdict.ranks import RankCorrelation, rank_correlation, spearman

if TYPE_CHECKING:
    from optuna_taylorglo.losses.loading import EvolvedLoss

FINAL_MEAN = "the mean of the final distribution"

GOOD_CORRELATION = 0.7
"""Rank correlation below which evaluations and full trainings count as different orders."""


@dataclass(frozen=True)
class Contender:
    """A loss that was trained fully for the choice.

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
class Choice:
    """What was decided.

    Attributes:
        contenders: From the winner to the worst.
    """

    contenders: tuple[Contender, ...]

    @property
    def winner(self) -> Contender:
        return self.contenders[0]


@dataclass(frozen=True)
class ChosenLoss:
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
    """Whether a choice by full trainings is due and not made."""
    return (
        recipe.choice is not None
        and study.user_attrs.get(CHOICE) is None
        and SearchHistory(study, recipe).finished
        and winner(study) is not None
    )


def keep_choice(study: Study, choice: Choice, recipe: Recipe) -> bool:
    """Keep the decision in the study, unless there is one or it came too late.

    Args:
        study: The study.
        choice: The decision.
        recipe: The recipe by which it was made: the search may have been made longer since.

    Returns:
        Whether it was kept.
    """
    if study.user_attrs.get(CHOICE) is not None or settled_recipe(study) != recipe:
        return False
    # Two workers that get here at once write the same decision.
    study.set_user_attr(CHOICE, asdict(choice))
    return True


def kept_choice(study: Study) -> Choice | None:
    """The decision that was made, if there is one."""
    content = study.user_attrs.get(CHOICE)
    return None if content is None else TypeAdapter(Choice).validate_python(content)


def chosen_loss(study: Study) -> ChosenLoss:
    """The loss that a search ends with: the chosen one, else that of the best evaluation.

    Raises:
        StudyError: If no trial is complete.
    """
    choice = kept_choice(study)
    if choice is None:
        best = winner(study)
        if best is None:
            raise StudyError(f"study {study.study_name!r} has no complete trial yet.")
        return ChosenLoss(trial_loss(study, best), best)
    return _contender_loss(study, choice.winner)


def _contender_loss(study: Study, chosen: Contender) -> ChosenLoss:
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
    return ChosenLoss(loss, None if chosen.trial is None else trials[chosen.trial])


@dataclass(frozen=True)
class EvaluationCheck:
    """Do evaluations rank candidates as full trainings do?

    Attributes:
        correlation: Of the fitness in the search with the mean of the first round's full trainings.
        among_full: Rank correlation of one full training of each with another, what noise allows.
    """

    correlation: RankCorrelation
    among_full: float


def evaluation_check(choice: Choice, sign: int = 1) -> EvaluationCheck:
    """Compare evaluations with the full trainings of the first round, which all contenders had.

    Args:
        choice: What was decided.
        sign: That of the recipe's fitness.
    """
    measured = [c for c in choice.contenders if c.evaluation is not None]
    n_seeds = min(len(c.values) for c in measured)
    first = [_worst_for_diverged(c.values[:n_seeds], sign) for c in measured]
    return EvaluationCheck(
        rank_correlation(
            [c.evaluation for c in measured if c.evaluation is not None],
            [sum(values) / n_seeds for values in first],
        ),
        spearman([values[0] for values in first], [values[1] for values in first]),
    )


def evaluation_advice(choice: Choice, recipe: Recipe) -> str:
    """The check in words, with what to change."""
    check, budget = evaluation_check(choice, recipe.fitness.sign), recipe.budget
    correlation = check.correlation
    if math.isnan(correlation.low):
        return "Too few candidates that differ were trained fully to say how well evaluations rank."
    length = budget.evaluation_length
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
            + (", which the choice averages out." if disagree else ".")
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
