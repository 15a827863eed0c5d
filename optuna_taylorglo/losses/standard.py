"""Losses that one would take instead of an evolved one, called as `nn.CrossEntropyLoss` is.

Each is given by what a class would cost as the target; a soft target costs the mean under its
probabilities, so weights and label smoothing mean what they mean in cross-entropy.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from optuna_taylorglo.losses.conventions import ClassificationLoss, over_classes, prepare


class StandardLoss(ClassificationLoss, ABC):
    """Base of the standard losses; settings are those of `nn.CrossEntropyLoss`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"class_reduction": "sum", **settings})

    @abstractmethod
    def cost_of_classes(self, log_y: Tensor) -> Tensor:
        """What each class would cost as the target, given `outputs`, of the same shape."""

    def outputs(self, logits: Tensor) -> Tensor:
        """What costs are computed from: logarithms of the predicted probabilities."""
        return torch.log_softmax(logits, dim=1)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss of a batch; shapes as in `taylor_loss`."""
        conventions = self.conventions
        batch = prepare(logits, target, conventions)
        costs = self.cost_of_classes(self.outputs(batch.logits))
        if conventions.weight is not None:
            costs = costs * over_classes(conventions.weight, costs)
        if batch.is_soft:
            losses = (batch.target * costs).sum(1, keepdim=True)
        else:
            losses = costs.gather(1, batch.target)
            if smoothing := conventions.label_smoothing:
                losses = (1 - smoothing) * losses + smoothing * costs.mean(1, keepdim=True)
        return batch.reduce(losses, conventions.reduction)


class LabelSmoothingLoss(StandardLoss):
    """``-(1 - r) log y - r Σ_j log y_j / n``, cross-entropy with label smoothing.

    As `nn.CrossEntropyLoss`, which ignores negative rates: they help against wrong labels (Wei et
    al. 2022, arXiv:2106.04149, eq. 1).

    Args:
        label_smoothing: r, at most 1; below 0 the loss has no lower bound.
        settings: As `StandardLoss`.

    Examples:
        >>> import torch
        >>> from optuna_taylorglo import LabelSmoothingLoss
        >>> LabelSmoothingLoss(-0.5)(torch.zeros(1, 4), torch.tensor([0]))
        tensor(1.3863)
    """

    def __init__(self, label_smoothing: float = 0.1, **settings: Any) -> None:
        super().__init__(**settings)
        if not -math.inf < label_smoothing <= 1:
            raise ValueError(f"label_smoothing must be at most 1, not {label_smoothing!r}.")
        self.label_smoothing = label_smoothing

    def cost_of_classes(self, log_y: Tensor) -> Tensor:
        return -log_y


class FocalLoss(StandardLoss):
    """``-(1 - y)^γ log y``, less of what is learnt already (Lin et al. 2017, arXiv:1708.02002).

    Args:
        gamma: γ, at least 0; with 0 it is cross-entropy.
        settings: As `StandardLoss`.

    Examples:
        >>> import torch
        >>> from optuna_taylorglo import FocalLoss
        >>> FocalLoss(gamma=2.0)(torch.zeros(1, 4), torch.tensor([0]))
        tensor(0.7798)
    """

    def __init__(self, gamma: float = 2.0, **settings: Any) -> None:
        super().__init__(**settings)
        self.gamma = at_least_zero("gamma", gamma)

    def cost_of_classes(self, log_y: Tensor) -> Tensor:
        # Above 0: for γ < 1 the power has no derivative there.
        others = one_minus_y(log_y).clamp(min=torch.finfo(log_y.dtype).tiny)
        return -(others**self.gamma) * log_y


class PolyLoss(StandardLoss):
    """PolyLoss-1, ``-log y + ε (1 - y)`` (Leng et al. 2022, arXiv:2204.12511).

    Args:
        epsilon: ε; with 0 it is cross-entropy.
        settings: As `StandardLoss`.

    Examples:
        >>> import torch
        >>> from optuna_taylorglo import PolyLoss
        >>> PolyLoss(epsilon=2.0)(torch.zeros(1, 4), torch.tensor([0]))
        tensor(2.8863)
    """

    def __init__(self, epsilon: float = 1.0, **settings: Any) -> None:
        super().__init__(**settings)
        self.epsilon = epsilon

    def cost_of_classes(self, log_y: Tensor) -> Tensor:
        return self.epsilon * one_minus_y(log_y) - log_y


def one_minus_y(log_y: Tensor) -> Tensor:
    """1 - y, to full precision also where y is nearly 1."""
    return -torch.expm1(log_y)


def at_least_zero(name: str, value: float) -> float:
    """The value, or a ValueError that names the argument."""
    if value < 0:
        raise ValueError(f"{name} must be at least 0, not {value!r}.")
    return value
