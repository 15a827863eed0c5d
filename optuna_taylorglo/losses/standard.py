"""Losses that one would take instead of an evolved one, called as `nn.CrossEntropyLoss` is.

Each is given by what a class would cost as the target; a soft target costs the mean under its
probabilities, so weights and label smoothing mean what they mean in cross-entropy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from optuna_taylorglo.losses.conventions import ClassificationLoss, over_classes, prepare

LOG_OF_ZERO = -4.0  # A, reverse cross-entropy's logarithm of a target probability of 0


class StandardLoss(ClassificationLoss, ABC):
    """Base of the losses of this module; settings are those of `nn.CrossEntropyLoss`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"class_reduction": "sum", **settings})

    @abstractmethod
    def cost_of_classes(self, log_y: Tensor) -> Tensor:
        """What each class would cost as the target, for the logarithms of predictions."""

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss of a batch; shapes as in `taylor_loss`."""
        conventions = self.conventions
        batch = prepare(logits, target, conventions)
        costs = self.cost_of_classes(torch.log_softmax(batch.logits, dim=1))
        if conventions.weight is not None:
            costs = costs * over_classes(conventions.weight, costs)
        if batch.is_soft:
            losses = (batch.target * costs).sum(1, keepdim=True)
        else:
            losses = costs.gather(1, batch.target)
            if (smoothing := conventions.label_smoothing) > 0:
                losses = (1 - smoothing) * losses + smoothing * costs.mean(1, keepdim=True)
        return batch.reduce(losses, conventions.reduction)


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
        self.gamma = _at_least_zero("gamma", gamma)

    def cost_of_classes(self, log_y: Tensor) -> Tensor:
        # Above 0: for γ < 1 the power has no derivative there.
        others = _one_minus_y(log_y).clamp(min=torch.finfo(log_y.dtype).tiny)
        return -(others**self.gamma) * log_y


class GeneralizedCrossEntropyLoss(StandardLoss):
    """``(1 - y^q) / q``, robust to wrong labels (Zhang & Sabuncu 2018, arXiv:1805.07836).

    Args:
        q: In (0, 1]; toward 0 it is cross-entropy, with 1 the mean absolute error 1 - y.
        settings: As `StandardLoss`.

    Examples:
        >>> import torch
        >>> from optuna_taylorglo import GeneralizedCrossEntropyLoss
        >>> GeneralizedCrossEntropyLoss(q=1.0)(torch.zeros(1, 4), torch.tensor([0]))
        tensor(0.7500)
    """

    def __init__(self, q: float = 0.7, **settings: Any) -> None:
        super().__init__(**settings)
        if not 0 < q <= 1:
            raise ValueError(f"q must be in (0, 1], not {q!r}.")
        self.q = q

    def cost_of_classes(self, log_y: Tensor) -> Tensor:
        return _one_minus_y(self.q * log_y) / self.q


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
        return self.epsilon * _one_minus_y(log_y) - log_y


class SymmetricCrossEntropyLoss(StandardLoss):
    """``-α log y - β A (1 - y)``: cross-entropy plus its reverse (Wang et al. 2019).

    The reverse swaps label and prediction, with A = -4 in the place of log 0 (arXiv:1908.06112).

    Args:
        alpha: α, weight of cross-entropy.
        beta: β, weight of the reverse.
        settings: As `StandardLoss`.

    Examples:
        >>> import torch
        >>> from optuna_taylorglo import SymmetricCrossEntropyLoss
        >>> SymmetricCrossEntropyLoss(alpha=0.0)(torch.zeros(1, 4), torch.tensor([0]))
        tensor(3.)
    """

    def __init__(self, alpha: float = 0.1, beta: float = 1.0, **settings: Any) -> None:
        super().__init__(**settings)
        self.alpha = _at_least_zero("alpha", alpha)
        self.beta = _at_least_zero("beta", beta)

    def cost_of_classes(self, log_y: Tensor) -> Tensor:
        return self.beta * _reverse_cross_entropy(log_y) - self.alpha * log_y


class TaylorCrossEntropyLoss(StandardLoss):
    """``Σ_{i=1..k} (1 - y)^i / i``, cross-entropy's expansion around y = 1 (Feng et al. 2020).

    "Can Cross Entropy Loss Be Robust to Label Noise?", IJCAI 2020.

    Args:
        order: k, at least 1; with 1 it is the mean absolute error 1 - y, without end cross-entropy.
        settings: As `StandardLoss`.

    Examples:
        >>> import torch
        >>> from optuna_taylorglo import TaylorCrossEntropyLoss
        >>> TaylorCrossEntropyLoss(order=2)(torch.zeros(1, 4), torch.tensor([0]))
        tensor(1.0312)
    """

    def __init__(self, order: int = 2, **settings: Any) -> None:
        super().__init__(**settings)
        if order < 1:
            raise ValueError(f"order must be at least 1, not {order!r}.")
        self.order = order

    def cost_of_classes(self, log_y: Tensor) -> Tensor:
        others = _one_minus_y(log_y)
        total = others / self.order
        for i in range(self.order - 1, 0, -1):
            total = others * (total + 1 / i)
        return total


class NormalizedReverseCrossEntropyLoss(StandardLoss):
    """``α log y / Σ_j log y_j - β A (1 - y)``, an active and a passive loss (Ma et al. 2020).

    Normalized cross-entropy, which sums to 1 over all labels that there could be, plus reverse
    cross-entropy with A = -4 (arXiv:2006.13554).

    Args:
        alpha: α, weight of normalized cross-entropy.
        beta: β, weight of the reverse.
        settings: As `StandardLoss`.

    Examples:
        >>> import torch
        >>> from optuna_taylorglo import NormalizedReverseCrossEntropyLoss
        >>> NormalizedReverseCrossEntropyLoss(beta=0.0)(torch.zeros(1, 4), torch.tensor([0]))
        tensor(0.2500)
    """

    def __init__(self, alpha: float = 1.0, beta: float = 1.0, **settings: Any) -> None:
        super().__init__(**settings)
        self.alpha = _at_least_zero("alpha", alpha)
        self.beta = _at_least_zero("beta", beta)

    def cost_of_classes(self, log_y: Tensor) -> Tensor:
        # The sum is never above -n log n, which it has at the uniform prediction.
        normalized = log_y / log_y.sum(1, keepdim=True)
        return self.alpha * normalized + self.beta * _reverse_cross_entropy(log_y)


def _one_minus_y(log_y: Tensor) -> Tensor:
    """1 - y, to full precision also where y is nearly 1."""
    return -torch.expm1(log_y)


def _reverse_cross_entropy(log_y: Tensor) -> Tensor:
    return -LOG_OF_ZERO * _one_minus_y(log_y)


def _at_least_zero(name: str, value: float) -> float:
    if value < 0:
        raise ValueError(f"{name} must be at least 0, not {value!r}.")
    return value
