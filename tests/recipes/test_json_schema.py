"""The JSON schema by which editors check recipes: it agrees with the check in Python."""

import itertools
import json
import re
from collections import ChainMap
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from recipe_cases import (
    BAD_COMBINATIONS,
    BAD_SCHEDULES,
    BAD_VALUES,
    REQUIRED,
    SGD_ONLY,
    minimal,
    recipe_with,
    without,
)

from optuna_taylorglo.errors import RecipeError
from optuna_taylorglo.recipes.load import load_recipe, read_yaml
from optuna_taylorglo.recipes.schema import SCHEMA_FILE, recipe_from_dict

ROOT = Path(__file__).parents[2]
STUDIES = sorted(ROOT.glob("studies/*.yaml"))
RECIPES = [*STUDIES, *sorted(ROOT.glob("docs/examples/**/*.yaml"))]
SCHEMA = Draft202012Validator(json.loads(SCHEMA_FILE.read_text(encoding="utf-8")))

NOT_IN_JSON_SCHEMA = {
    ("budget.evaluation", "4001"): "it compares no field with another",
    ("search.overlap", "28"): "it compares no field with another",
    ("schedule.milestones", "[122, 81]"): "it knows no order of items",
    ("optimizer.lr", repr(10**400)): "its numbers have no largest one",
    ("optimizer.lr", "nan"): "JSON has no such number",
    ("optimizer.lr", "inf"): "JSON has no such number",
    ("model.init_args", "{'width': nan}"): "JSON has no such number",
    ("model.init_args", "{'net': <object object>}"): "JSON has no such value",
    ("model.init_args", "{True: 1}"): "JSON has no such name",
}


def accepts(content: object) -> bool:
    return bool(SCHEMA.is_valid(content))


def test_it_is_a_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA.schema)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipes_are_accepted_with_and_without_their_defaults(path: Path) -> None:
    SCHEMA.validate(read_yaml(path))
    SCHEMA.validate(load_recipe(path).to_dict())


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_editors_find_the_schema_of_a_bundled_recipe(path: Path) -> None:
    first, _ = path.read_text(encoding="utf-8").split("\n", 1)
    mark, place = first.split("$schema=")
    assert mark == "# yaml-language-server: "
    assert (path.parent / place).resolve() == SCHEMA_FILE


@pytest.mark.parametrize(("path", "value"), [case[:2] for case in BAD_VALUES])
def test_bad_values_are_refused_where_json_schema_can(path: str, value: object) -> None:
    shown = re.sub(r" at 0x\w+", "", repr(value))
    assert accepts(recipe_with(path, value)) == ((path, shown) in NOT_IN_JSON_SCHEMA)


@pytest.mark.parametrize("path", REQUIRED)
def test_a_missing_field_is_refused(path: str) -> None:
    assert not accepts(without(path))


@pytest.mark.parametrize("content", [None, [], "text", 3])
def test_what_is_no_mapping_is_refused(content: object) -> None:
    assert not accepts(content)


@pytest.mark.parametrize(("name", "value"), SGD_ONLY.items())
def test_adam_has_not_what_only_sgd_has(name: str, value: object) -> None:
    assert not accepts({**minimal(), "optimizer": {"name": "adam", "lr": 0.1, name: value}})


@pytest.mark.parametrize(("schedule", "field"), BAD_SCHEDULES)
def test_what_a_kind_of_schedule_does_not_have_is_refused(
    schedule: dict[str, Any], field: str
) -> None:
    assert not accepts({**minimal(), "schedule": schedule})
    assert accepts({**minimal(), "schedule": {field: schedule[field]}})


@pytest.mark.parametrize(("loss", "search", "field"), BAD_COMBINATIONS)
def test_a_search_that_the_loss_does_not_have_is_refused(
    loss: dict[str, Any], search: dict[str, Any], field: str
) -> None:
    assert not accepts({**minimal(), "loss": loss, "search": search})


def choices(**options: list[Any]) -> list[dict[str, Any]]:
    """Every way to set the options, each of which may also be left out."""
    settings = [[{}, *({name: value} for value in values)] for name, values in options.items()]
    return [dict(ChainMap(*parts)) for parts in itertools.product(*settings)]


SECTIONS = {
    "optimizer": choices(name=["sgd", "adamw"], lr=[1], momentum=[0, 0.9], nesterov=[False, True]),
    "loss and search": [
        {"loss": loss, "search": search}
        for loss in [
            *choices(order=[3, 4.0], variables=[["x", "y"], ["x", "y", "t"]]),
            *choices(base=["none", "cross_entropy"], label_smoothing=[0, 0.1]),
        ]
        for search in choices(
            space=["theta", "canonical"],
            filter=["none", "trainable", "steady"],
            scale=["free", "normalized"],
        )
    ],
}


@pytest.mark.parametrize("name", SECTIONS)
def test_schema_and_python_agree_on_every_combination(name: str) -> None:
    verdicts = set()
    for settings in SECTIONS[name]:
        content = minimal() | ({name: settings} if name == "optimizer" else settings)
        try:
            recipe_from_dict(content)
            allowed = True
        except RecipeError:
            allowed = False
        assert accepts(content) == allowed, settings
        verdicts.add(allowed)
    assert verdicts == {True, False}
