"""A loss as a JSON file: its fields, the errors of one that cannot be read, and `load_loss`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, StrictBool, StrictInt, StrictStr

from optuna_taylorglo.errors import LossFileError
from optuna_taylorglo.losses.canonical import Base
from optuna_taylorglo.losses.tree import tree_from_prefix
from optuna_taylorglo.validation import (
    Number,
    PlainMapping,
    PlainModel,
    Problem,
    files_beside,
    nearest,
)

if TYPE_CHECKING:
    from optuna_taylorglo.losses.tree_loss import EvolvedLoss

FORMAT, VERSION = "optuna-taylorglo loss", 1


class _Part(PlainModel):
    @classmethod
    def refusal(cls, problems: Sequence[Problem]) -> LossFileError:
        return LossFileError("\n".join(f"{field}: {sentence}" for field, sentence in problems))


class Origin(_Part):
    """Where a loss came from."""

    study: StrictStr | None = None
    trial: Annotated[StrictInt, Field(ge=0)] | None = None
    recipe: PlainMapping | None = None
    validation_accuracy: Number | None = None  # the trial's fitness
    final_mean: StrictBool = False  # the mean of the final distribution, which no trial evaluated
    full_validation: Number | None = None  # mean metric of the full trainings that selected it


class _LossFields(_Part):
    class_reduction: Literal["mean", "sum"]
    reduction: Literal["mean", "sum", "none"]
    weight: list[Number] | None
    ignore_index: StrictInt
    label_smoothing: Annotated[Number, Field(ge=0, le=1)]
    n_classes: Annotated[StrictInt, Field(ge=2)] | None
    origin: Origin | None


class LossFile(_LossFields):
    """The file of a Taylor loss."""

    theta: list[Number]
    order: Annotated[StrictInt, Field(ge=1)]
    variables: list[StrictStr]
    folded: StrictBool
    base: Base = "none"
    log_scale: Number = 0.0
    smoothing: Number = 0.0


def _tree(operators: list[str]) -> list[str]:
    try:
        tree_from_prefix(operators)
    except ValueError as error:
        raise ValueError(f"must be a tree in prefix form: {error}") from None
    return operators


class TreeLossFile(_LossFields):
    """The file of a loss that is a tree."""

    tree: Annotated[list[StrictStr], AfterValidator(_tree)]
    coefficients: list[Number]


def load_loss(path: str | PathLike[str]) -> EvolvedLoss:
    """Read a loss that `TaylorLoss.save` or `TreeLoss.save` wrote.

    Args:
        path: The file.

    Returns:
        The loss as it was saved, `TaylorLoss` or `TreeLoss`, with its `n_classes` and `origin`.

    Raises:
        LossFileError: If the file is no loss file, is damaged or comes from a later version; the
            message names the file and the field.

    Examples:
        >>> from optuna_taylorglo import TaylorLoss, load_loss
        >>> TaylorLoss.from_cross_entropy().save("best_loss.json", n_classes=10)
        >>> criterion = load_loss("best_loss.json")  # was: nn.CrossEntropyLoss()
        >>> criterion.theta
        (0.0, 0.5, 0.0, 0.0, 0.0, 2.0, -4.0, 0.0)
        >>> criterion.n_classes
        10
    """
    import torch

    from optuna_taylorglo.losses.taylor import TaylorLoss
    from optuna_taylorglo.losses.tree_loss import TreeLoss

    try:
        content = json.loads(Path(path).read_bytes(), parse_constant=_refuse_constant)
    except OSError as error:
        hint = nearest(path, files_beside(path, ".json"))
        reason = f"{error.strerror}; {hint}" if hint else f"{error.strerror}."
        raise LossFileError(f"{path}: cannot be read: {reason}") from error
    except (ValueError, RecursionError) as error:
        raise LossFileError(f"{path}: not a whole JSON document: {error}.") from error
    if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
        raise LossFileError(f"{path}: format is not {FORMAT!r}: this is no loss file.")
    if (version := content.pop("version", None)) != VERSION:
        raise LossFileError(
            f"{path}: version is {version!r}; this release of optuna-taylorglo reads {VERSION}."
        )
    try:
        fields = (TreeLossFile if "tree" in content else LossFile).from_plain(content)
        settings = fields.model_dump(exclude={"weight", "n_classes", "origin"})
        if fields.weight is not None:
            exact = torch.tensor(fields.weight, dtype=torch.float64)
            single = exact.float()  # the usual type, unless it rounds
            settings["weight"] = single if torch.equal(single.double(), exact) else exact
        loss: EvolvedLoss = (TreeLoss if "tree" in settings else TaylorLoss)(**settings)
    except ValueError as error:
        lines = (f"{path}: {line}" for line in str(error).splitlines())
        raise LossFileError("\n".join(lines)) from error
    loss.n_classes, loss.origin = fields.n_classes, fields.origin
    return loss


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number that JSON has")
