"""A loss as a JSON file: its fields, the errors of one that cannot be read, and `load_loss`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import (
    AfterValidator,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationInfo,
    field_validator,
)

from optuna_taylorglo.errors import LossFileError
from optuna_taylorglo.losses.canonical import Base
from optuna_taylorglo.losses.expansion import FloatArray
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
    from torch import Tensor

    from optuna_taylorglo.losses.tree_loss import EvolvedLoss

FORMAT, VERSION = "optuna-taylorglo loss", 1

LIBRARY = Path(__file__).parent / "library"


def library() -> dict[str, Path]:
    """The losses that come with the package: names and files."""
    return {path.stem: path for path in sorted(LIBRARY.glob("*.json"))}


class _Part(PlainModel):
    @classmethod
    def refusal(cls, problems: Sequence[Problem]) -> LossFileError:
        return LossFileError("\n".join(f"{field}: {sentence}" for field, sentence in problems))


class Outcome(_Part):
    """Test results of a loss of the library on a task that it was not found on."""

    task: StrictStr
    loss: Number  # with its scale tuned on validation
    standard: Number  # the best of the standard losses, each tuned with as many trainings
    standard_loss: StrictStr
    cross_entropy: Number  # with its learning rate tuned with as many trainings
    low: Number  # 95 % interval of the difference of the first two, paired by seed
    high: Number


class Library(_Part):
    """What a loss of the library is for, and what it was found with."""

    use: StrictStr
    found_on: list[StrictStr]
    command: StrictStr
    outcomes: list[Outcome]


class Origin(_Part):
    """Where a loss came from."""

    study: StrictStr | None = None
    trial: Annotated[StrictInt, Field(ge=0)] | None = None
    recipe: PlainMapping | None = None
    validation_accuracy: Number | None = None  # the trial's fitness
    final_mean: StrictBool = False  # the mean of the final distribution, which no trial evaluated
    full_validation: Number | None = None  # mean metric of the full trainings that selected it
    library: Library | None = None  # of a loss that comes with the package


class _LossFields(_Part):
    class_reduction: Literal["mean", "sum"]
    reduction: Literal["mean", "sum", "none"]
    n_classes: Annotated[StrictInt, Field(ge=2)] | None
    weight: list[Number] | None
    ignore_index: StrictInt
    label_smoothing: Annotated[Number, Field(ge=0, le=1)]
    origin: Origin | None
    lr_factor: Annotated[Number, Field(gt=0)] | None = None

    @field_validator("weight")
    @classmethod
    def _check_weight(cls, weight: list[float] | None, info: ValidationInfo) -> list[float] | None:
        n_classes = info.data.get("n_classes")
        if weight is not None and n_classes is not None and len(weight) != n_classes:
            raise ValueError(f"must have {n_classes} values, one for each class")
        return weight


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


def load_loss(
    path: str | PathLike[str],
    *,
    weight: Sequence[float] | FloatArray | Tensor | None = None,
    reduction: str | None = None,
    ignore_index: int | None = None,
    n_classes: int | None = None,
) -> EvolvedLoss:
    """Read a loss that `TaylorLoss.save` or `TreeLoss.save` wrote.

    Args:
        path: The file, or the name of a loss of the library, which `taylorglo losses` lists.
        weight: Weight of each class, shape (C,), in place of the file's.
        reduction: "mean", "sum" or "none", in place of the file's.
        ignore_index: Target index that does not count, in place of the file's.
        n_classes: Number of classes, in place of the one that the loss was made for.

    Returns:
        The loss, `TaylorLoss` or `TreeLoss`, with its `n_classes`, `origin` and `lr_factor`.

    Raises:
        LossFileError: If the file is no loss file, is damaged or comes from a later version, or an
            argument is wrong; the message names the file and the field, or the argument.

    Examples:
        >>> from optuna_taylorglo import TaylorLoss, load_loss
        >>> TaylorLoss.from_cross_entropy().save("best_loss.json", n_classes=10)
        >>> criterion = load_loss("best_loss.json")  # was: nn.CrossEntropyLoss()
        >>> criterion.theta
        (0.0, 0.5, 0.0, 0.0, 0.0, 2.0, -4.0, 0.0)
        >>> criterion.n_classes
        10
        >>> load_loss("best_loss.json", n_classes=3, weight=[1.0, 1.0, 5.0]).weight
        tensor([1., 1., 5.])
    """
    import torch

    from optuna_taylorglo.losses.taylor import TaylorLoss
    from optuna_taylorglo.losses.tree_loss import TreeLoss

    file, named = Path(path), library()
    if not file.exists():
        file = named.get(str(path), file)
    try:
        content = json.loads(file.read_bytes(), parse_constant=_refuse_constant)
    except OSError as error:
        hint = nearest(path, [*files_beside(path, ".json"), *named])
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
    given = {
        "weight": weight.tolist() if isinstance(weight, torch.Tensor | np.ndarray) else weight,
        "reduction": reduction,
        "ignore_index": ignore_index,
        "n_classes": n_classes,
    }
    overrides = {name: value for name, value in given.items() if value is not None}
    try:
        fields = (TreeLossFile if "tree" in content else LossFile).from_plain(content | overrides)
        settings = fields.model_dump(exclude={"weight", "n_classes", "origin", "lr_factor"})
        if fields.weight is not None:
            exact = torch.tensor(fields.weight, dtype=torch.float64)
            single = exact.float()  # the usual type, unless it rounds
            settings["weight"] = single if torch.equal(single.double(), exact) else exact
        loss: EvolvedLoss = (TreeLoss if "tree" in settings else TaylorLoss)(**settings)
    except ValueError as error:
        lines = (f"{path}: {line}" for line in str(error).splitlines())
        raise LossFileError("\n".join(lines)) from error
    loss.n_classes, loss.origin = fields.n_classes, fields.origin
    loss.lr_factor = fields.lr_factor
    return loss


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number that JSON has")
