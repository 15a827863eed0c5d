"""From a recipe's class path to a class, importing only from allowed packages."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Sequence
from operator import attrgetter
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from optuna_taylorglo.errors import RecipeError
from optuna_taylorglo.recipes.settings import DOTTED_PATH

if TYPE_CHECKING:
    import pytorch_lightning as pl
    from pytorch_lightning.loggers import Logger
    from torch import nn

BUNDLED_PACKAGE = "lightning_modules"


def model_class(class_path: str, allowed_packages: Sequence[str] = ()) -> type[nn.Module]:
    """The class of a recipe's `model.class_path`: a net, or a LightningModule, itself a net.

    Args:
        class_path: Dotted path of a class at the top level of a module.
        allowed_packages: Packages or modules besides the bundled ones; each allows its submodules.

    Raises:
        RecipeError: If the path is outside the allowed packages, cannot be imported, or names
            anything but a subclass of the right kind that is defined inside the allowed packages.
    """
    from torch import nn

    cls = _import_class("model.class_path", class_path, allowed_packages)
    return _subclass("model.class_path", cls, class_path, (nn.Module,))


def data_module_class(
    class_path: str, allowed_packages: Sequence[str] = ()
) -> type[pl.LightningDataModule]:
    """The LightningDataModule class, of either Lightning, of a recipe's `data.class_path`."""
    return _lightning_class("data.class_path", class_path, allowed_packages, "LightningDataModule")


def callback_class(class_path: str, allowed_packages: Sequence[str] = ()) -> type[pl.Callback]:
    """The class, of either Lightning, of one of a recipe's `trainer.callbacks`."""
    return _lightning_class("trainer.callbacks", class_path, allowed_packages, "Callback")


def logger_class(class_path: str, allowed_packages: Sequence[str] = ()) -> type[Logger]:
    """The class, of either Lightning, of one of a recipe's `trainer.loggers`."""
    return _lightning_class("trainer.loggers", class_path, allowed_packages, "loggers.Logger")


def _lightning_class(field: str, class_path: str, allowed: Sequence[str], base: str) -> type[Any]:
    import pytorch_lightning  # noqa: F401 (the one that is always installed)

    cls = _import_class(field, class_path, allowed)
    # Only now is the Lightning imported that it comes from.
    bases = tuple(attrgetter(base)(lightning) for lightning in imported_lightnings())
    return _subclass(field, cls, class_path, bases)


def _subclass(field: str, cls: type[Any], class_path: str, bases: tuple[type, ...]) -> type[Any]:
    if not issubclass(cls, bases):
        modules = " or ".join(base.__module__ for base in bases)
        kind = f"must be a subclass of {bases[0].__name__} ({modules})"
        raise RecipeError(field, f"{class_path!r} is not allowed, {kind}")
    return cls


def _import_class(field: str, class_path: str, allowed_packages: Sequence[str]) -> type[Any]:
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
    return cls


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
