"""Trainings on the digits that take a tenth of a second, for tests of what is built on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from searches import small_recipe
from torch import nn

from optuna_taylorglo.recipes.load import load_recipe
from optuna_taylorglo.training.runtime import RuntimeConfig
from optuna_taylorglo.training.training import Training


def cpu(data_dir: Path, *allowed: str) -> RuntimeConfig:
    """A machine on which results do not depend on what the CPU can do."""
    return RuntimeConfig(data_dir, "cpu", "32-true", allowed)


class RecordedTraining(Training):
    """Trains, and remembers the criterion and the options of each training."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.criteria: list[nn.Module] = []
        self.options: list[dict[str, Any]] = []

    @property
    def seeds(self) -> list[int]:
        return [options["seed"] for options in self.options]

    def run(self, criterion: nn.Module, **options: Any) -> float:
        self.criteria.append(criterion)
        self.options.append(options)
        return super().run(criterion, **options)


def digits_training(folder: Path, **changes: Any) -> RecordedTraining:
    """The small digits recipe, with some sections changed, ready to train."""
    recipe = load_recipe(small_recipe(folder / "recipe.yaml", **changes))
    return RecordedTraining(recipe, cpu(folder))
