"""A loss as a JSON file: what is in it, and what is wrong with one that cannot be read."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from os import PathLike
from pathlib import Path
from typing import Any

from optuna_taylorglo.errors import LossFileError

FORMAT = "optuna-taylorglo loss"
VERSION = 1


@dataclass(frozen=True)
class Origin:
    """Where a loss came from.

    Attributes:
        study: Name of the study that found it.
        trial: Number of the trial.
        recipe: The recipe of the study, as plain JSON values.
        validation_accuracy: What the trial reached.
    """

    study: str | None = None
    trial: int | None = None
    recipe: Mapping[str, Any] | None = None
    validation_accuracy: float | None = None


def write_loss(
    path: str | PathLike[str], settings: Mapping[str, Any], origin: Origin | None
) -> None:
    """Write a loss file, replacing an older one only when the new one is whole.

    Args:
        path: File to write.
        settings: The fields of the loss itself, as plain JSON values.
        origin: Where it came from.

    Raises:
        LossFileError: If a field has a value that could not be read back.
    """
    content = {"format": FORMAT, "version": VERSION, **settings}
    content["origin"] = None if origin is None else asdict(origin)
    _checked(content)
    # JSON keeps Python's shortest exact form of a float, so numbers come back bit for bit.
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    path = Path(path)
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=path.parent, prefix=path.name, delete=False
    ) as file:
        file.write(text)
    try:
        os.chmod(file.name, 0o644)
        os.replace(file.name, path)
    except OSError:
        os.unlink(file.name)
        raise


def read_loss(path: str | PathLike[str]) -> tuple[dict[str, Any], Origin | None]:
    """Read a loss file and check every field of it.

    Args:
        path: File to read.

    Returns:
        The settings of the loss, and where it came from.

    Raises:
        LossFileError: If it is not a loss file this version can read.
    """
    try:
        content = json.loads(Path(path).read_bytes(), parse_constant=_refuse_constant)
    except OSError as error:
        raise LossFileError(f"{path}: cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise LossFileError(f"{path}: not a whole JSON document: {error}.") from error
    try:
        return _checked(content)
    except LossFileError as error:
        raise LossFileError(f"{path}: {error}") from None


def _checked(content: Any) -> tuple[dict[str, Any], Origin | None]:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise LossFileError(f"format is not {FORMAT!r}: this is no loss file.")
    version: Any = content.get("version")
    if not _is_integer(version) or version < 1:
        raise LossFileError(f"version must be a positive integer, not {version!r}.")
    if version > VERSION:
        raise LossFileError(
            f"version is {version}; this release reads up to {VERSION}. Update optuna-taylorglo."
        )
    settings = {key: value for key, value in content.items() if key not in ("format", "version")}
    for name in _CHECKS:
        if name not in settings:
            raise LossFileError(f"{name} is missing.")
    for name, value in settings.items():
        if name not in _CHECKS:
            raise LossFileError(f"{name} is not a field of a loss file of version {version}.")
        allowed, check = _CHECKS[name]
        if not check(value):
            raise LossFileError(f"{name} must be {allowed}, not {_short(value)}.")
    origin = settings.pop("origin")
    return settings, None if origin is None else _origin(origin)


def _origin(content: dict[str, Any]) -> Origin:
    for name, (allowed, check) in _ORIGIN_CHECKS.items():
        value = content.get(name)
        if value is not None and not check(value):
            raise LossFileError(f"origin.{name} must be {allowed}, not {_short(value)}.")
    unknown = sorted(set(content) - {field.name for field in fields(Origin)})
    if unknown:
        raise LossFileError(f"origin.{unknown[0]} is not a field of a loss file.")
    return Origin(**content)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    # Whole numbers may be written without a point; one too large for a float is not finite.
    try:
        return not isinstance(value, bool) and math.isfinite(value)
    except (TypeError, OverflowError):
        return False


def _is_finite_list(value: Any) -> bool:
    return isinstance(value, list) and all(_is_finite(entry) for entry in value)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number that JSON has")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


_Check = tuple[str, Callable[[Any], bool]]

_CHECKS: dict[str, _Check] = {
    "theta": ("a list of finite numbers", _is_finite_list),
    "order": ("an integer of at least 1", lambda v: _is_integer(v) and v >= 1),
    "variables": (
        "a list of variable names",
        lambda v: isinstance(v, list) and all(isinstance(name, str) for name in v),
    ),
    "folded": ("true or false", lambda v: isinstance(v, bool)),
    "class_reduction": ("'mean' or 'sum'", lambda v: v in ("mean", "sum")),
    "reduction": ("'mean', 'sum' or 'none'", lambda v: v in ("mean", "sum", "none")),
    "weight": ("null or a list of finite numbers", lambda v: v is None or _is_finite_list(v)),
    "ignore_index": ("an integer", _is_integer),
    "label_smoothing": ("a number in [0, 1]", lambda v: _is_finite(v) and 0 <= v <= 1),
    "n_classes": (
        "null or an integer of at least 2",
        lambda v: v is None or (_is_integer(v) and v > 1),
    ),
    "origin": ("null or an object", lambda v: v is None or isinstance(v, dict)),
}

_ORIGIN_CHECKS: dict[str, _Check] = {
    "study": ("a text", lambda v: isinstance(v, str)),
    "trial": ("an integer of at least 0", lambda v: _is_integer(v) and v >= 0),
    "recipe": ("an object", lambda v: isinstance(v, dict)),
    "validation_accuracy": ("a finite number", _is_finite),
}
