"""A tree as a PyTorch loss: `TreeLoss`, and the published losses of GLO."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from optuna_taylorglo.losses.conventions import EvolvedLossModule, prepare
from optuna_taylorglo.losses.expansion import Expansion
from optuna_taylorglo.losses.files import TreeLossFile
from optuna_taylorglo.losses.taylor import TaylorLoss
from optuna_taylorglo.losses.tree import (
    BAIKAL,
    BAIKAL_CMA_COEFFICIENTS,
    Tree,
    check_coefficients,
    expanded_theta,
    formula,
    tree_from_prefix,
)

LEAST_PROBABILITY = 1e-7  # below it, 1/y no longer goes to its pole


def tree_values(
    tree: Tree,
    x: Tensor,
    y: Tensor,
    *,
    coefficients: Sequence[float] | None = None,
    log_y: Tensor | None = None,
) -> Tensor:
    """``f(x, y)``, element by element; log_y, if it is known better than from y."""
    factors = iter(check_coefficients(tree, coefficients))
    values = _walk(tree, factors, {"x": x, "y": y}, log_y)
    shape = torch.broadcast_shapes(x.shape, y.shape)  # type: ignore[no-untyped-call]
    return values.expand(shape)


def _walk(
    tree: Tree, factors: Iterator[float], leaves: dict[str, Tensor], log_y: Tensor | None
) -> Tensor:
    """The values of a tree times its coefficient; consumes the coefficients of its nodes."""
    factor, operator = next(factors), tree.operator
    if operator in ("1", "-1"):
        return leaves["y"].new_full((), factor * float(operator))
    if not tree.children:
        value = leaves[operator]
    elif operator == "log" and tree.children[0].operator == "y":
        inner = next(factors)
        if log_y is None or inner <= 0:
            value = torch.log(inner * leaves["y"])
        else:
            value = log_y + math.log(inner)
    else:
        operands = (_walk(child, factors, leaves, log_y) for child in tree.children)
        value = _OPERATIONS[operator](*operands)
    return value if factor == 1 else factor * value


def _root(a: Tensor) -> Tensor:
    """√a with a gradient of 0 at 0."""
    zero = a == 0
    return torch.where(zero, 0.0, torch.sqrt(torch.where(zero, 1.0, a)))


_OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "+": torch.add,
    "-": torch.sub,
    "*": torch.mul,
    "/": lambda a, b: a / torch.where(b.isinf(), math.nan, b),  # else 1/∞ would hide in a 0
    "log": torch.log,
    "square": lambda a: a * a,
    "sqrt": _root,
}


class TreeLoss(EvolvedLossModule):
    """The loss ``-(1/n) Σ_i f(x_i, y_i)`` with f a tree, as GLO evolves them.

        loss = TreeLoss(["-", "log", "y", "/", "x", "y"])  # Baikal
        loss(model(images), labels).backward()

    x is the label, one-hot or soft, y the softmax output. Below a probability of 1e-7, y continues
    as ``1e-7 / (1 + log(1e-7 / y))``, never 0. Where f is still not finite, neither is the loss.

    Args:
        tree: f, or its prefix form.
        coefficients: Factors of the nodes, in prefix order; None: 1 each.
        settings: class_reduction ("mean" for 1/n, or "sum"), and reduction, weight, ignore_index
            and label_smoothing as in `torch.nn.CrossEntropyLoss`.

    Attributes:
        n_classes: As in `TaylorLoss`, with origin and lr_factor.

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
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.tree = tree if isinstance(tree, Tree) else tree_from_prefix(tree)
        self.coefficients = check_coefficients(self.tree, coefficients)
        self._reaches_outputs = "y" in self.tree.to_prefix()

    @property
    def formula(self) -> str:
        """f in the usual notation, such as ``log(y) - x / y``."""
        return formula(self.tree, self.coefficients)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss of a batch; shapes as in `taylor_loss`."""
        conventions = self.conventions
        batch = prepare(logits, target, conventions, self.n_classes)
        log_y = torch.log_softmax(batch.logits, dim=1)
        values = self.values(batch.labels(conventions.label_smoothing), log_y)
        if not self._reaches_outputs:
            values = values + 0.0 * log_y  # so that backward can be called
        scale = conventions.class_scale(log_y.shape[1])
        losses = -scale * values.sum(dim=1, keepdim=True)
        return batch.reduce(batch.weigh(losses), conventions.reduction)

    def values(self, x: Tensor, log_y: Tensor) -> Tensor:
        """f, element by element, for labels and logarithms of the softmax outputs."""
        least = -math.log(LEAST_PROBABILITY)
        beyond = (-log_y - least).clamp(min=0)
        y = 1 / (torch.exp((-log_y).clamp(max=least)) * (1 + beyond))
        return tree_values(self.tree, x, y, coefficients=self.coefficients, log_y=log_y)

    def expand(
        self, order: int = 3, center: float | tuple[float, float] = 0.5, *, folded: bool = False
    ) -> TaylorLoss:
        """The Taylor loss of this order around y = b, or (x, y) = (a, b); a pole is refused."""
        form = Expansion(order, ("x", "y"), folded)
        point = center if isinstance(center, tuple) else (0.0, center)
        theta = expanded_theta(self.tree, self.coefficients, form=form, center=point)
        expanded = TaylorLoss(theta, order=order, folded=folded, **self.conventions._asdict())
        expanded.n_classes, expanded.lr_factor = self.n_classes, self.lr_factor
        return expanded

    def trainability(self, n_classes: int) -> float:
        """``h = ∂_y f(1, 1/n) - ∂_y f(0, 1/n)``, as `canonical.trainability`; NaN at a pole."""
        y = torch.tensor(1 / n_classes, dtype=torch.float64, requires_grad=True)
        one, log_y = torch.ones((), dtype=y.dtype), torch.log(y)
        difference = self.values(one, log_y) - self.values(0 * one, log_y)
        if not difference.requires_grad:
            return 0.0
        return float(torch.autograd.grad(difference, y)[0])

    def first_gradient(self, n_classes: int) -> float:
        """First gradient of the loss relative to cross-entropy's, as `canonical.first_gradient`."""
        return self.conventions.class_scale(n_classes) * self.trainability(n_classes) / n_classes

    def settings(self) -> dict[str, Any]:
        """The arguments that define the function, as plain JSON values."""
        return {
            "tree": self.tree.to_prefix(),
            "coefficients": list(self.coefficients),
            "class_reduction": self.class_reduction,
            "label_smoothing": self.label_smoothing,
        }


class BaikalLoss(TreeLoss):
    """The Baikal loss, ``-(1/n) Σ_i [log y_i - x_i / y_i]``: a `TreeLoss` of the published tree.

    Args:
        settings: As `TreeLoss`.

    Examples:
        >>> import torch
        >>> from optuna_taylorglo import BaikalLoss
        >>> BaikalLoss()(torch.zeros(1, 10), torch.tensor([3]))
        tensor(3.3026)
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(BAIKAL, **settings)


class BaikalCMALoss(TreeLoss):
    """Baikal with the coefficients that CMA-ES gave it.

    ``-(1/n) Σ_i c0 (c1 log(c2 y_i) - c3 (c4 x_i) / (c5 y_i))`` with c = (2.7279, 0.9863, 1.5352,
    -1.1135, 1.3716, -0.8411).

    Args:
        settings: As `TreeLoss`.

    Examples:
        >>> import torch
        >>> from optuna_taylorglo import BaikalCMALoss
        >>> BaikalCMALoss()(torch.zeros(1, 10), torch.tensor([3]))
        tensor(9.9952)
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(BAIKAL, BAIKAL_CMA_COEFFICIENTS, **settings)


EvolvedLoss = TaylorLoss | TreeLoss
"""What searches find and files hold."""
