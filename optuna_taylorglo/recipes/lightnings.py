"""Lightning is published as two packages, `lightning` and `pytorch_lightning`.

They hold the same classes twice. A module of one needs the Trainer of the same one, and a Trainer
takes data modules of its own Lightning only; callbacks and loggers of either work with both.
"""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import Any

_NAMES = ("pytorch_lightning", "lightning.pytorch")


def imported_lightnings() -> list[ModuleType]:
    """Each Lightning that is imported; a class of one that is not cannot be there."""
    return [sys.modules[name] for name in _NAMES if name in sys.modules]


def lightning_bases(name: str) -> tuple[type[Any], ...]:
    """A class of Lightning, such as "LightningModule", in each Lightning that is imported."""
    found = []
    for lightning in imported_lightnings():
        cls: Any = lightning
        for part in name.split("."):
            cls = getattr(cls, part)
        found.append(cls)
    return tuple(found)


def lightning_of(cls: type[Any]) -> ModuleType | None:
    """The Lightning that a LightningModule or data module is of; None for any other class."""
    for lightning in imported_lightnings():
        if issubclass(cls, lightning.LightningModule | lightning.LightningDataModule):
            return lightning
    return None


def data_module_for(cls: type[Any], lightning: ModuleType) -> type[Any]:
    """A class of data modules that a Trainer takes, whichever Lightning it was written with.

    Args:
        cls: A data module's class.
        lightning: The Lightning that the Trainer is of.

    Returns:
        The class itself, or one that inherits from it and from `lightning`'s data module.
    """
    own, base = lightning_of(cls), lightning.LightningDataModule
    if own is None or own is lightning:
        return cls
    # A Trainer calls the hooks that differ from those of its own base class. Those that `cls` did
    # not write must not, or two releases that differ in one would make it look overridden.
    inherited = {
        name: hook
        for place in (lightning.core.hooks.DataHooks, base)
        for name, hook in vars(place).items()
        if inspect.isfunction(hook)
        and not name.startswith("_")
        and getattr(cls, name, None) is getattr(own.LightningDataModule, name, None)
    }
    adapted = type(cls.__name__, (cls, base), inherited)
    adapted.__module__, adapted.__qualname__ = cls.__module__, cls.__qualname__
    return adapted
