"""Loss files as the losses that they hold, and how different two losses are."""

from __future__ import annotations

import copy
from functools import lru_cache
from os import PathLike

import torch
from torch import Tensor

from optuna_taylorglo.errors import LossFileError
from optuna_taylorglo.losses.files import TreeLossFile, read_loss
from optuna_taylorglo.losses.taylor import TaylorLoss
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


CONCENTRATIONS = (10.0, 1.0, 0.1)
"""Of the Dirichlet distributions that predictions are drawn from: near uniform to nearly sure."""

PREDICTIONS = 128
"""Predictions drawn from each."""

PROGRESSES = (0.0, 0.5, 1.0)
"""Where a loss in t is looked at."""


def logit_gradients(loss: EvolvedLoss, n_classes: int) -> Tensor:
    """Gradients of a loss with respect to logits on the fixed predictions, as one vector.

    Args:
        loss: The loss; it stays as it is.
        n_classes: Number of classes C.

    Returns:
        float64, shape (N·C,), or three times that for a loss in t.
    """
    loss = copy.deepcopy(loss).double()
    logits, target = _predictions(n_classes)
    gradients = []
    in_time = isinstance(loss, TaylorLoss) and "t" in loss.form.variables
    for progress in PROGRESSES if in_time else PROGRESSES[:1]:
        if isinstance(loss, TaylorLoss):
            loss.progress = progress  # type: ignore[assignment]
        inputs = logits.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(inputs, target).sum(), inputs)
        gradients.append(gradient.flatten())
    return torch.cat(gradients)


def relative_distance(a: Tensor, b: Tensor) -> float:
    """‖a − b‖ over the greater of the two norms: 0 for equal vectors, 2 at most."""
    greatest = max(float(a.norm()), float(b.norm()))
    return float((a - b).norm()) / greatest if greatest > 0 else 0.0


@lru_cache(maxsize=8)
def _predictions(n_classes: int) -> tuple[Tensor, Tensor]:
    """Logits of shape (N, C) and targets of shape (N,), always the same."""
    generator = torch.Generator().manual_seed(0)
    parts = []
    for concentration in CONCENTRATIONS:
        shape = torch.full((PREDICTIONS, n_classes), concentration, dtype=torch.float64)
        # A Dirichlet draw is gamma draws over their sum, which softmax divides by; the floor keeps
        # the logarithm of a vanishing one finite.
        parts.append(torch._standard_gamma(shape, generator=generator).clamp_min(1e-12).log())
    logits = torch.cat(parts)
    return logits, torch.randint(n_classes, (len(logits),), generator=generator)
