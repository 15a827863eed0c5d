"""What is made from the recipe's models: the table of docs/recipes.md and the JSON schema.

Bring both up to date with ``python tests/helpers/recipe_reference.py``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from optuna_taylorglo.recipes.schema import SCHEMA_FILE, RecipeFile

RECIPES = Path(__file__).parents[2] / "docs" / "recipes.md"
LIMITS = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}


class _Untitled(GenerateJsonSchema):
    """Without titles that only repeat the names of fields."""

    def field_title_should_be_set(self, schema: object) -> bool:
        return False


SCHEMA: dict[str, Any] = {
    "$schema": GenerateJsonSchema.schema_dialect,
    **RecipeFile.model_json_schema(schema_generator=_Untitled),
}


def recipe_json_schema() -> str:
    """The JSON schema as a file."""
    return json.dumps(SCHEMA, indent=2, ensure_ascii=False) + "\n"


def recipes_page() -> str:
    """The page of recipes with the table that the models give."""
    generated = re.compile(r"(?<=<!-- generated -->\n).*(?=<!-- end -->\n)", re.DOTALL)
    page, replaced = generated.subn(
        lambda _: f"\n{recipe_reference()}\n", RECIPES.read_text(encoding="utf-8")
    )
    assert replaced == 1, "the page must have one generated part"
    return page


def recipe_reference() -> str:
    """A Markdown table of every field: its type, default and meaning."""
    rows = [("Field", "Type", "Default", "Meaning"), ("---",) * 4, *_rows(SCHEMA)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _rows(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, ...]]:
    """A row for each field, and for each of those within it."""
    for name, field in section["properties"].items():
        meaning = " ".join(field.get("description", "").split())
        references = [part["$ref"] for part in field.get("anyOf", [field]) if "$ref" in part]
        default = f"`{json.dumps(field.get('default', {}), ensure_ascii=False)}`"
        if not references:
            if name in section.get("required", ()):
                default = "required"
            elif "default" not in field and _type(field) != "object":  # another field's value
                default = ""
            yield f"`{prefix}{name}`", _type(field), default, meaning
        elif "anyOf" in field:
            default = default if default == "`null`" else "their defaults"
            kind = "the fields below or null"
            yield f"`{prefix}{name}`", kind, default, meaning or "Left out: none."
        for reference in references:
            inner = SCHEMA["$defs"][reference.rpartition("/")[2]]
            yield from _rows(inner, f"{prefix}{name}.")


def _type(schema: Mapping[str, Any]) -> str:
    """A field's JSON schema in short, such as ``integer ≥ 1, ≤ 100``."""
    if "anyOf" in schema:
        return " or ".join(map(_type, schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return ", ".join(schema.get("enum") or [schema["const"]])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items') or schema['prefixItems'][0])}"
    limits = [f"{sign} {schema[key]}" for key, sign in LIMITS.items() if key in schema]
    return f"{schema.get('type', 'mapping')} {', '.join(limits)}".strip()


if __name__ == "__main__":
    RECIPES.write_text(recipes_page(), encoding="utf-8")
    SCHEMA_FILE.write_text(recipe_json_schema(), encoding="utf-8")
