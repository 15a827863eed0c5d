"""What makes a study a TaylorGLO search: its recipe, and how its trials fill slots."""

from __future__ import annotations

import threading
import warnings

from optuna.exceptions import ExperimentalWarning
from optuna.study import Study

from optuna_taylorglo.errors import StopRequested, StudyError
from optuna_taylorglo.recipes.in_study import settled_recipe
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.search.generations import GenerationLog, Rules
from optuna_taylorglo.search.glo.replay import GLOReplay, TreeLog
from optuna_taylorglo.search.recipe_changes import freeze_or_change
from optuna_taylorglo.search.start import settle_start
from optuna_taylorglo.study.open import Direction, check_direction

MAX_FAILURES = 3
"""Crashes of a candidate's evaluation that are made up for; one more, and it is the worst."""


def attach_recipe(study: Study, recipe: Recipe | None) -> Recipe:
    """Freeze a recipe into a study, change what may be changed, or take the one frozen there.

    Args:
        study: The study.
        recipe: The recipe to work by, or None for the study's.

    Returns:
        The study's recipe, with what a pilot has settled.

    Raises:
        RecipeMismatch: If the study has results, or workers, by another recipe.
        StudyError: If there is none at all, or the study has the other direction.
    """
    if recipe is not None:
        recipe = settle_start(recipe)
        check_direction(study, direction_of(recipe))
        # Of two recipes that are given in the same moment the last one stays, and workers with
        # the other one end at their next trial (`check_recipe`).
        freeze_or_change(study, recipe)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            study.set_metric_names([recipe.fitness.metric])
    settled = settled_recipe(study)
    if settled is None:
        raise StudyError(
            f"study {study.study_name!r} has no recipe yet: give the first worker one, such as\n"
            "  --recipe studies/digits_cnn.yaml"
        )
    return settled


def direction_of(recipe: Recipe) -> Direction:
    """The direction of the recipe's studies."""
    return "maximize" if recipe.fitness.mode == "max" else "minimize"


def wait_for_evaluation_length(study: Study, stop: threading.Event) -> Recipe:
    """The study's recipe, as soon as the length of its evaluations is settled.

    Raises:
        StopRequested: If told to stop before.
    """
    while (recipe := attach_recipe(study, None)).budget.evaluation == "auto":
        if stop.wait(0.5):
            raise StopRequested
    return recipe


def slot_rules(recipe: Recipe) -> Rules:
    """How the trials of a recipe's study fill the slots of its generations."""
    attempts = 1 if recipe.early_abort is None else recipe.early_abort.attempts
    search = recipe.search
    population = search.population if search.glo is None else search.glo.population
    return Rules(population, attempts, MAX_FAILURES, search.overlap)


def new_log(recipe: Recipe) -> GenerationLog:
    """The slots of a recipe's study, before its trials are read."""
    rules, search = slot_rules(recipe), recipe.search
    if search.glo is None:
        return GenerationLog(rules)
    maximize = recipe.fitness.mode == "max"
    return TreeLog(rules, GLOReplay(search.glo, rules, search.seed, maximize=maximize))
