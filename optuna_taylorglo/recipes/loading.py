"""A recipe on its way: from a YAML file, into the study that it defines, and compared with it.

A recipe is one commented YAML file that says everything scientific about a study. What belongs to
the machine (data directory, device, precision, threads) is given to the worker and refused here, so
that the same recipe means the same search everywhere. The first worker freezes its recipe into the
study; every later one works by that copy and refuses a different file.
"""

import dataclasses
import json
import os
import re
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from optuna_taylorglo.attributes import RECIPE
from optuna_taylorglo.errors import RecipeError, RecipeMismatch
from optuna_taylorglo.recipes.rules import nearest, show
from optuna_taylorglo.recipes.schema import (
    MACHINE_FIELDS,
    Recipe,
    Section,
    section_types,
)

if TYPE_CHECKING:
    import optuna

SCHEMA_VERSION = 1

# MySQL keeps an attribute in a TEXT column of 65,535 bytes; the rest is room for the envelope.
_MAX_RECIPE_BYTES = 60_000

_SectionT = TypeVar("_SectionT", bound=Section)


def load_recipe(path: str | os.PathLike[str]) -> Recipe:
    """Reads a recipe from a YAML file.

    Raises:
        RecipeError: If the file cannot be read, is no YAML mapping, or breaks a rule.
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
        content = yaml.load(text, Loader=_RecipeLoader)
    except RecursionError as error:
        raise RecipeError("", "is nested too deeply", source) from error
    except (yaml.YAMLError, ValueError) as error:
        raise RecipeError("", f"is not valid YAML: {error}", source) from error
    return recipe_from_dict(content, source)


def recipe_from_dict(content: object, source: str = "recipe") -> Recipe:
    """Builds a recipe from plain values.

    Args:
        content: What a YAML or JSON file holds.
        source: Where it came from, for messages.

    Raises:
        RecipeError: If it is no mapping or breaks a rule.
    """
    try:
        return _build(Recipe, content)
    except RecipeError as error:
        raise error.from_source(source) from None


def recipe_differences(in_study: Recipe, in_file: Recipe) -> list[str]:
    """One readable line for each field in which two recipes differ."""
    return _differences("", in_study.to_dict(), in_file.to_dict())


def freeze(study: "optuna.Study", recipe: Recipe) -> None:
    """Keeps the recipe in the study, or makes sure that the study holds the same one.

    Storages have no "write if absent": of two different recipes that are frozen in the same few
    milliseconds the last one written stands, and the other caller may already have returned.
    Calling again is cheap and tells.

    Raises:
        RecipeMismatch: If the study holds a different recipe.
        RecipeError: If the recipe is too long for the storage, or the study's own is unreadable.
    """
    content = recipe.to_dict()
    length = len(json.dumps(content))
    if length > _MAX_RECIPE_BYTES:
        raise RecipeError("", f"{length} bytes as JSON, at most {_MAX_RECIPE_BYTES} fit the study")
    if frozen_recipe(study) is None:
        envelope = {"schema": SCHEMA_VERSION, "recipe": content}
        study.set_user_attr(RECIPE, envelope)
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


def recipe_reference() -> str:
    """A Markdown table of every field: what is allowed, its default and its meaning."""
    rows = [("Field", "Allowed", "Default", "Meaning"), ("---",) * 4]
    sections = section_types(Recipe)
    for item in dataclasses.fields(Recipe):
        if item.name not in sections:
            rows.append(_reference_row(item.name, item))
            continue
        if item.default is None:
            rows.append((f"`{item.name}`", "null or the fields below", "`null`", "Left out: none."))
        for inner in dataclasses.fields(sections[item.name]):
            rows.append(_reference_row(f"{item.name}.{inner.name}", inner))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _reference_row(path: str, item: "dataclasses.Field[Any]") -> tuple[str, str, str, str]:
    if item.default_factory is not dataclasses.MISSING:
        default = f"`{show(item.default_factory())}`"
    elif item.default is not dataclasses.MISSING:
        default = f"`{show(item.default)}`"
    else:
        default = "required"
    return f"`{path}`", item.metadata["rule"].allowed, default, item.metadata["doc"]


def _build(cls: type[_SectionT], content: object) -> _SectionT:
    """Builds a section from a mapping; errors carry the path from `cls` downwards."""
    fields = {item.name: item for item in dataclasses.fields(cls)}
    if not isinstance(content, Mapping):
        found = "it is empty" if content is None else f"{show(content)} is not allowed"
        raise RecipeError("", f"{found}, must be a mapping with the fields {', '.join(fields)}")
    for name in content:
        if name not in fields:
            raise RecipeError(name if isinstance(name, str) else show(name), _unknown(cls, name))
    sections = section_types(cls)
    arguments: dict[str, Any] = {}
    for name, item in fields.items():
        if name not in content:
            if item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
                needed = (
                    "a mapping with the fields "
                    + ", ".join(inner.name for inner in dataclasses.fields(sections[name]))
                    if name in sections
                    else item.metadata["rule"].allowed
                )
                raise RecipeError(name, f"missing, must be {needed}")
        elif name in sections and not (content[name] is None and item.default is None):
            try:
                arguments[name] = _build(sections[name], content[name])
            except RecipeError as error:
                raise error.within(name) from None
        else:
            arguments[name] = content[name]
    return cls(**arguments)


def _unknown(cls: type[Section], name: object) -> str:
    """Why a field is not known, with the nearest one that is."""
    if name in MACHINE_FIELDS:
        return MACHINE_FIELDS[str(name)]
    known = [item.name for item in dataclasses.fields(cls)]
    elsewhere = [
        f"did you mean {section}.{name}?"
        for section, kind in section_types(Recipe).items()
        if name in {item.name for item in dataclasses.fields(kind)}
    ]
    hint = nearest(name, known) or next(iter(elsewhere), "")
    return f"unknown field, {hint or 'known are ' + ', '.join(known)}"


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
