"""The expansion of a tree about a point, as θ of a Taylor loss.

It is differentiated automatically, in Taylor mode: each node gets the coefficients of its own
expansion, of all orders at once, from those of its operands. No torch is needed, and an order costs
a power of it, where derivatives of derivatives double in cost with each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from optuna_taylorglo.losses.expansion import THIRD_ORDER, Expansion, FloatArray
from optuna_taylorglo.losses.tree import Tree, check_coefficients
from optuna_taylorglo.losses.tree_formula import formula


def expanded_theta(
    tree: Tree,
    coefficients: Sequence[float] | None = None,
    *,
    form: Expansion = THIRD_ORDER,
    center: tuple[float, float] = (0.0, 0.5),
) -> tuple[float, ...]:
    """θ of a tree's expansion: the center, then its derivatives there (Eq. 4), terms without y
    trimmed as in Eq. 5.

    Args:
        tree: f.
        coefficients: One for each node, in prefix order; None: all 1.
        form: The form of θ, over (x, y).
        center: x and y.

    Raises:
        ValueError: If the tree or one of its derivatives is not finite there.
    """
    if form.variables != ("x", "y"):
        raise ValueError(f"form is {form}; a tree is expanded over (x, y).")
    with np.errstate(all="ignore"):
        series = _expanded(tree, iter(check_coefficients(tree, coefficients)), center, form.order)
    theta = list(center)
    for i, j in form.terms:
        factorials = 1 if form.folded else math.factorial(i) * math.factorial(j)
        theta.append(float(series[i, j]) * factorials)
    if not np.isfinite([series[0, 0], *theta]).all():
        raise ValueError(
            f"center is x = {center[0]}, y = {center[1]}, where {formula(tree, coefficients)} or a "
            "derivative of it is not finite; choose another one."
        )
    return form.validate(theta)


# A series is an array of shape (k+1, k+1); entry [i, j] multiplies (x - x0)^i (y - y0)^j, and is 0
# where i + j > k.


def _expanded(
    tree: Tree, factors: Iterator[float], center: tuple[float, float], order: int
) -> FloatArray:
    """The series of a tree, times its own coefficient; takes the coefficients of its nodes."""
    factor = next(factors)
    if not tree.children:
        return factor * _leaf(tree.operator, center, order)
    first, *others = [_expanded(child, factors, center, order) for child in tree.children]
    if not others:
        return factor * _of_one(tree.operator, first)
    (second,) = others
    if tree.operator == "+":
        return factor * (first + second)
    if tree.operator == "-":
        return factor * (first - second)
    if tree.operator == "/":
        powers = np.arange(order + 1)
        second = _composed((-1.0) ** powers / second[0, 0] ** (powers + 1), second)
    return factor * _product(first, second)


def _leaf(operator: str, center: tuple[float, float], order: int) -> FloatArray:
    series = np.zeros((order + 1, order + 1))
    if operator in ("1", "-1"):
        series[0, 0] = float(operator)
    else:
        series[0, 0] = center["xy".index(operator)]
        series[(1, 0) if operator == "x" else (0, 1)] = 1.0
    return series


def _of_one(operator: str, series: FloatArray) -> FloatArray:
    if operator == "square":
        return _product(series, series)
    a, powers = series[0, 0], np.arange(1, len(series))
    if operator == "log":
        return _composed(np.array([np.log(a), *(-((-1 / a) ** powers) / powers)]), series)
    # Binomial series: √(a + δ) = √a Σ_m C(1/2, m) (δ/a)^m.
    binomials = np.cumprod([1.0, *((1.5 - powers) / powers)])
    return _composed(np.sqrt(a) * binomials / a ** np.arange(len(series)), series)


def _composed(outer: FloatArray, series: FloatArray) -> FloatArray:
    """``Σ_m outer[m] δ^m`` with δ the series without its constant, by Horner's rule."""
    delta = series.copy()
    delta[0, 0] = 0.0
    result = np.zeros_like(series)
    for coefficient in outer[::-1]:
        result = _product(result, delta)
        result[0, 0] += coefficient
    return result


def _product(a: FloatArray, b: FloatArray) -> FloatArray:
    size = len(a)
    result = np.zeros_like(a)
    for i in range(size):
        for j in range(size - i):
            result[i:, j:] += a[i, j] * b[: size - i, : size - j]
    degrees = np.add.outer(np.arange(size), np.arange(size))
    return np.where(degrees < size, result, 0.0)
