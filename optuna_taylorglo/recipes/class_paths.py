"""From a recipe's class path to a class, importing only from allowed packages."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from types import ModuleType
from typing import Any, NoReturn

from optuna_taylorglo.errors import RecipeError
from optuna_taylorglo.recipes.settings import DOTTED_PATH

BUNDLED_PACKAGE = "lightning_modules"

_LIGHTNING_BASES = {
    "data.class_path": "LightningDataModule",
    "trainer.callbacks": "Callback",
    "trainer.loggers": "loggers.Logger",
}


def _import_class(field: str, class_path: str, allowed_packages: Sequence[str] = ()) -> type[Any]:
    """The class that a field of a recipe names.

    Args:
        field: Dotted path of the field, which decides what the class must be a subclass of.
        class_path: Dotted path of a class at the top level of a module.
        allowed_packages: Packages or modules besides the bundled ones; each allows its submodules.

    Raises:
        RecipeError: If the path is outside the allowed packages, cannot be imported, or names
            anything but a subclass of the right kind that is defined inside the allowed packages.
    """
    allowed = (BUNDLED_PACKAGE, *allowed_packages)
    if wrong := [package for package in allowed if not _is_plain_path(package)]:
        raise ValueError(f"allowed package {wrong[0]!r} must be a name such as my_package")

    def refuse(problem: str) -> NoReturn:
        raise RecipeError(field, f"{class_path!r} {problem}")

    def require_inside(module: str, problem: str) -> None:
        if not any(module == name or module.startswith(f"{name}.") for name in allowed):
            refuse(
                f"{problem} the allowed packages ({', '.join(allowed)}); if you trust it, start "
                f"the worker with --allow {module.partition('.')[0]}"
            )

    module_name, _, class_name = class_path.rpartition(".")
    if not module_name or not _is_plain_path(class_path):
        refuse(f"is not allowed, {DOTTED_PATH}")
    require_inside(module_name, "lies outside")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        refuse(f"cannot be imported: {error}")
    cls = vars(module).get(class_name)
    if not isinstance(cls, type):
        kind = "has no such name" if cls is None else f"holds {type(cls).__name__}, not a class"
        refuse(f"is not a class: {module_name} {kind}")
    require_inside(cls.__module__, f"is defined in {cls.__module__}, outside")
    bases = _bases(field)
    if not issubclass(cls, bases):
        modules = " or ".join(base.__module__ for base in bases)
        refuse(f"is not allowed, must be a subclass of {bases[0].__name__} ({modules})")
    return cls


model_class = partial(_import_class, "model.class_path")
data_module_class = partial(_import_class, "data.class_path")
callback_class = partial(_import_class, "trainer.callbacks")
logger_class = partial(_import_class, "trainer.loggers")


def _bases(field: str) -> tuple[type, ...]:
    """Of a model nn.Module, also of a LightningModule; else a class of each Lightning in use.

    To be called after the import of the class, which imports the Lightning that it comes from.
    """
    import pytorch_lightning  # noqa: F401 (the one that is always installed)
    from torch import nn

    if field not in _LIGHTNING_BASES:
        return (nn.Module,)
    return tuple(map(attrgetter(_LIGHTNING_BASES[field]), imported_lightnings()))


def _is_plain_path(path: str) -> bool:
    """Whether every part is an ordinary name; keeps out __main__, whose import runs a program."""
    return all(part.isidentifier() and not part.startswith("__") for part in path.split("."))


def imported_lightnings() -> list[ModuleType]:
    """Each Lightning that is imported: `pytorch_lightning`, `lightning.pytorch` or both."""
    names = ("pytorch_lightning", "lightning.pytorch")
    return [sys.modules[name] for name in names if name in sys.modules]


def lightning_of(cls: type[Any]) -> ModuleType | None:
    """The Lightning of a LightningModule or data module; None for any other class."""
    for lightning in imported_lightnings():
        if issubclass(cls, lightning.LightningModule | lightning.LightningDataModule):
            return lightning
    return None


def data_module_for(cls: type[Any], lightning: ModuleType) -> type[Any]:
    """A data module class for a Trainer of `lightning`, whichever Lightning `cls` is of.

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
