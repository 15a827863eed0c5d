"""What a tree does as a loss: where training begins, and over the target's probability."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy
import torch
from torch import Tensor

from optuna_taylorglo.losses.expansion import FloatArray
from optuna_taylorglo.losses.tree_loss import TreeLoss

# Even in the logit: as many near 0 and 1, where poles are, as between.
_PLACES = 1 / (1 + np.exp(-np.linspace(-12, 12, 961)))
_LEAST = 1e-300


class TreeCurve:
    """A loss of a tree over the target's probability p, the other classes sharing 1 - p evenly.

        L(p) = -s [ f(1, p) + (n-1) f(0, (1-p)/(n-1)) ],     s = 1/n or 1.

    Args:
        loss: The loss.
        n_classes: n.
    """

    def __init__(self, loss: TreeLoss, n_classes: int) -> None:
        self._loss = loss
        self._n = n_classes

    def __call__(self, p: FloatArray) -> FloatArray:
        """The loss at p; NaN where it has no value."""
        values: FloatArray = self._values(torch.tensor(p, dtype=torch.float64)).numpy()
        return values

    def slope(self, p: FloatArray) -> FloatArray:
        """dL/dp, for p within (0, 1)."""
        return _gradient(self._values, p)

    def stationary_points(self) -> list[float]:
        """Where in (0, 1) the slope changes its sign; those closer than a grid's step may lack."""
        slopes = self.slope(_PLACES)
        signs = np.sign(slopes)
        (brackets,) = np.nonzero((signs[:-1] * signs[1:] < 0) & np.isfinite(np.diff(slopes)))
        return [
            scipy.optimize.brentq(
                lambda p: float(self.slope(np.array(p))), _PLACES[i], _PLACES[i + 1]
            )
            for i in brackets
        ]

    def _values(self, p: Tensor) -> Tensor:
        n = self._n
        of_others = _function(self._loss, 0.0, (1 - p) / (n - 1))
        total = _function(self._loss, 1.0, p) + (n - 1) * of_others
        return -self._loss.conventions.class_scale(n) * total


def tree_trainability(loss: TreeLoss, n_classes: int) -> float:
    """How hard the loss pushes the target's logit away from the others at the very start.

    As for a polynomial (C3), because a tree is f(0, y) at every class but the target, where it is
    f(1, y): ``h = ∂_y f(1, 1/n) - ∂_y f(0, 1/n)``.

    Returns:
        h, positive for a loss that can begin to learn; NaN for one that is not finite there.
    """
    start = np.array(1 / n_classes)
    return float(_gradient(lambda y: _function(loss, 1.0, y) - _function(loss, 0.0, y), start))


def tree_gradient_scale(loss: TreeLoss, n_classes: int) -> float:
    """First gradient of the loss relative to cross-entropy's, as `canonical.gradient_scale`."""
    scale = loss.conventions.class_scale(n_classes)
    return scale * tree_trainability(loss, n_classes) / n_classes


def _function(loss: TreeLoss, x: float, y: Tensor) -> Tensor:
    # Above 0, where 0·log 0 would be no number.
    return loss.values(torch.full_like(y, x), torch.log(y.clamp(min=_LEAST)))


def _gradient(function: Callable[[Tensor], Tensor], places: FloatArray) -> FloatArray:
    """Derivatives of a function that acts on each place alone."""
    inputs = torch.tensor(places, dtype=torch.float64, requires_grad=True)
    values = function(inputs)
    if not values.requires_grad:
        return np.zeros_like(places)
    (gradient,) = torch.autograd.grad(values.sum(), inputs)
    derivatives: FloatArray = gradient.numpy()
    return derivatives
