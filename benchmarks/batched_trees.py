"""Gradients of losses that are trees, for many networks at once (`batched_mlp.py`).

A tree is walked once for all networks that train with it, whatever their coefficients, and every
node carries its derivative with respect to log y beside its value.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from optuna_taylorglo.losses.tree import Tree
from optuna_taylorglo.losses.tree_loss import LEAST_PROBABILITY

Dual = tuple[Tensor, Tensor | None]
"""Values and derivatives with respect to log y; None for derivatives of 0."""


def tree_gradient(tree: Tree, y: Tensor, x: Tensor, coefficients: Iterator[Tensor]) -> Tensor:
    """Derivative of ``-Σ_i f(x_i, y_i)`` with respect to the logits.

    Args:
        tree: f.
        y: Softmax outputs, shape (networks, samples, classes).
        x: Targets of the same shape.
        coefficients: One for each node in prefix order, each of shape (networks, 1, 1).
    """
    log_y = y.clamp_min(1e-38).log()
    below = (LEAST_PROBABILITY / y.clamp_min(1e-38)).log().clamp_min(0.0)
    # As `TreeLoss` has it: below the least probability 1/y is a straight line in log y.
    output = torch.where(below > 0, LEAST_PROBABILITY / (1 + below), y)
    slope = torch.where(below > 0, output / (1 + below), y)
    _, h = _walk(tree, coefficients, x, (output, slope), log_y)
    if h is None:
        return torch.zeros_like(y)
    # log y_i has the derivative [i = j] - y_j with respect to logit j.
    return y * h.sum(-1, keepdim=True) - h


def _walk(
    tree: Tree, coefficients: Iterator[Tensor], x: Tensor, output: Dual, log_y: Tensor
) -> Dual:
    factor = next(coefficients)
    if tree.operator == "y":
        dual = output
    elif tree.operator == "x":
        dual = (x, None)
    elif not tree.children:
        dual = (torch.full((), float(tree.operator)), None)
    elif tree.operator == "log" and tree.children[0].operator == "y":
        inner = next(coefficients)
        # A negative factor has no logarithm, which is what the search is to see.
        dual = (log_y + inner.log(), torch.ones_like(log_y))
    else:
        operands = [_walk(child, coefficients, x, output, log_y) for child in tree.children]
        dual = _APPLY[tree.operator](*operands)
    value, slope = dual
    return factor * value, None if slope is None else factor * slope


def _plus(a: Dual, b: Dual) -> Dual:
    slope = b[1] if a[1] is None else a[1] if b[1] is None else a[1] + b[1]
    return a[0] + b[0], slope


def _minus(a: Dual, b: Dual) -> Dual:
    return _plus(a, (-b[0], None if b[1] is None else -b[1]))


def _times(a: Dual, b: Dual) -> Dual:
    parts = [slope * value for slope, value in ((a[1], b[0]), (b[1], a[0])) if slope is not None]
    return a[0] * b[0], sum(parts[1:], parts[0]) if parts else None


def _over(a: Dual, b: Dual) -> Dual:
    inverse = 1 / b[0]
    return _times(a, (inverse, None if b[1] is None else -b[1] * inverse * inverse))


def _log(a: Dual) -> Dual:
    # Also where the slope is 0, a logarithm of what is not positive must not go unnoticed.
    value = torch.log(a[0])
    return value, None if a[1] is None else a[1] / a[0] + 0 * value


def _square(a: Dual) -> Dual:
    return a[0] * a[0], None if a[1] is None else 2 * a[0] * a[1]


def _root(a: Dual) -> Dual:
    root = torch.sqrt(a[0])
    slope = None if a[1] is None else torch.where(a[0] == 0, 0.0, a[1] / (2 * root))
    return root, slope


_APPLY = {
    "+": _plus,
    "-": _minus,
    "*": _times,
    "/": _over,
    "log": _log,
    "square": _square,
    "sqrt": _root,
}
