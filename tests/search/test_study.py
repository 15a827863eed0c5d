"""A study's recipe: frozen by whoever comes first, and binding for all who follow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest
from searches import small_recipe

from optuna_taylorglo.attributes import RECIPE
from optuna_taylorglo.errors import RecipeMismatch, StudyError
from optuna_taylorglo.losses.canonical import Canonical
from optuna_taylorglo.recipes.load import load_recipe
from optuna_taylorglo.search import study as study_module
from optuna_taylorglo.search.candidates import parameter_names
from optuna_taylorglo.search.generations import RetryPolicy
from optuna_taylorglo.search.study import (
    MAX_FAILURES,
    attach_recipe,
    check_recipe,
    retry_policy,
)
from optuna_taylorglo.study.open import create_study, open_study


def recipe_with(folder: Path, **changes: Any) -> Any:
    return load_recipe(small_recipe(folder / "recipe.yaml", **changes))


def test_the_first_recipe_is_kept_and_found_by_those_who_bring_none(
    tmp_path: Path, sqlite_url: str
) -> None:
    recipe = recipe_with(tmp_path, fitness={"metric": "val_loss"})
    assert attach_recipe(create_study("s", sqlite_url), recipe) == recipe
    study = open_study("s", sqlite_url)
    assert attach_recipe(study, None) == recipe
    assert attach_recipe(study, recipe) == recipe
    assert study.metric_names == ["val_loss"]


def test_another_recipe_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    study = optuna.create_study(study_name="s", direction="maximize")
    first = attach_recipe(study, recipe_with(tmp_path))
    study.add_trial(optuna.trial.create_trial(value=0.5))
    other = recipe_with(tmp_path, search={"sigma": 0.5}, fitness={"metric": "val_loss"})
    with pytest.raises(RecipeMismatch) as caught:
        attach_recipe(study, other)
    assert [line.split(":")[0] for line in caught.value.differences] == [
        "fitness.metric",
        "search.sigma",
    ]
    assert attach_recipe(study, None) == first
    assert study.metric_names == ["val_accuracy"]


def test_a_study_without_a_recipe_asks_for_one() -> None:
    study = optuna.create_study(study_name="s", direction="maximize")
    with pytest.raises(StudyError, match=r"'s' has no recipe yet(.|\n)*--recipe "):
        attach_recipe(study, None)
    assert study.user_attrs == {}


def test_of_two_recipes_given_at_once_one_stays_and_the_other_worker_is_told(
    tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = recipe_with(tmp_path), recipe_with(tmp_path, search={"sigma": 0.5})
    study, other = create_study("s", sqlite_url), open_study("s", sqlite_url)
    freeze = study_module.freeze

    def freeze_after_them(study: optuna.Study, recipe: Any) -> None:
        monkeypatch.setattr(study_module, "freeze", freeze)
        attach_recipe(other, theirs)
        study.set_user_attr(RECIPE, None)  # as it was when this worker read it
        freeze(study, recipe)

    monkeypatch.setattr(study_module, "freeze", freeze_after_them)
    assert attach_recipe(study, mine) == mine
    with pytest.raises(RecipeMismatch, match=r"search\.sigma"):
        check_recipe(other, theirs)


def test_slots_follow_the_recipe(tmp_path: Path) -> None:
    recipe = recipe_with(tmp_path, search={"popsize": 7}, early_abort={"attempts": 3})
    assert retry_policy(recipe) == RetryPolicy(popsize=7, attempts=3, max_failures=MAX_FAILURES)
    assert retry_policy(recipe_with(tmp_path, early_abort=None)).attempts == 1
    overlapping = recipe_with(tmp_path, search={"popsize": 7, "overlap": 3})
    assert retry_policy(overlapping).overlap == 3


def test_parameters_are_those_of_the_space(tmp_path: Path) -> None:
    by_order = {2: 5, 3: 8}
    for order, count in by_order.items():
        recipe = recipe_with(tmp_path, loss={"order": order})
        assert parameter_names(recipe) == tuple(f"theta_{i}" for i in range(count))
    canonical = recipe_with(tmp_path, search={"space": "canonical"})
    assert parameter_names(canonical) == Canonical._fields
