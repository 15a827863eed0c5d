"""From a recipe's class path to a class, importing only what the user allowed."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from optuna_taylorglo.errors import RecipeError

if TYPE_CHECKING:
    import pytorch_lightning as pl
    from pytorch_lightning.loggers import Logger
    from torch import nn

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


BUNDLED_PACKAGE = "lightning_modules"

_ClassT = TypeVar("_ClassT")


def data_module_class(
    class_path: str, allowed_packages: Sequence[str] = ()
) -> type[pl.LightningDataModule]:
    """The LightningDataModule class, of either Lightning, of a recipe's `data.class_path`."""
    return _lightning_class(class_path, "LightningDataModule", "data.class_path", allowed_packages)


def callback_class(class_path: str, allowed_packages: Sequence[str] = ()) -> type[pl.Callback]:
    """The class, of either Lightning, of one of a recipe's `trainer.callbacks`."""
    return _lightning_class(class_path, "Callback", "trainer.callbacks", allowed_packages)


def logger_class(class_path: str, allowed_packages: Sequence[str] = ()) -> type[Logger]:
    """The class, of either Lightning, of one of a recipe's `trainer.loggers`."""
    return _lightning_class(class_path, "loggers.Logger", "trainer.loggers", allowed_packages)


def model_class(class_path: str, allowed_packages: Sequence[str] = ()) -> type[nn.Module]:
    """The class of a recipe's `model.class_path`: a net, or a LightningModule, itself a net."""
    from torch import nn

    try:
        return resolve_class(class_path, nn.Module, allowed_packages)
    except RecipeError as error:
        raise error.within("model.class_path") from error.__cause__


def resolve_class(
    class_path: str, base_class: type[_ClassT], allowed_packages: Sequence[str] = ()
) -> type[_ClassT]:
    """Imports the class that a recipe names, if that is allowed.

    Args:
        class_path: Dotted path of a class at the top level of a module.
        base_class: What it must be a subclass of.
        allowed_packages: Packages or modules besides the bundled ones; each allows its submodules.

    Raises:
        RecipeError: If the path lies outside the allowed packages, cannot be imported, or names
            anything but a subclass of `base_class` that is defined inside the allowed packages.
    """
    cls = _import_class(class_path, allowed_packages)
    _require_subclass(cls, class_path, (base_class,))
    return cls


def _lightning_class(
    class_path: str, base_name: str, field: str, allowed_packages: Sequence[str]
) -> type[Any]:
    import pytorch_lightning  # noqa: F401 (the one that is always there)

    try:
        cls = _import_class(class_path, allowed_packages)
        # Only now is the Lightning imported that it comes from.
        _require_subclass(cls, class_path, lightning_bases(base_name))
    except RecipeError as error:
        raise error.within(field) from error.__cause__
    return cls


def _require_subclass(cls: type[Any], class_path: str, bases: tuple[type[Any], ...]) -> None:
    if not issubclass(cls, bases):
        places = " or ".join(base.__module__ for base in bases)
        raise RecipeError(
            "",
            f"{class_path!r} is not allowed, must be a subclass of {bases[0].__name__} ({places})",
        )


def _import_class(class_path: str, allowed_packages: Sequence[str]) -> type[Any]:
    allowed = (BUNDLED_PACKAGE, *allowed_packages)
    for package in allowed:
        if not _is_plain_path(package):
            raise ValueError(
                f"allowed package {package!r} is no package name, must be such as my_package"
            )
    module_name, _, class_name = class_path.rpartition(".")
    if not module_name or not _is_plain_path(class_path):
        raise RecipeError(
            "",
            f"{class_path!r} is not allowed, must be a dotted path to a class, such as "
            "my_package.module.ClassName",
        )
    if not _inside(module_name, allowed):
        raise RecipeError("", _refusal(class_path, "lies outside", module_name, allowed))
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise RecipeError("", f"{class_path!r} cannot be imported: {error}") from error
    cls = vars(module).get(class_name)
    if not isinstance(cls, type):
        kind = "has no such name" if cls is None else f"holds {type(cls).__name__}, not a class"
        raise RecipeError("", f"{class_path!r} is not a class: {module_name} {kind}")
    if not _inside(cls.__module__, allowed):
        problem = f"is defined in {cls.__module__}, outside"
        raise RecipeError("", _refusal(class_path, problem, cls.__module__, allowed))
    return cls


def _is_plain_path(path: str) -> bool:
    """Whether every part is an ordinary name; keeps out __main__, whose import runs a program."""
    return all(part.isidentifier() and not part.startswith("__") for part in path.split("."))


def _inside(module_name: str, allowed: Sequence[str]) -> bool:
    return any(module_name == name or module_name.startswith(f"{name}.") for name in allowed)


def _refusal(class_path: str, problem: str, module_name: str, allowed: Sequence[str]) -> str:
    top = module_name.partition(".")[0]
    return (
        f"{class_path!r} {problem} the allowed packages ({', '.join(allowed)}); if you trust it, "
        f"start the worker with --allow {top}"
    )
