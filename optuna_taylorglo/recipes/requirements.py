"""Rules across fields, each said once: for the check in Python and for the JSON schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

from optuna_taylorglo.validation import PlainModel, Problem, nested_models, show

Values = tuple[object, ...] | None
"""Some values of a field; None: all but its default."""


@dataclass(frozen=True, kw_only=True)
class Requirement:
    """Some values of a field go only with some values of others.

    Attributes:
        field: Dotted path of the field.
        values: Its values that have requirements.
        needs: Dotted paths of the other fields, with the values that they may have then.
        because: The reason and the way out; may hold the last name of a needed path in braces.
    """

    field: str
    values: Values
    needs: Mapping[str, Values]
    because: str

    def problem(self, model: PlainModel) -> Problem | None:
        """What is wrong with a model whose single fields are right, or None."""
        value = _value(model, self.field)
        others = {
            path: _plain(_value(model, path))
            for path, values in self.needs.items()
            if not _among(_value(model, path), values, type(model), path)
        }
        if not others or not _among(value, self.values, type(model), self.field):
            return None
        mismatch = " and ".join(f"{path} {other}" for path, other in others.items())
        because = self.because.format_map(
            {path.rpartition(".")[2]: other for path, other in others.items()}
        )
        return Problem(self.field, f"{_plain(value)} is not allowed with {mismatch}: {because}")

    def json_schema(self, model: type[PlainModel]) -> dict[str, Any]:
        """The rule for plain values of a kind of model, whose fields may be left out."""
        needs = [_schema(values, model, path) for path, values in self.needs.items()]
        return {"if": _schema(self.values, model, self.field), "then": {"allOf": needs}}


def _value(model: PlainModel, path: str) -> object:
    return reduce(getattr, path.split("."), model)


def _among(value: object, values: Values, model: type[PlainModel], path: str) -> bool:
    return value != _default(model, path) if values is None else value in values


def _schema(values: Values, model: type[PlainModel], path: str) -> dict[str, Any]:
    default = _default(model, path)
    if values is None:
        schema: dict[str, Any] = {"not": {"enum": [default]}}
    else:
        schema = {"enum": [list(v) if isinstance(v, tuple) else v for v in values]}
    for name in reversed(path.split(".")):
        schema = {"properties": {name: schema}}
        if not _among(default, values, model, path):
            schema["required"] = [name]
    return schema


def _default(model: type[PlainModel], path: str) -> object:
    *sections, name = path.split(".")
    for section in sections:
        model = nested_models(model)[section]
    return model.model_fields[name].get_default()


def _plain(value: object) -> str:
    if isinstance(value, PlainModel):
        value = value.model_dump(mode="json")
    return value if isinstance(value, str) else show(value)
