"""Pydantic models of files, whose errors name the field, its value and what it must be."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, Self, get_args

from pydantic import AllowInfNan, BaseModel, BeforeValidator, ConfigDict, Strict, ValidationError
from pydantic_core import ErrorDetails


class Problem(NamedTuple):
    """The dotted path of a field, empty for the whole content, and what is wrong with it."""

    field: str
    sentence: str


def _plain_mapping(value: object) -> object:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ValueError("must be a mapping from names to plain JSON values")
    try:
        return json.loads(json.dumps(dict(value), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"must be a mapping to plain JSON values: {error}") from None


Number = Annotated[float, Strict(), AllowInfNan(False)]
"""A finite number; whole ones may lack a point."""

PlainMapping = Annotated[dict[str, Any], BeforeValidator(_plain_mapping)]
"""A copy of a mapping from strings to JSON values."""


class PlainModel(BaseModel):
    """Frozen fields that hold plain values; the docstring of each is its description."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    not_fields: ClassVar[Mapping[str, str]] = {}
    """Names that are easily taken for fields, each with what to do instead."""

    @classmethod
    def from_plain(cls, content: object) -> Self:
        """Build it from the content of a JSON or YAML file, or raise the class's own error."""
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            first: dict[object, ErrorDetails] = {}
            # A misspelt name comes first, as it is often the reason for a missing one.
            for each in sorted(error.errors(), key=lambda each: each["type"] not in _UNKNOWN):
                # Of the items of a list only the first wrong one is reported.
                field = tuple(part for part in each["loc"] if isinstance(part, str))
                first.setdefault(field, each)
            raise cls.refusal([_problem(each, cls) for each in first.values()]) from None

    def changed(self, **changes: Any) -> Self:
        """A copy with other values in some fields, checked like any other."""
        return self.from_plain(dict(self) | changes)

    @classmethod
    def refusal(cls, problems: Sequence[Problem]) -> Exception:
        """The error that reports the problems."""
        raise NotImplementedError


def nested_models(model: type[PlainModel]) -> dict[str, type[PlainModel]]:
    """The fields that hold models, optional ones and lists included, with the models."""
    return {
        name: kind
        for name, field in model.model_fields.items()
        for kind in (field.annotation, *get_args(field.annotation))
        if isinstance(kind, type) and issubclass(kind, PlainModel)
    }


def show(value: object) -> str:
    """A value as messages show it: in JSON's spelling, and at most 100 characters."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 100 else text[:97] + "..."


def nearest(name: object, known: Iterable[str]) -> str:
    """The words "did you mean ...?" for a misspelt name, or nothing when none is near."""
    close = difflib.get_close_matches(str(name).lower(), known, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else ""


def files_beside(path: str | PathLike[str], *suffixes: str) -> list[str]:
    """The files of these suffixes in the folder of a path, which need not be there."""
    try:
        return [str(file) for file in Path(path).parent.iterdir() if file.suffix in suffixes]
    except OSError:
        return []


_UNKNOWN = ("extra_forbidden", "invalid_key")
# Where pydantic's own message speaks of Python rather than of a file.
_WORDS = {
    "bool_type": "must be true or false",
    "float_type": "must be a number",
    "int_from_float": "must be a whole number",
    "int_type": "must be a whole number",
    "list_type": "must be a list",
    "string_too_short": "must not be empty",
    "string_type": "must be text",
    "tuple_type": "must be a list",
}


def _problem(details: ErrorDetails, root: type[PlainModel]) -> Problem:
    kind, location, value = details["type"], details["loc"], details["input"]
    field = ".".join(map(str, location))
    if kind == "rule":  # of several fields, see `Section`
        return Problem(field, details["msg"])
    if kind in _UNKNOWN:
        return Problem(field, _about_unknown(location[-1], _model_at(root, location[:-1]), root))
    if kind == "missing":
        name, owner = str(location[-1]), _model_at(root, location[:-1])
        meaning = " ".join((owner.model_fields[name].description or "").split())
        return Problem(field, "is missing" + (f": {meaning}" if meaning else ""))
    if kind == "value_error":
        sentence = str(details["ctx"]["error"])
    elif kind == "model_type":
        fields = ", ".join(_model_at(root, location).model_fields)
        sentence = f"must be a mapping with the fields {fields}"
    else:
        sentence = _WORDS.get(kind) or re.sub(r"^\w+ should ", "must ", details["msg"])
    if kind == "literal_error":
        hint = nearest(value, re.findall(r"'([^']*)'", details["msg"]))
        sentence += f" ({hint})" if hint else ""
    elif kind in ("int_type", "float_type") and isinstance(value, str):
        sentence += ", and this is text"
    found = "it is empty" if value is None and not field else f"{show(value)} is not allowed"
    return Problem(field, f"{found}, {sentence}")


def _model_at(model: type[PlainModel], location: Iterable[object]) -> type[PlainModel]:
    """The model that a location leads to; places in a list and plain fields lead nowhere else."""
    for part in location:
        model = nested_models(model).get(str(part), model)
    return model


def _about_unknown(name: object, model: type[PlainModel], root: type[PlainModel]) -> str:
    """Why a name is no field of `model`, with the nearest one that is."""
    if name in model.not_fields:
        return model.not_fields[str(name)]
    elsewhere = [
        f"did you mean {section}.{name}?"
        for section, kind in nested_models(root).items()
        if name in kind.model_fields
    ]
    hint = nearest(name, model.model_fields) or next(iter(elsewhere), "")
    return f"unknown field, {hint or 'known are ' + ', '.join(model.model_fields)}"
