"""Values that come from outside, checked by pydantic models and refused in our own words."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, NoReturn, Self, get_args

from pydantic import (
    AllowInfNan,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Strict,
    ValidationError,
)
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError


class Problem(NamedTuple):
    """What is wrong: the dotted path of a field, empty for the whole, and a sentence about it."""

    field: str
    sentence: str


@dataclass(frozen=True)
class Allowed:
    """Says what a field may hold, in words that follow "must be", where its schema cannot.

    Put it into the field's annotation.
    """

    words: str


def _whole(value: object) -> object:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        raise ValueError("too large")
    return value


def _tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _plain_mapping(value: object) -> object:
    if not isinstance(value, Mapping):
        raise ValueError
    for name in value:
        if not isinstance(name, str):  # JSON would make a text of it
            raise ValueError(f"{show(name)} is no text")
    try:
        return json.loads(json.dumps(dict(value), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(str(error)) from None


Number = Annotated[float, Strict(), AllowInfNan(False)]
"""A finite number; whole ones may lack a point."""

AsWhole = BeforeValidator(_whole)
"""Makes `int` take 4000.0; in an annotation it stands behind limits, as they show in the JSON
schema only so."""

WholeNumber = Annotated[int, Strict(), AsWhole]
"""A whole number, which may be written 4000.0 or 4e3."""

FromList = BeforeValidator(_tuple)
"""Makes a tuple of a list, and of nothing else."""

PlainMapping = Annotated[dict[str, Any], BeforeValidator(_plain_mapping)]
"""A copy of a mapping from texts to JSON values."""


class PlainModel(BaseModel):
    """Checked, frozen fields that hold plain values; the docstring of each says what it means."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    not_fields: ClassVar[Mapping[str, str]] = {}
    """Names that somebody may take for fields, each with what to tell him."""

    if not TYPE_CHECKING:  # type checkers know the constructor from the fields

        def __init__(self, **values: Any) -> None:
            # As its type says; mappings are for `from_plain`.
            for name, kind in nested_models(type(self)).items():
                if isinstance(value := values.get(name), Mapping):
                    sentence = f"{show(value)} is not allowed, must be {kind.__name__}"
                    raise self.refusal([Problem(name, sentence)])
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise self.refusal(_problems(error, type(self), values)) from None

        # Nested models are validated by pydantic itself, so that the outermost one tells of all.
        __init__.__pydantic_base_init__ = True

    @classmethod
    def from_plain(cls, content: object) -> Self:
        """Build it from what a JSON or YAML file holds."""
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise cls.refusal(_problems(error, cls, content)) from None

    def changed(self, **changes: Any) -> Self:
        """A copy with other values in some fields, checked like any other."""
        return type(self)(**(dict(self) | changes))

    @classmethod
    def refusal(cls, problems: Sequence[Problem]) -> Exception:
        """The error that tells of the problems."""
        raise NotImplementedError


def refuse(problems: Iterable[Problem]) -> NoReturn:
    """Refuse a model from inside a validator of several of its fields."""
    raise ValidationError.from_exception_data(
        "refused",
        [
            InitErrorDetails(
                type=PydanticCustomError("told", "{sentence}", {"sentence": problem.sentence}),
                loc=tuple(problem.field.split(".")),
                input=None,
            )
            for problem in problems
        ],
    )


def nested_models(model: type[PlainModel]) -> dict[str, type[PlainModel]]:
    """The fields that are models themselves, optional ones included, with their types."""
    return {
        name: kind
        for name, field in model.model_fields.items()
        for kind in (field.annotation, *get_args(field.annotation))
        if isinstance(kind, type) and issubclass(kind, PlainModel)
    }


def allowed(model: type[PlainModel], name: str) -> str:
    """What a field may hold, in words that follow "must be"."""
    for mark in model.model_fields[name].metadata:
        if isinstance(mark, Allowed):
            return mark.words
    schema = model.model_json_schema()
    return _words(schema["properties"][name], schema.get("$defs", {}))


def show(value: object) -> str:
    """A value as a message shows it: in JSON's spelling, and never long."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 100 else text[:97] + "..."


def nearest(name: object, known: Iterable[str]) -> str:
    """The words "did you mean ...?" for a misspelt name, or nothing when none is near."""
    close = difflib.get_close_matches(str(name).lower(), known, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else ""


_UNKNOWN = ("extra_forbidden", "invalid_key")


def _problems(error: ValidationError, model: type[PlainModel], content: object) -> list[Problem]:
    """What is wrong with `content`; unknown names first, as they are often the reason."""
    found: dict[object, Problem] = {}
    for details in sorted(error.errors(include_url=False), key=lambda d: d["type"] not in _UNKNOWN):
        problem = _problem(details, model, content)
        # Several wrong items of a list are one problem, several rules across fields are not.
        found.setdefault(problem if details["type"] == "told" else problem.field, problem)
    return list(found.values())


def _problem(details: ErrorDetails, root: type[PlainModel], content: object) -> Problem:
    kind, location = details["type"], details["loc"]
    if kind == "told":
        return Problem(".".join(map(str, location)), details["msg"])
    # The location leads through models to a field. What lies beyond, such as an item of a list, is
    # shown with the whole field.
    path: list[str] = []
    owner = model = root
    for part in location:
        if part not in model.model_fields:
            break
        path.append(str(part))
        owner, model = model, nested_models(model).get(str(part), PlainModel)
    if kind in _UNKNOWN:
        return Problem(".".join(map(str, location)), _about_unknown(location[-1], model, root))
    if not path:
        found = "it is empty" if content is None else f"{show(content)} is not allowed"
        return Problem("", f"{found}, must be {_words(root.model_json_schema(), {})}")
    must_be = f"must be {allowed(owner, path[-1])}"
    if kind == "missing":
        return Problem(".".join(path), f"missing, {must_be}")
    value = content
    for name in path:
        value = value[name] if isinstance(value, Mapping) else getattr(value, name)
    hint = _hint(details, owner, path[-1])
    return Problem(".".join(path), f"{show(value)} is not allowed, {must_be}{hint}")


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


def _hint(details: ErrorDetails, owner: type[PlainModel], name: str) -> str:
    """What may help besides, in brackets, or nothing."""
    kind, value = details["type"], details["input"]
    hint = ""
    if kind == "value_error":
        hint = str(details["ctx"]["error"])
    elif kind == "literal_error":
        hint = nearest(value, _literals(owner.model_fields[name].annotation))
    elif kind in ("int_type", "float_type") and isinstance(value, str):
        hint = "text, not a number"
    elif kind == "int_type" and isinstance(value, float) and value.is_integer():
        hint = f"write {int(value)}"
    return f" ({hint})" if hint else ""


def _literals(annotation: object) -> list[str]:
    """The texts that a type allows, also as one of several."""
    parts = ([a] if isinstance(a, str) else _literals(a) for a in get_args(annotation))
    return [text for part in parts for text in part]


_LIMITS = {
    "exclusiveMinimum": "above",
    "minimum": "of at least",
    "exclusiveMaximum": "below",
    "maximum": "at most",
}
_NOUNS = {
    "integer": ("a whole number", "whole numbers"),
    "number": ("a finite number", "finite numbers"),
    "string": ("text", "texts"),
    "object": ("a mapping", "mappings"),
    "boolean": ("true or false", "true or false"),
    "null": ("null", "null"),
}


def _words(schema: Mapping[str, Any], definitions: Mapping[str, Any], plural: bool = False) -> str:
    """A JSON schema in words that follow "must be" or, in the plural, "a list of"."""
    if "$ref" in schema:
        return _words(definitions[schema["$ref"].rpartition("/")[2]], definitions, plural)
    if "anyOf" in schema:
        options = [_words(option, definitions) for option in schema["anyOf"]]
        return " or ".join(sorted(options, key=lambda words: words != "null"))
    if "enum" in schema or "const" in schema:
        *first, last = schema.get("enum") or [schema["const"]]
        return " or ".join([", ".join(map(str, first))] * bool(first) + [str(last)])
    if schema["type"] == "array":
        return "a list of " + _words(schema["items"], definitions, plural=True)
    if "properties" in schema:
        return "a mapping with the fields " + ", ".join(schema["properties"])
    limits = [f"{word} {schema[key]:.15g}" for key, word in _LIMITS.items() if key in schema]
    return f"{_NOUNS[schema['type']][plural]} {' and '.join(limits)}".strip()
