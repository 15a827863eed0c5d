"""Loss files as the losses that they hold."""

from __future__ import annotations

from os import PathLike

import torch
from torch import Tensor

from optuna_taylorglo.errors import LossFileError
from optuna_taylorglo.losses.files import TreeLossFile, read_loss
from optuna_taylorglo.losses.taylor_loss import TaylorLoss
from optuna_taylorglo.losses.tree_loss import TreeLoss

EvolvedLoss = TaylorLoss | TreeLoss
"""What searches find and files hold."""


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
        (0.0, 0.5, 0.0, -0.0, 0.0, 2.0, -4.0, 0.0)
        >>> criterion.n_classes
        10
    """
    content = read_loss(path)
    settings = content.model_dump(exclude={"weight", "n_classes", "origin"})
    weight = None if content.weight is None else _weight(content.weight)
    kind = TreeLoss if isinstance(content, TreeLossFile) else TaylorLoss
    try:
        loss: EvolvedLoss = kind(**settings, weight=weight)
    except ValueError as error:
        raise LossFileError(f"{path}: {error}") from error
    loss.n_classes, loss.origin = content.n_classes, content.origin
    return loss


def _weight(values: list[float]) -> Tensor:
    """The values as float32, or as float64 where float32 would round them."""
    exact = torch.tensor(values, dtype=torch.float64)
    single = exact.float()
    return single if torch.equal(single.double(), exact) else exact
