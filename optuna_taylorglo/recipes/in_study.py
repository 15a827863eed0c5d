"""A recipe in the study that it defines.

The first worker freezes its recipe into the study; every later one works by that copy. Of a study
with results, a file may change only what changes no result: see `merged`.
"""

import json
from typing import TYPE_CHECKING

from optuna_taylorglo.attributes import CLASS_WEIGHTS, EVALUATION_LENGTH, RECIPE
from optuna_taylorglo.errors import RecipeError, RecipeMismatch
from optuna_taylorglo.recipes.schema import Recipe, recipe_from_dict
from optuna_taylorglo.validation import show

if TYPE_CHECKING:
    import optuna

SCHEMA_VERSION = 2

# MySQL keeps an attribute in a TEXT column of 65,535 bytes; the rest is room for the envelope.
_MAX_RECIPE_BYTES = 60_000


def recipe_differences(in_study: Recipe, in_file: Recipe) -> list[str]:
    """One readable line for each field in which two recipes differ."""
    return _differences("", in_study.to_dict(), in_file.to_dict())


CHANGEABLE = "search.generations, to a greater number, and choice"
"""What may change in a study with results: how far it goes, and what is made of it in the end."""


def merged(in_study: Recipe, in_file: Recipe) -> Recipe | None:
    """The recipe that a study with results goes on by when it is given a file.

    No candidate and no training depends on how many generations there will be, nor on how the
    winner will be chosen. Of two numbers of generations the greater one holds, so that workers with
    an older file can join a search that was made longer.

    Returns:
        The recipe; None if the two differ in anything else.
    """
    generations = max(in_study.search.generations, in_file.search.generations)
    ours, theirs = (
        recipe.changed(search=recipe.search.changed(generations=generations), choice=in_file.choice)
        for recipe in (in_study, in_file)
    )
    return None if recipe_differences(ours, theirs) else theirs


def replace_recipe(study: "optuna.Study", recipe: Recipe) -> None:
    """Keeps a recipe in the study in place of the one that is there.

    Raises:
        RecipeError: If the recipe is too long for the storage.
    """
    content = recipe.to_dict()
    length = len(json.dumps(content))
    if length > _MAX_RECIPE_BYTES:
        raise RecipeError("", f"{length} bytes as JSON, at most {_MAX_RECIPE_BYTES} fit the study")
    study.set_user_attr(RECIPE, {"schema": SCHEMA_VERSION, "recipe": content})


def freeze(study: "optuna.Study", recipe: Recipe) -> None:
    """Keeps the recipe in the study, or makes sure that the study holds the same one.

    Storages have no "write if absent": of two different recipes that are frozen in the same few
    milliseconds the last one written stands, and the other caller may already have returned.
    Calling again is cheap and tells.

    Raises:
        RecipeMismatch: If the study holds a different recipe.
        RecipeError: If the recipe is too long for the storage, or the study's own is unreadable.
    """
    if frozen_recipe(study) is None:
        replace_recipe(study, recipe)
    # Read back, since another worker may have been the first at the same moment.
    in_study = frozen_recipe(study)
    if in_study is not None and (differences := recipe_differences(in_study, recipe)):
        raise RecipeMismatch(study.study_name, differences)


def frozen_recipe(study: "optuna.Study") -> Recipe | None:
    """The recipe kept in the study, or None when it has none yet.

    Raises:
        RecipeError: If the attribute holds no recipe that this version can read.
    """
    envelope = study.user_attrs.get(RECIPE)
    if envelope is None:
        return None
    source = f"study {study.study_name!r}, attribute {RECIPE}"
    version = envelope.get("schema") if isinstance(envelope, dict) else None
    if isinstance(version, bool) or not isinstance(version, int) or "recipe" not in envelope:
        raise RecipeError("", f"{show(envelope)} is not a frozen recipe", source)
    if version != SCHEMA_VERSION:
        raise RecipeError(
            "schema",
            f"{version} is not allowed, this version of optuna-taylorglo reads {SCHEMA_VERSION}: "
            "install the version that started the study",
            source,
        )
    return recipe_from_dict(envelope["recipe"], source)


def settled_recipe(study: "optuna.Study") -> Recipe | None:
    """The recipe that the study works by: the frozen one, with what was settled since.

    A pilot settles the length of evaluations, the training labels settle balanced weights.

    Raises:
        RecipeError: If it is none that this version can read.
    """
    recipe = frozen_recipe(study)
    if recipe is None:
        return None
    attributes = study.user_attrs
    if recipe.budget.evaluation == "auto" and (pilot := attributes.get(EVALUATION_LENGTH)):
        recipe = recipe.changed(budget=recipe.budget.changed(evaluation=pilot["length"]))
    if recipe.loss.class_weights == "balanced" and (weights := attributes.get(CLASS_WEIGHTS)):
        recipe = recipe.changed(loss=recipe.loss.changed(class_weights=tuple(weights)))
    return recipe


def _differences(path: str, in_study: object, in_file: object) -> list[str]:
    if isinstance(in_study, dict) and isinstance(in_file, dict):
        return [
            line
            for name in dict.fromkeys([*in_study, *in_file])
            for line in _differences(
                f"{path}.{name}" if path else name,
                in_study.get(name, _ABSENT),
                in_file.get(name, _ABSENT),
            )
        ]
    if _text_or_absent(in_study) == _text_or_absent(in_file):
        return []
    return [f"{path}: study has {_text_or_absent(in_study)}, file has {_text_or_absent(in_file)}"]


_ABSENT = object()


def _text_or_absent(value: object) -> str:
    return "nothing" if value is _ABSENT else json.dumps(value, sort_keys=True)
