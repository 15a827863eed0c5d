"""Trees: what they may be, their prefix form and formula, and their expansion as Taylor losses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from random_trees import random_trees

from optuna_taylorglo import TreeLoss
from optuna_taylorglo.losses.expansion import Expansion
from optuna_taylorglo.losses.tree import (
    BAIKAL,
    BAIKAL_CMA_COEFFICIENTS,
    CROSS_ENTROPY_TREE,
    MAX_DEPTH,
    MAX_SIZE,
    Tree,
    check_coefficients,
    expanded_theta,
    formula,
    tree_from_prefix,
)
from optuna_taylorglo.losses.tree_loss import tree_values

X, Y = Tree("x"), Tree("y")


def full_tree(depth: int) -> list[str]:
    """Prefix form of a tree that has two operands everywhere."""
    return ["+", *full_tree(depth - 1), *full_tree(depth - 1)] if depth else ["y"]


def test_prefix_form_and_back_through_json():
    for tree in random_trees(300):
        again = tree_from_prefix(json.loads(json.dumps(tree.to_prefix())))
        assert again == tree
        assert hash(again) == hash(tree)
        assert tree.size == len(tree.to_prefix()) == len(list(tree.nodes()))


WRONG: list[tuple[Any, str]] = [
    ([], "the tree lacks an operand at its end"),
    ("xy", "a tree in prefix form is a list of operators"),
    (["+", "x"], "the tree lacks an operand at its end"),
    (["log", "y", "x"], "the tree ends before entry 2 of 3"),
    (["sin", "x"], "'sin' is no operator; known are x, y, 1, -1, "),
    (["+", 1, "x"], "1 is no operator"),
    (["sqrt"] * (MAX_DEPTH + 1) + ["y"], f"the tree is deeper than {MAX_DEPTH}"),
    (full_tree(8), f"the tree has 511 nodes, more than {MAX_SIZE}"),
    (["sqrt"] * 10**6, "the tree has 1000000 nodes"),
]


@pytest.mark.parametrize(("content", "message"), WRONG)
def test_what_is_no_tree_is_refused(content, message):
    with pytest.raises(ValueError, match=message):
        tree_from_prefix(content)


def test_trees_up_to_the_limits_are_trees():
    assert tree_from_prefix(["sqrt"] * MAX_DEPTH + ["y"]).depth == MAX_DEPTH
    assert tree_from_prefix(full_tree(7)).size == MAX_SIZE


@pytest.mark.parametrize(
    ("coefficients", "message"),
    [
        ([1.0], "coefficients has 1 values; the tree takes 4"),
        ([1, 2, 3, float("nan")], r"coefficients\[3\] is nan; all must be finite"),
        (["a"] * 4, "coefficients must be a sequence of numbers"),
    ],
)
def test_wrong_coefficients_are_named(coefficients, message):
    with pytest.raises(ValueError, match=message):
        check_coefficients(CROSS_ENTROPY_TREE, coefficients)


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


def test_random_trees_have_the_derivatives_that_autograd_finds():
    form, checked = Expansion(4), 0
    for number, tree in enumerate(random_trees(100, seed=4, max_depth=4)):
        rng = np.random.default_rng(number)
        center = tuple(rng.uniform(0.2, 0.8, 2))
        coefficients = rng.uniform(0.5, 2, tree.size)
        x, y = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in center)
        value = tree_values(tree, x, y, coefficients=coefficients)
        if not value.isfinite():
            with pytest.raises(ValueError, match=r"center is x = .* not finite"):
                expanded_theta(tree, coefficients, form=form, center=center)
            continue
        theta = expanded_theta(tree, coefficients, form=form, center=center)
        expected = [derivative(value, x, y, *alpha) for alpha in form.terms]
        folded = expanded_theta(tree, coefficients, form=Expansion(4, folded=True), center=center)
        assert folded[2:] == pytest.approx(np.array(theta[2:]) * form.factors)
        np.testing.assert_allclose(theta[2:], expected, rtol=1e-8, atol=1e-8)
        checked += 1
    assert checked > 30


def derivative(value: torch.Tensor, x: torch.Tensor, y: torch.Tensor, i: int, j: int) -> float:
    for variable in [x] * i + [y] * j:
        if not value.requires_grad:
            return 0.0
        (value,) = torch.autograd.grad(value, variable, create_graph=True, materialize_grads=True)
    return value.item()


@pytest.mark.parametrize(
    "prefix",
    [
        ["*", "x", "square", "-", "y", "1"],
        ["+", "*", "square", "x", "y", "*", "y", "square", "y"],
        ["*", "+", "x", "1", "+", "y", "*", "x", "-1"],
        ["square", "-", "x", "y"],
    ],
)
@pytest.mark.parametrize("center", [0.5, (-2.0, 3.0)])
def test_polynomials_of_the_order_are_met_everywhere(prefix, center):
    """To the gradient: what has no y in it is trimmed, as in the paper."""
    loss = TreeLoss(prefix, label_smoothing=0.1)
    expanded = loss.expand(center=center).double()
    logits = (3 * torch.randn(9, 4, dtype=torch.float64)).requires_grad_()
    target = torch.randint(0, 4, (9,))
    gradients = [torch.autograd.grad(f(logits, target), logits)[0] for f in (loss, expanded)]
    torch.testing.assert_close(*gradients, rtol=1e-7, atol=1e-7)  # y below 1e-7 is continued
    moderate = (logits / 3).detach().requires_grad_()
    gradients = [torch.autograd.grad(f(moderate, target), moderate)[0] for f in (loss, expanded)]
    torch.testing.assert_close(*gradients, rtol=1e-11, atol=1e-12)


def test_settings_go_along():
    loss = TreeLoss(
        BAIKAL,
        class_reduction="sum",
        reduction="none",
        weight=torch.ones(3),
        ignore_index=2,
        label_smoothing=0.1,
    )
    loss.n_classes = 3
    expanded = loss.expand()
    assert expanded.conventions[1:2] + expanded.conventions[3:] == ("none", 2, 0.1)
    assert expanded.class_reduction == "sum"
    assert expanded.weight is not None
    assert expanded.n_classes == 3


def test_refuses_a_pole_and_other_variables():
    with pytest.raises(ValueError, match=r"center is x = 0\.0, y = 0\.0, where log\(y\) - x / y"):
        TreeLoss(BAIKAL).expand(center=0.0)
    with pytest.raises(ValueError, match="a tree is expanded over"):
        expanded_theta(BAIKAL, form=Expansion(3, ("y", "x")))
    with pytest.raises(ValueError, match="not finite"):
        expanded_theta(tree_from_prefix(["sqrt", "-", "y", "1"]), center=(0.0, 1.0))
