"""The dry_run that commands make before they record anything."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from optuna_taylorglo.errors import RecipeError
from optuna_taylorglo.recipes.load import line_of

if TYPE_CHECKING:
    from optuna_taylorglo.recipes.schema import Recipe
    from optuna_taylorglo.training.preflight import Preflight
    from optuna_taylorglo.training.runtime import RuntimeConfig

logger = logging.getLogger(__name__)


def dry_run(recipe: Recipe, runtime: RuntimeConfig, path: Path | None = None) -> Preflight:
    """Rehearse a recipe on this machine, with a warning for each thing that looks wrong.

    Args:
        recipe: The recipe.
        runtime: This machine.
        path: Its file, whose line an error names; None for a recipe out of a study.

    Raises:
        UsageError: If it cannot work; the message says what to change.
    """
    from optuna_taylorglo.training.preflight import preflight

    try:
        found = preflight(recipe, runtime)
    except RecipeError as error:
        if path is None:
            raise
        line = line_of(path, error.field)
        raise error.from_source(f"{path}, line {line}" if line else str(path)) from error.__cause__
    for warning in found.warnings:
        logger.warning("%s", warning)
    return found
