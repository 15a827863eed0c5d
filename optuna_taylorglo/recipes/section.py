"""What all sections of a recipe have in common."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from pydantic import ConfigDict, model_serializer, model_validator
from pydantic_core.core_schema import SerializerFunctionWrapHandler

from optuna_taylorglo.errors import RecipeError
from optuna_taylorglo.recipes.requirements import Requirement
from optuna_taylorglo.validation import PlainModel, Problem, refuse

_WORKER_OPTIONS = {
    "data_dir": "--data-dir",
    "device": "--device",
    "precision": "--precision",
    "threads": "--threads",
}
MACHINE_FIELDS = {
    name: f"belongs to the machine, not to the recipe: give the worker {flag}"
    for name, flag in _WORKER_OPTIONS.items()
}

# Far above what anybody has the time for, and low enough that a slip of the pen, or of whoever
# can write the database, fills no memory and overflows no counter.
LONGEST = 10**9
MOST_EXAMPLES = 10**7
MOST_CANDIDATES = 10_000
MOST_GENERATIONS = 100_000
MOST_TRAININGS = 1000


def _add_requirements(schema: dict[str, Any], section: "type[Section]") -> None:
    if section.requirements:
        schema["allOf"] = [rule.json_schema(section) for rule in section.requirements]


class Section(PlainModel):
    """A part of the recipe."""

    model_config = ConfigDict(json_schema_extra=_add_requirements)

    not_fields: ClassVar[Mapping[str, str]] = MACHINE_FIELDS
    requirements: ClassVar[tuple[Requirement, ...]] = ()
    newer: ClassVar[tuple[str, ...]] = ()
    """Fields that earlier versions did not know. At their default they are not written, because
    such a version may share the study."""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if problems := self._problems_together():
            refuse(problems)
        return self

    def _problems_together(self) -> list[Problem]:
        """What is wrong across fields, once each of them is right."""
        return [problem for rule in self.requirements if (problem := rule.problem(self))]

    @model_serializer(mode="wrap")
    def _without_unwritten(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = write(self)
        for name in self._unwritten():
            content.pop(name, None)
        return content

    def _unwritten(self) -> list[str]:
        """Fields that are left out where the section is written, all of them at their default."""
        fields = type(self).model_fields
        return [name for name in self.newer if getattr(self, name) == fields[name].get_default()]

    @classmethod
    def refusal(cls, problems: Sequence[Problem]) -> RecipeError:
        """The error that tells of the problems."""
        return RecipeError(*problems[0], others=problems[1:])

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, from which `recipe_from_dict` builds an equal recipe."""
        return self.model_dump(mode="json")
