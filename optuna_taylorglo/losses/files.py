"""A loss as a JSON file: what is in it, and what is wrong with one that cannot be read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StrictBool, StrictInt, StrictStr

from optuna_taylorglo.errors import LossFileError
from optuna_taylorglo.files import write_atomically
from optuna_taylorglo.losses.anchored import Base
from optuna_taylorglo.losses.tree import tree_from_prefix
from optuna_taylorglo.validation import Allowed, Number, PlainMapping, PlainModel, Problem

FORMAT = "optuna-taylorglo loss"
VERSION = 3
"""Version 3 is a tree. Versions 1 and 2 are Taylor losses, without and with a base."""


class _Part(PlainModel):
    """A part of a loss file."""

    @classmethod
    def refusal(cls, problems: Sequence[Problem]) -> LossFileError:
        return LossFileError("\n".join(f"{field}: {sentence}" for field, sentence in problems))


class Origin(_Part):
    """Where a loss came from."""

    study: StrictStr | None = None
    """Name of the study that found it."""

    trial: Annotated[StrictInt, Field(ge=0)] | None = None
    """Number of the trial."""

    recipe: PlainMapping | None = None
    """The recipe of the study, as plain JSON values."""

    validation_accuracy: Number | None = None
    """What the trial reached."""

    final_mean: StrictBool = False
    """Whether it is the mean of the search's final distribution, which no trial evaluated."""

    full_validation: Number | None = None
    """Mean metric of the full trainings by which it was chosen."""


class LossFile(_Part):
    """What a file says of a Taylor loss, besides its format and version.

    No field may be left out but those of the anchored family, which a loss without a base has not.
    """

    theta: list[Number]
    order: Annotated[StrictInt, Field(ge=1)]
    variables: list[StrictStr]
    folded: StrictBool
    class_reduction: Literal["mean", "sum"]
    reduction: Literal["mean", "sum", "none"]
    weight: list[Number] | None
    ignore_index: StrictInt
    label_smoothing: Annotated[Number, Field(ge=0, le=1)]
    base: Base = "none"
    log_scale: Number = 0.0
    smoothing: Number = 0.0
    n_classes: Annotated[StrictInt, Field(ge=2)] | None
    """Number of classes that it was made for, if that is known."""

    origin: Origin | None
    """Where it came from, if that is known."""


def _tree(operators: list[str]) -> list[str]:
    try:
        tree_from_prefix(operators)
    except ValueError as error:
        raise ValueError(str(error).rstrip(".")) from None  # it will stand in brackets
    return operators


class TreeLossFile(_Part):
    """What a file says of a loss that is a tree; no field may be left out."""

    tree: Annotated[list[StrictStr], AfterValidator(_tree), Allowed("a tree in prefix form")]
    """The operators, each before its operands."""

    coefficients: list[Number]
    """What the nodes are multiplied by, in the same order."""

    class_reduction: Literal["mean", "sum"]
    reduction: Literal["mean", "sum", "none"]
    weight: list[Number] | None
    ignore_index: StrictInt
    label_smoothing: Annotated[Number, Field(ge=0, le=1)]
    n_classes: Annotated[StrictInt, Field(ge=2)] | None
    """Number of classes that it was made for, if that is known."""

    origin: Origin | None
    """Where it came from, if that is known."""


def write_loss(path: str | PathLike[str], loss: LossFile | TreeLossFile) -> None:
    """Write a loss file, replacing an older one only when the new one is whole.

    Args:
        path: File to write.
        loss: What to write.
    """
    fields = loss.model_dump()
    version = 3 if isinstance(loss, TreeLossFile) else 2
    if isinstance(loss, LossFile) and loss.base == "none":
        version = 1
        for name in ("base", "log_scale", "smoothing"):
            del fields[name]
    content = {"format": FORMAT, "version": version, **fields}
    # JSON keeps Python's shortest exact form of a float, so numbers come back bit for bit.
    write_atomically(Path(path), json.dumps(content, indent=2, allow_nan=False) + "\n")


def read_loss(path: str | PathLike[str]) -> LossFile | TreeLossFile:
    """Read a loss file and check every field of it.

    Args:
        path: File to read.

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
        version, fields = _version_and_fields(content)
        return (TreeLossFile if version == 3 else LossFile).from_plain(fields)
    except LossFileError as error:
        lines = (f"{path}: {line}" for line in str(error).splitlines())
        raise LossFileError("\n".join(lines)) from None


def _version_and_fields(content: Any) -> tuple[int, dict[str, Any]]:
    """The version, and the fields whose names and meanings depend on it."""
    if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
        raise LossFileError(f"format is not {FORMAT!r}: this is no loss file.")
    version = content.pop("version", None)
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise LossFileError(f"version must be a positive integer, not {version!r}.")
    if version > VERSION:
        raise LossFileError(
            f"version is {version}; this release reads up to {VERSION}. Update optuna-taylorglo."
        )
    return version, content


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number that JSON has")
