"""The recipe's fields for people and for editors: a Markdown table and a JSON schema."""

import json
from pathlib import Path
from typing import get_origin

from pydantic.json_schema import GenerateJsonSchema

from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.validation import PlainModel, allowed, nested_models, show

SCHEMA_FILE = Path(__file__).with_name("recipe.schema.json")


def recipe_reference() -> str:
    """A Markdown table of every field: what is allowed, its default and its meaning."""
    rows = [("Field", "Allowed", "Default", "Meaning"), ("---",) * 4, *_rows(Recipe)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def recipe_json_schema() -> str:
    """The JSON schema of recipes, by which editors complete and check them."""
    schema = Recipe.model_json_schema(schema_generator=_Untitled)
    content = {"$schema": GenerateJsonSchema.schema_dialect, **schema}
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


class _Untitled(GenerateJsonSchema):
    """Without titles that only repeat the names of fields."""

    def field_title_should_be_set(self, schema: object) -> bool:
        return False


def _rows(section: type[PlainModel], prefix: str = "") -> list[tuple[str, ...]]:
    """A row for each field, and for each of those within it."""
    rows: list[tuple[str, ...]] = []
    # A list of sections is a field like any other.
    lists = [
        n for n, field in section.model_fields.items() if get_origin(field.annotation) is tuple
    ]
    sections = {n: inner for n, inner in nested_models(section).items() if n not in lists}
    for name, field in section.model_fields.items():
        if name not in sections:
            rows.append(_row(section, name, prefix))
            continue
        if field.default is None:
            meaning = " ".join((field.description or "Left out: none.").split())
            rows.append((f"`{prefix}{name}`", "null or the fields below", "`null`", meaning))
        rows += _rows(sections[name], f"{prefix}{name}.")
    return rows


def _row(section: type[PlainModel], name: str, prefix: str = "") -> tuple[str, str, str, str]:
    field = section.model_fields[name]
    default = "required"
    if not field.is_required():
        default = f"`{show(field.get_default(call_default_factory=True))}`"
    meaning = " ".join((field.description or "").split())
    return f"`{prefix}{name}`", allowed(section, name), default, meaning
