"""How different two losses are as functions: by the gradients that they send, not by their θ.

Different θ can be the same loss, and near ones different ones. What training sees of a loss is its
gradient, so that is compared, on a fixed set of predictions from undecided to sure.
"""

from __future__ import annotations

import copy
from functools import lru_cache

import torch
from torch import Tensor

from optuna_taylorglo.losses.loading import EvolvedLoss
from optuna_taylorglo.losses.taylor_loss import TaylorLoss

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
