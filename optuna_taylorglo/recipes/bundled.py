"""The recipes that come with the package, by their names."""

import difflib
import os
from pathlib import Path

from optuna_taylorglo.errors import RecipeError

_PACKAGE = Path(__file__).parents[1]


def bundled_recipes() -> dict[str, Path]:
    """Every bundled recipe: its name and its file."""
    folder = _PACKAGE / "bundled_studies"
    if not folder.is_dir():  # only wheels have it; in a checkout the recipes lie beside the package
        folder = _PACKAGE.parent / "studies"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find_recipe(path_or_name: str | os.PathLike[str]) -> Path:
    """The file of a recipe.

    Args:
        path_or_name: A path, which wins if it exists, or the name of a bundled recipe.

    Raises:
        RecipeError: If there is neither.
    """
    path, recipes = Path(path_or_name), bundled_recipes()
    if path.exists():
        return path
    if str(path) in recipes:
        return recipes[str(path)]
    near = difflib.get_close_matches(path.stem.lower(), recipes, n=5, cutoff=0.5)
    raise RecipeError(
        "",
        "No such file, and no bundled recipe has this name; "
        + (f"near to it are {', '.join(near)}" if near else f"there are {', '.join(recipes)}"),
        str(path),
    )
