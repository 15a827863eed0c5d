"""A recipe from a YAML file, from the package or from a study."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from optuna_taylorglo.attributes import CLASS_WEIGHTS, RECIPE
from optuna_taylorglo.errors import RecipeError
from optuna_taylorglo.recipes.schema import Recipe, recipe_from_dict
from optuna_taylorglo.validation import show

if TYPE_CHECKING:
    import optuna

_PACKAGE = Path(__file__).parents[1]


def bundled_recipes() -> dict[str, Path]:
    """Every bundled recipe: its name and its file."""
    folder = _PACKAGE / "bundled_studies"
    if not folder.is_dir():  # only wheels have it; in a checkout the recipes are in studies/
        folder = _PACKAGE.parent / "studies"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find_recipe(path_or_name: str | os.PathLike[str]) -> Path:
    """The file of a recipe: a path, which wins if it exists, or the name of a bundled recipe."""
    path, recipes = Path(path_or_name), bundled_recipes()
    if path.exists():
        return path
    if str(path) in recipes:
        return recipes[str(path)]
    near = difflib.get_close_matches(path.stem.lower(), recipes, n=5, cutoff=0.5)
    hint = f"near to it are {', '.join(near)}" if near else f"there are {', '.join(recipes)}"
    problem = f"No such file, and no bundled recipe has this name; {hint}"
    raise RecipeError("", problem, str(path))


def load_recipe(path: str | os.PathLike[str]) -> Recipe:
    """Read a recipe from a YAML file, or raise a `RecipeError` that says what is wrong with it."""
    source = os.fspath(path)
    try:
        content = yaml.load(Path(path).read_text(encoding="utf-8"), Loader=_RecipeLoader)
    except UnicodeDecodeError as error:
        raise RecipeError("", f"is not UTF-8 text: {error}", source) from error
    except OSError as error:
        raise RecipeError("", f"cannot be read: {error.strerror}", source) from error
    except RecursionError as error:
        raise RecipeError("", "is nested too deeply", source) from error
    except (yaml.YAMLError, ValueError) as error:
        raise RecipeError("", f"is not valid YAML: {error}", source) from error
    return recipe_from_dict(content, source)


def line_of(path: str | os.PathLike[str], field: str) -> int | None:
    """The line, from 1, of a field (dotted path) in a YAML file that was read before.

    Where the field is left out, it is that of its section; None if that is left out too.
    """
    with open(path, encoding="utf-8") as file:
        node = yaml.compose(file, Loader=_RecipeLoader)
    line = None
    for name in field.split("."):
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        found = next(((key, value) for key, value in pairs if key.value == name), None)
        if found is None:
            break
        key, node = found
        line = key.start_mark.line + 1
    return line


class _RecipeLoader(yaml.SafeLoader):
    """YAML's safe loader, without the surprises of YAML 1.1 and with duplicate keys refused.

    PyYAML reads 1e-3 as text, 010 as eight, 1:30 as ninety, `no` as false and 2020-01-01 as a date.
    Here numbers are decimal, only true and false are booleans, and the rest is text.
    """

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (PyYAML's own class attribute)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            if isinstance(key := self.construct_object(key_node, deep=True), Hashable):
                if key in seen:
                    problem, mark = f"duplicate key {show(key)}", key_node.start_mark
                    raise yaml.constructor.ConstructorError(None, None, problem, mark)
                seen.add(key)
        return super().construct_mapping(node, deep)


_FLOAT = r"[-+]?(\d+\.\d*|\.\d+)([eE][-+]?\d+)?|[-+]?\d+[eE][-+]?\d+|[-+]?\.(inf|Inf|INF)|\.nan"
for _tag, _pattern, _first in (
    ("null", "~|null|Null|NULL|", "~nN"),
    ("bool", "true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", "[-+]?(0|[1-9][0-9_]*)", "-+0123456789"),
    ("float", _FLOAT, "-+.0123456789"),
):
    _RecipeLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}",
        re.compile(f"^(?:{_pattern})$", re.ASCII),
        [*_first, *([""] if _tag == "null" else [])],
    )


SCHEMA_VERSION = 2

CHANGEABLE = "search.n_generations, to a greater number, and selection"
"""What may change in a study with results: how far it goes, and how its winner is selected."""


def recipe_differences(in_study: Recipe, in_file: Recipe) -> list[str]:
    """One readable line for each field in which two recipes differ."""
    return list(_differences("", in_study.to_dict(), in_file.to_dict()))


def _differences(path: str, in_study: object, in_file: object) -> Iterator[str]:
    if isinstance(in_study, dict) and isinstance(in_file, dict):
        for name in dict.fromkeys([*in_study, *in_file]):
            ours, theirs = in_study.get(name, _ABSENT), in_file.get(name, _ABSENT)
            yield from _differences(f"{path}.{name}".lstrip("."), ours, theirs)
    elif (ours := _as_json(in_study)) != (theirs := _as_json(in_file)):
        yield f"{path}: study has {ours}, file has {theirs}"


_ABSENT = object()


def _as_json(value: object) -> str:
    return "nothing" if value is _ABSENT else json.dumps(value, sort_keys=True)


def merged(in_study: Recipe, in_file: Recipe) -> Recipe | None:
    """The recipe with which a study with results continues; None if they differ in what counts.

    No candidate and no training depends on how many generations there will be, nor on how the
    winner is selected. The greater number of generations holds, so that workers with an older file
    can join a search that was made longer.
    """
    generations = max(in_study.search.n_generations, in_file.search.n_generations)
    ours, theirs = (
        recipe.changed(
            search=recipe.search.changed(n_generations=generations), selection=in_file.selection
        )
        for recipe in (in_study, in_file)
    )
    return None if recipe_differences(ours, theirs) else theirs


def replace_recipe(study: optuna.Study, recipe: Recipe) -> None:
    """Save a recipe in the study in place of the one that is there."""
    study.set_user_attr(RECIPE, {"schema": SCHEMA_VERSION, "recipe": recipe.to_dict()})


def frozen_recipe(study: optuna.Study) -> Recipe | None:
    """The recipe saved in the study, or None when it has none yet."""
    envelope = study.user_attrs.get(RECIPE)
    if envelope is None:
        return None
    source = f"study {study.study_name!r}, attribute {RECIPE}"
    if not isinstance(envelope, dict) or not {"schema", "recipe"} <= envelope.keys():
        raise RecipeError("", f"{show(envelope)} is not a frozen recipe", source)
    if (version := envelope["schema"]) != SCHEMA_VERSION:
        problem = f"{show(version)} is not allowed, this version of optuna-taylorglo reads "
        problem += f"{SCHEMA_VERSION}: install the version that started the study"
        raise RecipeError("schema", problem, source)
    return recipe_from_dict(envelope["recipe"], source)


def settled_recipe(study: optuna.Study) -> Recipe | None:
    """The frozen recipe, with balanced class weights as the first worker computed them."""
    recipe, weights = frozen_recipe(study), study.user_attrs.get(CLASS_WEIGHTS)
    if recipe is None or recipe.loss.class_weights != "balanced" or not weights:
        return recipe
    return recipe.changed(loss=recipe.loss.changed(class_weights=tuple(weights)))
