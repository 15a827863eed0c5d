"""A tree as a PyTorch loss: `TreeLoss`, and the published losses of GLO."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import scipy
import torch
from torch import Tensor
from torch.nn import functional as F

from optuna_taylorglo.losses.conventions import (
    ClassificationLoss,
    Conventions,
    EvolvedLoss,
    at_least_float32,
    check_indices,
    check_probabilities,
    check_weight,
    class_axis,
    count_samples,
    reduce_hard,
    reduce_soft,
)
from optuna_taylorglo.losses.expansion import Expansion, FloatArray
from optuna_taylorglo.losses.files import TreeLossFile
from optuna_taylorglo.losses.taylor import TaylorLoss
from optuna_taylorglo.losses.tree import (
    Tree,
    check_coefficients,
    expanded_theta,
    formula,
    tree_from_prefix,
)


def tree_values(
    tree: Tree,
    x: Tensor,
    y: Tensor,
    *,
    coefficients: Sequence[float] | None = None,
    log_y: Tensor | None = None,
) -> Tensor:
    """``f(x, y)``, element by element.

    Args:
        tree: f.
        x: Targets, of any shape that broadcasts with that of `y`.
        y: Outputs.
        coefficients: One for each node, in prefix order; None: all 1.
        log_y: Logarithms of the outputs, if they are known better than from `y`.

    Returns:
        Values of the dtype of `y`, of the shape that those of `x` and `y` have together.
    """
    factors = iter(check_coefficients(tree, coefficients))
    values = _walk(tree, factors, {"x": x, "y": y}, log_y)
    shape = torch.broadcast_shapes(x.shape, y.shape)  # type: ignore[no-untyped-call]
    return values.expand(shape)


def _walk(
    tree: Tree, factors: Iterator[float], leaves: dict[str, Tensor], log_y: Tensor | None
) -> Tensor:
    """The values of a tree, times its own coefficient; takes the coefficients of its nodes."""
    factor = next(factors)
    if not tree.children:
        value = leaves.get(tree.operator)
        if value is None:
            return leaves["y"].new_full((), factor * float(tree.operator))
    elif tree.operator == "log" and tree.children[0].operator == "y":
        value = _logarithm_of_y(next(factors), leaves["y"], log_y)
    else:
        value = _applied(
            tree.operator, *[_walk(child, factors, leaves, log_y) for child in tree.children]
        )
    return value if factor == 1 else factor * value


def _logarithm_of_y(factor: float, y: Tensor, log_y: Tensor | None) -> Tensor:
    if log_y is None or factor <= 0:
        return torch.log(factor * y)
    return log_y + math.log(factor)


def _applied(operator: str, a: Tensor, b: Tensor | None = None) -> Tensor:
    if b is None:
        if operator == "log":
            return torch.log(a)
        return a * a if operator == "square" else _root(a)
    if operator == "+":
        return a + b
    if operator == "-":
        return a - b
    if operator == "*":
        return a * b
    return a / torch.where(b.isinf(), math.nan, b)


def _root(a: Tensor) -> Tensor:
    zero = a == 0
    return torch.where(zero, 0.0, torch.sqrt(torch.where(zero, 1.0, a)))


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


class TreeLoss(EvolvedLoss):
    """The loss ``-(1/n) Σ_i f(x_i, y_i)`` with f a tree, as GLO evolves them.

        loss = TreeLoss(["-", "log", "y", "/", "x", "y"])  # Baikal
        loss(model(images), labels).backward()

    x is the label, one-hot or soft, y the softmax output. Below a probability of 1e-7, y goes on as
    ``1e-7 / (1 + log(1e-7 / y))``: never 0, and 1/y is a straight line in log y, as in
    `BaikalLoss`. Where f is not finite all the same (`losses.tree_values`), neither is the loss;
    that ends a search's training of it, and no other error does. A tree without y has a gradient of
    0 and teaches nothing.

    Args:
        tree: f, or its prefix form.
        coefficients: What the nodes are multiplied by, in prefix order; None: 1 each.
        class_reduction: "mean" for 1/n, or "sum".
        reduction: As in `torch.nn.CrossEntropyLoss`, and so are the next three; `taylor_loss`
            says what they mean here.
        weight: Weight of each class, shape (C,).
        ignore_index: Target index to leave out.
        label_smoothing: ε in [0, 1].

    Attributes:
        tree: f without coefficients.
        coefficients: One for each node, as exact floats.
        n_classes: Number of classes the loss was made for, if that is known.
        origin: Where the loss came from, if it was loaded from a file that says so.

    Examples:
        >>> import torch
        >>> from optuna_taylorglo import BaikalLoss, TreeLoss
        >>> baikal = TreeLoss(["-", "log", "y", "/", "x", "y"])
        >>> baikal.formula
        'log(y) - x / y'
        >>> logits, labels = torch.zeros(2, 10), torch.tensor([3, 7])
        >>> torch.allclose(baikal(logits, labels), BaikalLoss()(logits, labels))
        True
    """

    file_type = TreeLossFile

    def __init__(
        self,
        tree: Tree | Sequence[str],
        coefficients: Sequence[float] | None = None,
        *,
        class_reduction: str = "mean",
        reduction: str = "mean",
        weight: Tensor | None = None,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(
            class_reduction=class_reduction,
            reduction=reduction,
            weight=weight,
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
        )
        self.tree = tree if isinstance(tree, Tree) else tree_from_prefix(tree)
        self.coefficients = check_coefficients(self.tree, coefficients)
        self._reaches_outputs = "y" in self.tree.to_prefix()

    @property
    def formula(self) -> str:
        """f as people write it, such as ``log(y) - x / y``."""
        return formula(self.tree, self.coefficients)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss of a batch.

        Args:
            logits: Shape (C,), (N, C) or (N, C, d1, …).
            target: Class indices, or class probabilities of the shape of `logits`.
        """
        conventions = self.conventions
        check_weight(logits, conventions.weight)
        logits = at_least_float32(logits)
        batched = class_axis(logits) == 1
        if not batched:
            logits, target = logits.unsqueeze(0), target.unsqueeze(0)
        if target.is_floating_point():
            loss = self._soft_loss(logits, target, conventions)
        else:
            loss = self._hard_loss(logits, target, conventions)
        return loss if batched or conventions.reduction != "none" else loss.squeeze(0)

    def values(self, x: Tensor, log_y: Tensor) -> Tensor:
        """f, element by element.

        Args:
            x: Labels, of any shape that broadcasts with that of `log_y`.
            log_y: Logarithms of the softmax outputs.
        """
        y = 1 / inverse_probability(log_y)
        return tree_values(self.tree, x, y, coefficients=self.coefficients, log_y=log_y)

    def _hard_loss(self, logits: Tensor, target: Tensor, conventions: Conventions) -> Tensor:
        check_indices(logits, target)
        index = target.long().unsqueeze(1)
        counts = count_samples(index, logits.dtype, conventions)
        # Without what is ignored: its tree may not be finite, and 0 times its gradient not be 0.
        logits = torch.where(counts.valid, logits, 0.0)
        low = conventions.label_smoothing / logits.shape[1]
        high = low + 1 - conventions.label_smoothing
        x = torch.full_like(logits, low).scatter(1, index * counts.valid, high)
        losses = self._losses(logits, x, conventions)
        return reduce_hard(losses, counts, conventions.reduction)

    def _soft_loss(self, logits: Tensor, target: Tensor, conventions: Conventions) -> Tensor:
        check_probabilities(logits, target, conventions.ignore_index)
        smoothing = conventions.label_smoothing
        x = target.to(logits.dtype) * (1 - smoothing) + smoothing / logits.shape[1]
        return reduce_soft(self._losses(logits, x, conventions).squeeze(1), x, conventions)

    def _losses(self, logits: Tensor, x: Tensor, conventions: Conventions) -> Tensor:
        """Losses of each sample, shape (N, 1, …)."""
        log_y = torch.log_softmax(logits, dim=1)
        values = self.values(x, log_y)
        if not self._reaches_outputs:
            values = values + 0.0 * log_y  # or there would be nothing to call backward on
        return -conventions.class_scale(logits.shape[1]) * values.sum(dim=1, keepdim=True)

    def expand(
        self,
        order: int = 3,
        center: float | tuple[float, float] = 0.5,
        *,
        folded: bool = False,
    ) -> TaylorLoss:
        """The Taylor loss that it is near a point, up to what has no gradient.

        A tree that is a polynomial of this order at most is met everywhere.

        Args:
            order: Order of the expansion.
            center: b, or (a, b), for x = a and y = b; a is 0 if not given.
            folded: Whether 1/α! shall be in θ.

        Raises:
            ValueError: If the tree or one of its derivatives is not finite there.
        """
        form = Expansion(order, ("x", "y"), folded)
        point = center if isinstance(center, tuple) else (0.0, center)
        theta = expanded_theta(self.tree, self.coefficients, form=form, center=point)
        expanded = TaylorLoss(theta, order=order, folded=folded, **self.conventions._asdict())
        expanded.n_classes = self.n_classes
        return expanded

    def settings(self) -> dict[str, Any]:
        """The arguments that make it the function it is, as plain JSON values."""
        return {
            "tree": self.tree.to_prefix(),
            "coefficients": list(self.coefficients),
            "class_reduction": self.class_reduction,
            "label_smoothing": self.label_smoothing,
        }

    def extra_repr(self) -> str:
        """The settings that make it the function it is."""
        return f"{self.formula}, class_reduction={self.class_reduction!r}"


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
