"""What a tree is at given targets and outputs, by walking it with torch's operations.

The arithmetic is IEEE's: a logarithm or root of what is negative, and a quotient by 0, are not
finite, and neither is then the loss, which ends a training (`errors.Diverged`). Three things are
defined here, so that gradients are finite where values are:

- A root has the slope 0 at 0, where its own is infinite.
- A quotient by something infinite is not a number, or it would hide that with a value of 0.
- ``log(c y)`` with c > 0 takes the logarithm of the softmax where the caller has it, which is exact
  for outputs that y itself cannot hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from optuna_taylorglo.losses.tree import Tree, check_coefficients


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
