"""A study's recipe: saved by the first worker, the same for all that follow; it may grow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from searches import small_recipe

from optuna_taylorglo.attributes import CROSS_ENTROPY, GENERATION, INDEX, N_CLASSES, SELECTION
from optuna_taylorglo.errors import RecipeMismatch, StudyError
from optuna_taylorglo.losses.canonical import Canonical
from optuna_taylorglo.recipes.load import load_recipe
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.search import history as study_module
from optuna_taylorglo.search.candidates import (
    MAX_FAILURES,
    make_sampler,
    parameter_names,
    retry_policy,
)
from optuna_taylorglo.search.generations import RetryPolicy
from optuna_taylorglo.search.history import SearchHistory, attach_recipe, check_recipe
from optuna_taylorglo.search.scheduler import GenerationScheduler
from optuna_taylorglo.study.open import create_evaluation_study, create_study, open_study

NewRecipe = Callable[..., Recipe]


@pytest.fixture
def recipe(tmp_path: Path) -> NewRecipe:
    return lambda **changes: load_recipe(small_recipe(tmp_path / "recipe.yaml", **changes))


def generations(number: int) -> dict[str, Any]:
    return {"search": {"n_generations": number}}


def searched(name: str, url: str, recipe: Recipe) -> optuna.Study:
    """Search by a recipe to its end, with a fitness that needs no training."""
    study = create_study(name, url)
    recipe = attach_recipe(study, recipe)
    study.set_user_attr(N_CLASSES, 10)
    study.sampler = make_sampler(recipe, 10)
    scheduler = GenerationScheduler(study, n_generations=recipe.search.n_generations)
    while (trial := scheduler.claim()) is not None:
        scheduler.finish(trial, 1 / (1 + sum(x * x for x in trial.params.values())))
    assert scheduler.over
    return study


def candidates(study: optuna.Study) -> list[tuple[Any, ...]]:
    return [
        (t.user_attrs[GENERATION], t.user_attrs[INDEX], t.params, t.value) for t in study.trials
    ]


def test_the_first_recipe_is_saved_for_those_who_bring_none(
    recipe: NewRecipe, sqlite_url: str
) -> None:
    mine = recipe(fitness={"metric": "val_loss"})
    assert attach_recipe(create_study("s", sqlite_url), mine) == mine
    study = open_study("s", sqlite_url)
    assert attach_recipe(study, None) == attach_recipe(study, mine) == mine
    assert study.metric_names == ["val_loss"]


def test_a_study_without_a_recipe_asks_for_one() -> None:
    study = optuna.create_study(study_name="s", direction="maximize")
    with pytest.raises(StudyError, match=r"'s' has no recipe yet(.|\n)*--recipe "):
        attach_recipe(study, None)
    assert study.user_attrs == {}


def test_until_a_worker_has_begun_another_recipe_takes_the_place(recipe: NewRecipe) -> None:
    study = optuna.create_study(direction="maximize")
    mine, other = recipe(), recipe(search={"sigma": 0.5})
    attach_recipe(study, mine)
    assert attach_recipe(study, other) == other
    # A worker that read the first one notices before it evaluates anything.
    with pytest.raises(RecipeMismatch, match=r"search\.sigma(.|\n)*Start the worker again"):
        check_recipe(study, mine)
    study.set_user_attr(N_CLASSES, 10)
    longer = attach_recipe(study, recipe(search={"sigma": 0.5, "n_generations": 9}))
    assert longer.search.n_generations == 9
    check_recipe(study, other)


def test_of_two_recipes_given_at_once_one_stays_and_the_other_worker_is_told(
    recipe: NewRecipe, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = recipe(), recipe(search={"sigma": 0.5})
    study, other = create_study("s", sqlite_url), open_study("s", sqlite_url)
    replace = study_module.replace_recipe

    def replace_after_them(study: optuna.Study, recipe: Recipe) -> None:
        monkeypatch.setattr(study_module, "replace_recipe", replace)
        attach_recipe(other, theirs)
        replace(study, recipe)

    monkeypatch.setattr(study_module, "replace_recipe", replace_after_them)
    assert attach_recipe(study, mine) == mine
    with pytest.raises(RecipeMismatch, match=r"search\.sigma"):
        check_recipe(other, theirs)


def test_with_results_the_rest_is_refused_with_the_commands_that_help(
    recipe: NewRecipe, sqlite_url: str
) -> None:
    study = searched("my study", sqlite_url, recipe())
    create_evaluation_study(study, sqlite_url)
    changed = recipe(optimizer={"lr": 0.7}, fitness={"metric": "val_loss"}, **generations(5))
    with pytest.raises(RecipeMismatch) as caught:
        attach_recipe(study, changed)
    text = str(caught.value)
    assert "optimizer.lr: study has 0.05, file has 0.7" in text
    assert "only search.n_generations, to a greater number, and selection may change" in text
    assert "--study-name 'my study-2'" in text
    for name in ("my study", "my study-verdict"):
        assert f"optuna delete-study --study-name '{name}' --storage {sqlite_url}" in text
    assert attach_recipe(study, None) == recipe()
    assert study.metric_names == ["val_accuracy"]


@pytest.mark.parametrize("begun_by", ["worker", "baseline", "evaluation study"])
def test_trainings_outside_the_search_are_results_too(
    recipe: NewRecipe, sqlite_url: str, begun_by: str
) -> None:
    """Their keys do not name the recipe: under another one they would be taken for its own."""
    study = create_study("s", sqlite_url)
    attach_recipe(study, recipe())
    if begun_by == "worker":
        study.set_user_attr(N_CLASSES, 10)
    elif begun_by == "baseline":
        study.set_user_attr(CROSS_ENTROPY, {"1": 0.5})
    else:
        create_evaluation_study(study, sqlite_url)
    with pytest.raises(RecipeMismatch, match="A worker has begun"):
        attach_recipe(study, recipe(optimizer={"lr": 0.7}))


def test_a_search_that_was_made_longer_has_the_candidates_of_a_long_one(
    recipe: NewRecipe, sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    short, long = recipe(**generations(2)), recipe(**generations(4))
    grown = searched("grown", sqlite_url, short)
    before = candidates(grown)
    assert SearchHistory(grown, attach_recipe(grown, None)).finished
    grown = searched("grown", sqlite_url, long)
    assert attach_recipe(grown, None) == long
    assert candidates(grown)[: len(before)] == before
    assert candidates(grown) == candidates(searched("long", sqlite_url, long))
    assert SearchHistory(grown, long).n_finished == 4
    # A worker with the older file joins the longer search.
    optuna.logging.enable_propagation()
    assert attach_recipe(grown, short) == long
    assert "keeps its 4 generations, more than the 2 of the file" in caplog.text
    optuna.logging.disable_propagation()


@pytest.mark.parametrize(
    "changes", [generations(3), {"selection": {"candidates": 7}}, {"selection": None}]
)
def test_after_a_change_the_winner_is_selected_again(
    recipe: NewRecipe, changes: dict[str, Any]
) -> None:
    study = optuna.create_study(direction="maximize")
    attach_recipe(study, recipe(selection={"candidates": 3}))
    study.set_user_attr(N_CLASSES, 10)
    study.set_user_attr(SELECTION, {"finalists": []})
    attach_recipe(study, recipe(**{"selection": {"candidates": 3}} | changes))
    assert study.user_attrs[SELECTION] is None


def test_slots_and_parameters_follow_the_recipe(recipe: NewRecipe) -> None:
    changed = recipe(search={"popsize": 7, "overlap": 3}, early_abort={"attempts": 3})
    assert retry_policy(changed) == RetryPolicy(7, 3, MAX_FAILURES, 3)
    assert retry_policy(recipe(early_abort=None)).attempts == 1
    for order, count in {2: 5, 3: 8}.items():
        names = parameter_names(recipe(loss={"order": order}))
        assert names == tuple(f"theta_{i}" for i in range(count))
    assert parameter_names(recipe(search={"space": "canonical"})) == Canonical._fields
