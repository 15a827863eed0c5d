"""Recipes of GLO searches, and of Taylor searches that start at a loss."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from recipe_cases import minimal

from optuna_taylorglo.errors import RecipeError
from optuna_taylorglo.recipes.schema import SCHEMA_FILE, Recipe, recipe_from_dict, search_size

SCHEMA = Draft202012Validator(json.loads(SCHEMA_FILE.read_text(encoding="utf-8")))


def with_search(search: dict[str, Any], **sections: Any) -> dict[str, Any]:
    return {**minimal(), "search": search, **sections}


def glo(**changes: Any) -> dict[str, Any]:
    return {"method": "glo", "glo": changes}


def test_glo_has_the_paper_s_sizes_by_default() -> None:
    recipe = recipe_from_dict(with_search(glo()))
    assert recipe.search.total_candidates == 11_120
    assert recipe.search.total_generations == 135
    assert search_size(recipe.search) == (
        "100 generations of 100 trees, then 35 of 32 sets of coefficients"
    )


def test_a_glo_recipe_holds_all_of_its_numbers_and_none_of_a_taylor_search() -> None:
    recipe = recipe_from_dict(with_search(glo(popsize=7)))
    content = recipe.to_dict()
    assert set(content["search"]) == {"method", "glo", "seed", "repeats", "seed_policy"}
    assert content["search"]["glo"]["coefficients"] == {
        "popsize": 32,
        "n_generations": 35,
        "sigma": 0.5,
    }
    assert recipe_from_dict(content) == recipe
    SCHEMA.validate(content)


def test_a_taylor_recipe_is_written_as_before() -> None:
    """Studies of earlier versions hold it so, and such versions refuse what they do not know."""
    assert set(recipe_from_dict(with_search({"popsize": 5})).to_dict()["search"]) == {
        "popsize",
        "sigma",
        "n_generations",
        "seed",
        "space",
        "filter",
        "scale",
        "repeats",
        "seed_policy",
    }


@pytest.mark.parametrize(
    ("content", "field", "said"),
    [
        (with_search({"method": "glo"}), "search.method", r"write glo: \{\} for the paper's"),
        (with_search({"glo": {}}), "search.glo", "leave it out, or set method: glo"),
        (with_search(glo() | {"popsize": 9}), "search.popsize", "stands in search.glo"),
        (with_search(glo() | {"n_generations": 9}), "search.n_generations", "stands in search.glo"),
        (with_search(glo() | {"sigma": 1.0}), "search.sigma", "GLO has no sigma here"),
        (with_search(glo() | {"space": "canonical"}), "search.space", "with method glo"),
        (with_search(glo() | {"filter": "steady"}), "search.filter", "with method glo"),
        (with_search(glo() | {"overlap": 3}), "search.overlap", "with method glo"),
        (with_search(glo() | {"start": {"loss": "baikal"}}), "search.start", "with method glo"),
        (with_search(glo(), loss={"order": 4}), "loss.order", "trees have no order"),
        (with_search(glo(), loss={"base": "cross_entropy"}), "loss.base", "trees have no base"),
        (with_search(glo(), loss={"folded": True}), "loss.folded", "trees have no folded"),
        (
            with_search({"start": {"loss": "baikal"}}, loss={"base": "cross_entropy"}),
            "search.start",
            "starts at cross-entropy",
        ),
        (
            with_search({"start": {"loss": "baikal"}}, loss={"variables": ["x", "z"]}),
            "search.start",
            "expanded in x and y",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(
    content: dict[str, Any], field: str, said: str
) -> None:
    with pytest.raises(RecipeError, match=said) as caught:
        recipe_from_dict(content)
    assert caught.value.field == field
    assert not SCHEMA.is_valid(content)


@pytest.mark.parametrize(
    ("changes", "field", "said"),
    [
        ({"popsize": 1}, "popsize", "at least 2"),
        ({"popsize": 10**9}, "popsize", "at most 10000"),
        ({"n_generations": 0}, "n_generations", "at least 1"),
        ({"elite": 0}, "elite", "at least 1"),
        ({"elite": 100}, "elite", "must be below popsize, 100"),
        ({"tournament": 0}, "tournament", "at least 1"),
        ({"crossover": 1.5}, "crossover", "at most 1"),
        ({"max_depth": 18}, "max_depth", "at most 17"),
        ({"max_dept": 3}, "max_dept", "did you mean max_depth"),
        ({"coefficients": {"sigma": 0}}, "coefficients.sigma", "above 0"),
        ({"coefficients": {"popsize": 1}}, "coefficients.popsize", "at least 2"),
    ],
)
def test_bad_numbers_of_glo_are_named(changes: dict[str, Any], field: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said) as caught:
        recipe_from_dict(with_search(glo(**changes)))
    assert caught.value.field == f"search.glo.{field}"


@pytest.mark.parametrize(
    ("start", "field"),
    [
        ({}, "loss"),
        ({"loss": ""}, "loss"),
        ({"loss": "baikal", "at": [0.5]}, "at"),
        ({"loss": "baikal", "at": ["0", 0.5]}, "at"),
        ({"theta": [1.0, "x"]}, "theta"),
        ({"los": "baikal"}, "los"),
    ],
)
def test_bad_starts_are_named(start: dict[str, Any], field: str) -> None:
    with pytest.raises(RecipeError) as caught:
        recipe_from_dict(with_search({"start": start}))
    assert caught.value.field == f"search.start.{field}"


def test_a_start_is_at_half_of_the_output_unless_it_says_where() -> None:
    recipe: Recipe = recipe_from_dict(with_search({"start": {"loss": "baikal"}}))
    assert recipe.search.start is not None
    assert recipe.search.start.at == (0.0, 0.5)
    assert recipe_from_dict(recipe.to_dict()) == recipe
