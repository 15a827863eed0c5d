"""A recipe from a YAML file.

A recipe is one commented YAML file that says everything scientific about a study. What belongs to
the machine (data directory, device, precision, threads) is given to the worker and refused here, so
that the same recipe means the same search everywhere.
"""

import os
import re
from collections.abc import Hashable
from typing import Any

import yaml

from optuna_taylorglo.errors import RecipeError
from optuna_taylorglo.recipes.schema import Recipe, recipe_from_dict
from optuna_taylorglo.validation import show


def load_recipe(path: str | os.PathLike[str]) -> Recipe:
    """Reads a recipe from a YAML file.

    Raises:
        RecipeError: If the file cannot be read, is no YAML mapping, or breaks a rule.
    """
    return recipe_from_dict(read_yaml(path), path)


def read_yaml(path: str | os.PathLike[str]) -> object:
    """What a YAML file holds, as plain values.

    Raises:
        RecipeError: If the file cannot be read or is no YAML.
    """
    source = os.fspath(path)
    try:
        with open(source, encoding="utf-8") as file:
            text = file.read()
    except UnicodeDecodeError as error:
        raise RecipeError("", f"is not UTF-8 text: {error}", source) from error
    except OSError as error:
        raise RecipeError("", f"cannot be read: {error.strerror}", source) from error
    try:
        return yaml.load(text, Loader=_RecipeLoader)
    except RecursionError as error:
        raise RecipeError("", "is nested too deeply", source) from error
    except (yaml.YAMLError, ValueError) as error:
        raise RecipeError("", f"is not valid YAML: {error}", source) from error


def line_of(path: str | os.PathLike[str], field: str) -> int | None:
    """Line of a recipe's file on which a field stands, or the part of it that is there.

    Args:
        path: A YAML file that was read before.
        field: Dotted path of the field.

    Returns:
        The line, from 1; None if not even the field's section is there.
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
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable):
                if key in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"duplicate key {show(key)}", key_node.start_mark
                    )
                seen.add(key)
        return super().construct_mapping(node, deep)


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(0|[1-9][0-9_]*)", list("-+0123456789")),
    (
        "float",
        r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
):
    _RecipeLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), _first
    )
