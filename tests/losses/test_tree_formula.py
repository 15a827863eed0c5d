"""How trees are written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from random_trees import random_trees

from optuna_taylorglo.losses.tree import (
    BAIKAL,
    BAIKAL_CMA_COEFFICIENTS,
    CROSS_ENTROPY_TREE,
    Tree,
    formula,
    tree_from_prefix,
)


@pytest.mark.parametrize(
    ("prefix", "text"),
    [
        (["-", "log", "y", "/", "x", "y"], "log(y) - x / y"),
        (["*", "x", "log", "y"], "x·log(y)"),
        (["+", "x", "-1"], "x - 1"),
        (["-", "-1", "-1"], "-1 + 1"),
        (["-", "x", "-", "x", "y"], "x - (x - y)"),
        (["+", "x", "-", "x", "y"], "x + x - y"),
        (["-", "x", "/", "x", "y"], "x - x / y"),
        (["*", "/", "x", "y", "y"], "x·y / y"),
        (["/", "x", "*", "y", "y"], "x / (y·y)"),
        (["/", "x", "/", "y", "y"], "x·y / y"),
        (["/", "x", "+", "y", "1"], "x / (y + 1)"),
        (["/", "+", "x", "1", "y"], "(x + 1) / y"),
        (["*", "+", "x", "y", "-1"], "-(x + y)"),
        (["*", "1", "y"], "y"),
        (["/", "x", "-1"], "-x"),
        (["square", "-1"], "1"),
        (["square", "*", "-1", "y"], "y²"),
        (["square", "square", "y"], "(y²)²"),
        (["square", "-", "x", "y"], "(x - y)²"),
        (["square", "/", "x", "y"], "(x / y)²"),
        (["sqrt", "-", "1", "y"], "√(1 - y)"),
        (["log", "-1"], "log(-1)"),
        (["/", "-1", "square", "y"], "-1 / y²"),
    ],
)
def test_formulas_have_the_brackets_that_they_need(prefix, text):
    assert formula(tree_from_prefix(prefix)) == text


def test_coefficients_are_multiplied_out():
    assert formula(BAIKAL, BAIKAL_CMA_COEFFICIENTS) == ("2.728·(0.9863·log(1.535·y) - 1.816·x / y)")
    assert formula(tree_from_prefix(["+", "1", "-1"]), [1, 0.5, 0.25]) == "0.5 - 0.25"
    assert formula(CROSS_ENTROPY_TREE, [-1, 1, 1, 1]) == "-x·log(y)"
    assert formula(CROSS_ENTROPY_TREE, [2, 3, 1, 1]) == "6·x·log(y)"
    assert formula(tree_from_prefix(["square", "y"]), [2, -3]) == "18·y²"
    assert formula(tree_from_prefix(["/", "1", "y"]), [1, 3, -2]) == "-1.5 / y"
    assert formula(CROSS_ENTROPY_TREE, [1, 1.00001, 1, 1]) == "x·log(y)"


def test_a_quotient_by_zero_is_seen():
    assert formula(tree_from_prefix(["/", "x", "y"]), [1, 2, 0]) == "2·x / (y·0)"


@pytest.mark.parametrize("tuned", [False, True])
def test_a_formula_read_as_python_is_the_tree(tuned):
    """Brackets are where Python's own precedence needs them, so people can trust theirs."""
    generator = np.random.default_rng(0)
    x, y = np.float64(0.3), np.float64(0.6)
    names = {"np": np, "x": x, "y": y, "log": np.log}
    for tree in random_trees(300, seed=1):
        coefficients = generator.normal(size=tree.size) if tuned else np.ones(tree.size)
        written = formula(tree, coefficients, digits=17).replace("·", "*").replace("√", "np.sqrt")
        with np.errstate(all="ignore"):
            try:
                found = eval(written.replace("²", "**2"), names)
            except ZeroDivisionError:
                found = np.nan  # Python's own numbers divide by nothing that is 0
            expected = by_hand(tree, iter(coefficients), x, y)
        if np.isfinite(expected):
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9, err_msg=written)


def by_hand(tree: Tree, coefficients: Iterator[float], x: np.float64, y: np.float64) -> Any:
    coefficient = np.float64(next(coefficients))
    values = [by_hand(child, coefficients, x, y) for child in tree.children]
    match tree.operator, values:
        case "+", [a, b]:
            value = a + b
        case "-", [a, b]:
            value = a - b
        case "*", [a, b]:
            value = a * b
        case "/", [a, b]:
            value = a / b
        case "log", [a]:
            value = np.log(a)
        case "square", [a]:
            value = a * a
        case "sqrt", [a]:
            value = np.sqrt(a)
        case leaf, _:
            value = {"x": x, "y": y, "1": np.float64(1), "-1": np.float64(-1)}[leaf]
    return coefficient * value
