"""Weights that trainings start from, read from a file."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from optuna_taylorglo.errors import RecipeError
from optuna_taylorglo.recipes.training_settings import CheckpointSettings

_SHOWN = 5
"""Names of weights in a message, at most."""


class Checkpoint:
    """The weights of a file, for any number of networks.

    Args:
        settings: Which file, and what of it is left out.
        data_dir: Where a relative path begins.

    Raises:
        RecipeError: If the file cannot be read or holds no weights.
    """

    def __init__(self, settings: CheckpointSettings, data_dir: Path) -> None:
        self.settings = settings
        self.path = data_dir / settings.path
        self._weights = _read(self.path)

    def load_into(self, network: nn.Module) -> None:
        """Put the weights into a network, every one of them but those that are to be skipped.

        Raises:
            RecipeError: If names or shapes do not fit.
        """
        own = network.state_dict()
        weights = self._named_for(own)
        given = {name: value for name, value in weights.items() if not self._skips(name)}
        problems = [
            *_problem("is without", [n for n in own if n not in given and not self._skips(n)]),
            *_problem("has besides", [n for n in given if n not in own]),
            *_problem(
                "has in another shape",
                [
                    f"{n} {tuple(given[n].shape)} for {tuple(own[n].shape)}"
                    for n in given
                    if n in own and given[n].shape != own[n].shape
                ],
            ),
        ]
        if problems:
            raise RecipeError(
                "checkpoint",
                f"{self.path} does not fit {type(network).__name__}: it {'; it '.join(problems)}. "
                "Names that begin with a text in checkpoint.skip are left out",
            )
        network.load_state_dict(given, strict=False)

    def _skips(self, name: str) -> bool:
        return name.startswith(self.settings.skip)

    def _named_for(self, own: dict[str, Any]) -> dict[str, Tensor]:
        """The weights under a network's own names: a module of ours holds the network as `net`."""
        inside = {n.removeprefix("net."): v for n, v in self._weights.items() if n[:4] == "net."}
        fits = any(name in own for name in self._weights)
        return self._weights if fits or not inside else inside


def _read(path: Path) -> dict[str, Tensor]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise RecipeError("checkpoint.path", f"{path} cannot be read: {error.strerror}") from error
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise RecipeError(
            "checkpoint.path",
            f"{path} cannot be read as weights, must be what torch.save makes of a state dict, or "
            f"a Lightning checkpoint: {str(error).splitlines()[0]}",
        ) from error
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if (
        not isinstance(content, dict)
        or not content
        or not all(isinstance(value, Tensor) for value in content.values())
    ):
        raise RecipeError("checkpoint.path", f"{path} holds no state dict")
    return content


def _problem(what: str, names: list[str]) -> list[str]:
    if not names:
        return []
    shown = ", ".join(names[:_SHOWN])
    rest = len(names) - _SHOWN
    return [f"{what} {shown}" + (f" and {rest} more" if rest > 0 else "")]
