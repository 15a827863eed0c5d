"""What a training is built from: instances of a recipe's classes, and weights of a file."""

from __future__ import annotations

import inspect
import pickle
import textwrap
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from optuna_taylorglo.errors import RecipeError, UsageError
from optuna_taylorglo.recipes.settings import CheckpointSettings, Component


def build(cls: type[Any], component: Component, field: str, **offered: Any) -> Any:
    """An instance of a recipe's class, which also gets what its constructor takes of `offered`."""
    parameters = inspect.signature(cls).parameters
    arguments = {name: value for name, value in offered.items() if name in parameters}
    arguments |= component.init_args
    check_arguments(cls, component, field, **arguments)
    try:
        return cls(**arguments)
    # Any other error is one inside the class, whose author needs the traceback.
    except UsageError as error:
        raise _cannot_build(component, field, error) from error


def check_arguments(cls: type[Any], component: Component, field: str, **arguments: Any) -> None:
    """Refuse arguments that the constructor does not take, or too few."""
    try:
        inspect.signature(cls).bind(**arguments)
    except TypeError as error:
        raise _cannot_build(component, field, error) from error


def _cannot_build(component: Component, field: str, error: Exception) -> RecipeError:
    return RecipeError(
        f"{field}.init_args",
        f"{component.init_args!r} cannot build {component.class_path}: {error}",
    )


class Checkpoint:
    """The weights of a file, for any number of networks.

    Args:
        settings: Which file, and what of it is left out.
        data_dir: Where a relative path begins.

    Raises:
        RecipeError: If the file cannot be read or holds no weights.
    """

    def __init__(self, settings: CheckpointSettings, data_dir: Path) -> None:
        self.skip = settings.skip
        self.path = data_dir / settings.path
        try:
            content = torch.load(self.path, map_location="cpu", weights_only=True)
        except (OSError, pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
            raise self._unusable(
                "cannot be read as weights, must be what torch.save makes of a state dict, or a "
                f"Lightning checkpoint: {str(error).splitlines()[0]}"
            ) from error
        if isinstance(content, dict):
            content = content.get("state_dict", content)
        values = content.values() if isinstance(content, dict) else []
        if not values or not all(isinstance(value, Tensor) for value in values):
            raise self._unusable("holds no state dict")
        self._weights: dict[str, Tensor] = content

    def load_into(self, network: nn.Module) -> None:
        """Load all weights into a network but those whose names begin with a text of `skip`.

        Raises:
            RecipeError: If names or shapes do not fit.
        """
        own, weights = network.state_dict(), self._weights
        if not any(name in own for name in weights):
            # A checkpoint of a `Classifier` holds the network as `net`.
            inside = {n[4:]: value for n, value in weights.items() if n.startswith("net.")}
            weights = inside or weights
        given = {name: value for name, value in weights.items() if not name.startswith(self.skip)}
        fresh = {name: value for name, value in own.items() if name.startswith(self.skip)}
        try:
            network.load_state_dict(given | fresh)
        except RuntimeError as error:
            raise RecipeError(
                "checkpoint",
                f"{self.path} does not fit {type(network).__name__}: "
                f"{textwrap.shorten(str(error), 1000)} Names that begin with a text in "
                "checkpoint.skip are left out",
            ) from error

    def _unusable(self, problem: str) -> RecipeError:
        return RecipeError("checkpoint.path", f"{self.path} {problem}")
