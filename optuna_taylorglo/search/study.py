"""A study's recipe: saved by the first worker, and the same for all that follow."""

from __future__ import annotations

import shlex
import warnings

from optuna.exceptions import ExperimentalWarning
from optuna.logging import get_logger
from optuna.study import Study

from optuna_taylorglo.attributes import CROSS_ENTROPY, N_CLASSES, SELECTION
from optuna_taylorglo.errors import RecipeMismatch, StudyError
from optuna_taylorglo.recipes.load import (
    CHANGEABLE,
    frozen_recipe,
    merged,
    recipe_differences,
    replace_recipe,
    settled_recipe,
)
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.search.candidates import resolve_start
from optuna_taylorglo.study.open import Direction, check_direction, find_evaluation_study
from optuna_taylorglo.study.optuna_private import storage_of

_logger = get_logger(__name__)


def attach_recipe(study: Study, recipe: Recipe | None = None) -> Recipe:
    """Save a recipe in a study, or take the one that is there.

    Until a worker has begun, another recipe takes the place of the saved one. Afterwards only
    `CHANGEABLE` fields may differ, on which no candidate and no training depends.

    Args:
        study: The study.
        recipe: The recipe to work by, or None for the study's.

    Returns:
        The study's recipe, with what workers have settled.

    Raises:
        RecipeMismatch: If a worker has begun by another recipe.
        StudyError: If there is no recipe, or the study has the other direction.
    """
    if recipe is not None:
        recipe = resolve_start(recipe)
        check_direction(study, direction_of(recipe))
        saved = frozen_recipe(study)
        attributes = study.user_attrs
        has_begun = attributes.get(N_CLASSES) or attributes.get(CROSS_ENTROPY)
        if saved is not None and (has_begun or find_evaluation_study(study) is not None):
            recipe = _with_changes(study, saved, recipe)
        # If two workers bring different recipes at the same moment, the last one stays, and the
        # other worker notices at its next trial (`check_recipe`).
        if saved is None or recipe_differences(saved, recipe):
            replace_recipe(study, recipe)
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


def check_recipe(study: Study, recipe: Recipe) -> None:
    """Make sure that a worker's recipe is still the study's.

    Raises:
        RecipeMismatch: If another recipe has taken its place.
    """
    saved = settled_recipe(study)
    if saved is not None and merged(saved, recipe) is None:
        raise RecipeMismatch(
            study.study_name,
            recipe_differences(saved, recipe),
            "Another recipe took its place while this worker started. Start the worker again to "
            "work by that one.",
        )


def direction_of(recipe: Recipe) -> Direction:
    """The direction of the recipe's studies."""
    return "maximize" if recipe.fitness.mode == "max" else "minimize"


def _with_changes(study: Study, saved: Recipe, recipe: Recipe) -> Recipe:
    """The recipe by which a study with results goes on."""
    changed, name = merged(saved, recipe), study.study_name
    if changed is None:
        raise RecipeMismatch(name, recipe_differences(saved, recipe), _advice(study))
    if recipe.search.n_generations < changed.search.n_generations:
        _logger.warning(
            f"Study {name!r} keeps its {changed.search.n_generations} generations, more than the "
            f"{recipe.search.n_generations} of the file."
        )
    if lines := recipe_differences(saved, changed):
        if study.user_attrs.get(SELECTION) is not None:
            study.set_user_attr(SELECTION, None)  # the winner is to be selected again
        for line in lines:
            _logger.warning(f"Changed in study {name!r}: {line}.")
    return changed


def _advice(study: Study) -> str:
    evaluation_study, url = find_evaluation_study(study), getattr(storage_of(study), "url", None)
    commands = []
    for each in filter(None, (study, evaluation_study)):
        words = ["optuna", "delete-study", "--study-name", each.study_name]
        commands.append("  " + shlex.join([*words, *([] if url is None else ["--storage", url])]))
    return (
        f"A worker has begun on it, so only {CHANGEABLE} may change. Give the new recipe a study "
        f"of its own with\n  --study-name {shlex.quote(study.study_name + '-2')}\n"
        "or delete this one, with all its results, and start again:\n" + "\n".join(commands)
    )
