"""The choice of a winner by full trainings on validation.

The best candidates that differ as functions, and the mean of the final distribution, are trained
fully; the latter wins unless one of the former is clearly better. The decision is a function of the
study and of results, so any worker makes the same.
"""

from __future__ import annotations

from optuna.study import Study
from torch import Tensor

from optuna_taylorglo.attributes import CHOICE
from optuna_taylorglo.errors import StudyError
from optuna_taylorglo.losses.distance import logit_gradients, relative_distance
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.search.candidates import (
    Point,
    candidate_loss,
    make_sampler,
    stored_candidate,
)
from optuna_taylorglo.search.glo.points import TreePoint
from optuna_taylorglo.search.glo.sampler import GLOSampler
from optuna_taylorglo.search.history import ranked_trials, recipe_and_classes, trial_loss
from optuna_taylorglo.seeds import Stage
from optuna_taylorglo.verdict.choice import (
    Choice,
    ChosenLoss,
    Contender,
    chosen_loss,
    is_undecided,
    keep_choice,
)
from optuna_taylorglo.verdict.compared_losses import compared_evolved_loss
from optuna_taylorglo.verdict.halving import Round, next_round
from optuna_taylorglo.verdict.statistics import Role
from optuna_taylorglo.verdict.tasks import Do, Results

SAME_FUNCTION = 0.03
"""Relative distance of gradients up to which two losses count as the same."""


class Choosing:
    """The choice of a search that is over.

    Args:
        study: A study whose generations are complete.
        recipe: Its recipe, with `choice`.
    """

    def __init__(self, study: Study, recipe: Recipe) -> None:
        self.recipe = recipe
        self.contenders = contenders(study, recipe)
        _, n_classes = recipe_and_classes(study)
        self._losses = [
            compared_evolved_loss(
                "contender", c.name, Role.EVOLVED, candidate_loss(recipe, c.parameters, n_classes)
            )
            for c in self.contenders
        ]

    def next_step(self, results: Results) -> Round | Choice:
        """What to train next, or the decision."""
        # The mean of many good candidates lies amid them; the best of them may lie at an edge
        # beyond which trainings fail, and owe its place to seeds that did not.
        means = [i for i, c in enumerate(self.contenders) if c.trial is None]
        step = next_round(
            self._losses,
            self.recipe,
            Stage.CHOICE,
            results,
            favorite=means[0] if means else None,
        )
        if isinstance(step, Round):
            return step
        return Choice(
            tuple(
                Contender(c.trial, c.parameters, c.evaluation, placed.values, placed.mean)
                for placed in step
                for c in [self.contenders[placed.index]]
            )
        )


def contenders(study: Study, recipe: Recipe) -> list[Contender]:
    """The best candidates that differ as functions, and the mean of the final distribution.

    Returns:
        Candidates from the best evaluation to the worst, then the mean; nothing if none trained.
    """
    _, n_classes = recipe_and_classes(study)
    limit = recipe.choice.candidates if recipe.choice is not None else 1
    found: list[Contender] = []
    gradients: list[Tensor] = []
    for trial in ranked_trials(study):
        gradient = logit_gradients(trial_loss(study, trial), n_classes)
        if all(relative_distance(gradient, other) > SAME_FUNCTION for other in gradients):
            gradients.append(gradient)
            parameters = stored_candidate(recipe, trial)
            assert parameters is not None, "what is ranked is a candidate"
            found.append(Contender(trial.number, parameters, trial.values[0]))
        if len(found) == limit:
            break
    mean = final_mean(study, recipe, n_classes)
    if found and mean is not None:
        try:
            candidate_loss(recipe, mean, n_classes)
        except ValueError:
            return found  # it cannot learn, so it has no scale to normalize
        found.append(Contender(None, mean, None))
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


def choose(study: Study, recipe: Recipe, do: Do) -> ChosenLoss:
    """The winner, chosen now if that is due.

    Raises:
        StudyError: If it cannot be chosen yet.
    """
    if is_undecided(study, recipe):
        choice = Choosing(study, recipe).next_step(do)
        assert isinstance(choice, Choice), "what does tasks leaves none open"
        keep_choice(study, choice, recipe)
    if recipe.choice is not None and study.user_attrs.get(CHOICE) is None:
        raise StudyError(
            f"study {study.study_name!r} has no winner yet: its recipe has it chosen when all "
            f"{recipe.search.n_generations} generations are complete."
        )
    return chosen_loss(study)
