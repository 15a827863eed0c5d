"""Losses found by GLO, the method before TaylorGLO, for comparison.

Both are ``L = -(1/n) Σ_i [a log y_i - b x_i / y_i]`` up to a constant (Gonzalez & Miikkulainen,
"Improved Training Speed, Accuracy, and Data Utilization Through Loss Function Optimization").
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from optuna_taylorglo.losses.conventions import (
    ClassificationLoss,
    at_least_float32,
    class_axis,
    count_samples,
    reduce_hard,
    reduce_soft,
)

LEAST_PROBABILITY = 1e-7
"""Below it 1/y does not go on to its pole."""


class BaikalLoss(ClassificationLoss):
    """The Baikal loss, ``-(1/n) Σ_i [log y_i - x_i / y_i]``.

    It has a pole at y = 0. Below a probability of 1e-7 its 1/y goes on as a straight line in
    log y, so that values and gradients stay finite and still point the right way.

    Args:
        class_reduction: "mean" for 1/n, or "sum".
        reduction: As in `nn.CrossEntropyLoss`, and so are the next three.
        weight: Weight of each class, shape (C,).
        ignore_index: Target index to leave out.
        label_smoothing: ε in [0, 1].

    Examples:
        >>> import torch
        >>> from optuna_taylorglo import BaikalLoss
        >>> logits, labels = torch.zeros(2, 10), torch.tensor([3, 7])
        >>> round(BaikalLoss()(logits, labels).item(), 4)
        3.3026
    """

    log_coefficient: ClassVar[float] = 1.0
    log_factor: ClassVar[float] = 1.0
    ratio_coefficient: ClassVar[float] = 1.0

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss of a batch.

        Args:
            logits: Shape (C,), (N, C) or (N, C, d1, …).
            target: Class indices, or class probabilities of the shape of `logits`.
        """
        logits = at_least_float32(logits)
        axis = class_axis(logits)
        n = logits.shape[axis]
        log_y = torch.log_softmax(logits, dim=axis)
        inverse_y = inverse_probability(log_y)
        logs = self.log_coefficient * (log_y + math.log(self.log_factor)).sum(axis, keepdim=True)
        conventions = self.conventions
        scale, smoothing = conventions.class_scale(n), conventions.label_smoothing
        if not target.is_floating_point():
            # The negative loss that each class would give if it were the target.
            ratios = (1 - smoothing) * inverse_y
            if smoothing > 0:
                ratios = ratios + smoothing / n * inverse_y.sum(axis, keepdim=True)
            losses = F.nll_loss(
                scale * (logs - self.ratio_coefficient * ratios),
                target,
                ignore_index=conventions.ignore_index,
                reduction="none",
            )
            # nll_loss would weigh by the target alone, also where smoothing shares it out.
            column = (-1, 1, *target.shape[1:])
            counts = count_samples(target.long().reshape(column), losses.dtype, conventions)
            loss = reduce_hard(losses.reshape(column), counts, conventions.reduction)
            return loss.reshape(target.shape) if conventions.reduction == "none" else loss
        x = target * (1 - smoothing) + smoothing / n
        ratios = (x * inverse_y).sum(axis, keepdim=True)
        losses = -scale * (logs - self.ratio_coefficient * ratios).squeeze(axis)
        return reduce_soft(losses, x, conventions)


class BaikalCMALoss(BaikalLoss):
    """Baikal with the coefficients that CMA-ES gave it.

    ``-(1/n) Σ_i c0 (c1 log(c2 y_i) - c3 (c4 x_i) / (c5 y_i))`` with c = (2.7279, 0.9863, 1.5352,
    -1.1135, 1.3716, -0.8411).

    Args:
        class_reduction: "mean" for 1/n, or "sum".
        reduction: As in `nn.CrossEntropyLoss`, and so are the next three.
        weight: Weight of each class, shape (C,).
        ignore_index: Target index to leave out.
        label_smoothing: ε in [0, 1].

    Examples:
        >>> import torch
        >>> from optuna_taylorglo import BaikalCMALoss
        >>> logits, labels = torch.zeros(2, 10), torch.tensor([3, 7])
        >>> round(BaikalCMALoss()(logits, labels).item(), 4)
        9.9952
    """

    log_coefficient = 2.7279 * 0.9863
    log_factor = 1.5352
    ratio_coefficient = 2.7279 * -1.1135 * 1.3716 / -0.8411


def inverse_probability(log_y: Tensor) -> Tensor:
    """1/y, below the least probability continued in -log y with the slope that it has there."""
    least = -math.log(LEAST_PROBABILITY)
    beyond = (-log_y - least).clamp(min=0)
    return torch.exp((-log_y).clamp(max=least)) * (1 + beyond)
