"""Trees: what they may be, formulas, expansions, and the losses that they are."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from random_trees import random_trees
from torch import Tensor
from torch.nn import functional as F

from optuna_taylorglo import BaikalCMALoss, BaikalLoss, TaylorLoss, TreeLoss
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


def full_tree(depth: int) -> list[str]:
    """Prefix form of a tree that has two operands everywhere."""
    return ["+", *full_tree(depth - 1), *full_tree(depth - 1)] if depth else ["y"]


def test_prefix_form_and_back_through_json():
    for tree in random_trees(300):
        again = tree_from_prefix(json.loads(json.dumps(tree.to_prefix())))
        assert again == tree
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
]


@pytest.mark.parametrize(("content", "message"), WRONG)
def test_what_is_no_tree_is_refused(content, message):
    with pytest.raises(ValueError, match=message):
        tree_from_prefix(content)


def test_trees_have_limits():
    deepest, largest = (tree_from_prefix(p) for p in (["sqrt"] * MAX_DEPTH + ["y"], full_tree(7)))
    assert (deepest.depth, largest.size) == (MAX_DEPTH, MAX_SIZE)
    with pytest.raises(ValueError, match="the tree has 511 nodes"):
        Tree("+", (largest, largest))
    with pytest.raises(ValueError, match="takes 2 operands, not 1"):
        Tree("*", (largest,))
    with pytest.raises(ValueError, match="coefficients has 1 values; the tree takes 4"):
        check_coefficients(CROSS_ENTROPY_TREE, [1.0])


@pytest.mark.parametrize(
    ("prefix", "coefficients", "text"),
    [
        ("- log y / x y", None, "log(y) - x / y"),
        ("- log y / x y", BAIKAL_CMA_COEFFICIENTS, "2.728·(0.9863·log(1.535·y) - 1.816·x / y)"),
        ("- -1 -1", None, "-1 + 1"),
        ("+ 1 -1", [1, 0.5, 0.25], "0.5 - 0.25"),
        ("- x - x y", None, "x - (x - y)"),
        ("* / x y y", None, "x·y / y"),
        ("/ x * y y", None, "x / (y·y)"),
        ("/ x y", [1, 2, 0], "2·x / (y·0)"),
        ("* + x y -1", None, "-(x + y)"),
        ("square * -1 y", None, "y²"),
        ("square square y", None, "(y²)²"),
        ("square - x y", [1, 2, 1, 1], "4·(x - y)²"),
        ("sqrt - 1 y", None, "√(1 - y)"),
        ("/ -1 square y", None, "-1 / y²"),
        ("* x log y", [1, 1.00001, 1, 1], "x·log(y)"),
    ],
)
def test_formulas_have_the_brackets_that_they_need(prefix, coefficients, text):
    assert formula(tree_from_prefix(prefix.split()), coefficients) == text


@pytest.mark.parametrize("tuned", [False, True])
def test_a_formula_read_as_python_is_the_tree(tuned):
    """Brackets are where Python's own precedence needs them, so people can trust theirs."""
    generator = np.random.default_rng(0)
    x, y = torch.tensor(0.3).double(), torch.tensor(0.6).double()
    names = {"np": np, "x": np.float64(x), "y": np.float64(y), "log": np.log}
    for tree in random_trees(300, seed=1):
        coefficients = generator.normal(size=tree.size) if tuned else np.ones(tree.size)
        written = formula(tree, coefficients, digits=17).replace("·", "*").replace("√", "np.sqrt")
        with np.errstate(all="ignore"):
            try:
                found = eval(written.replace("²", "**2"), names)
            except ZeroDivisionError:
                found = np.nan  # Python's own numbers divide by nothing that is 0
        expected = tree_values(tree, x, y, coefficients=coefficients).item()
        if np.isfinite(expected):
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9, err_msg=written)


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


def test_expanding_a_loss_takes_its_settings_along_and_refuses_a_pole():
    loss = TreeLoss(BAIKAL, class_reduction="sum", weight=torch.ones(3), label_smoothing=0.1)
    loss.n_classes, loss.lr_factor = 3, 0.5
    expanded = loss.expand()
    assert (expanded.conventions, expanded.n_classes) == (loss.conventions, 3)
    assert expanded.lr_factor == 0.5
    for center in (0.0, -0.5, float("nan")):
        with pytest.raises(ValueError, match=r"center is x = 0\.0, y = .*, where log\(y\) - x / y"):
            loss.expand(center=center)
    with pytest.raises(ValueError, match="a tree is expanded over"):
        expanded_theta(BAIKAL, form=Expansion(3, ("y", "x")))


WEIGHT = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)


def value_and_gradient(loss: torch.nn.Module, logits: Tensor, target: Tensor) -> list[Tensor]:
    logits = logits.clone().requires_grad_()
    value = loss(logits, target)
    return [value.detach(), *torch.autograd.grad(value.sum(), logits)]


def baikal(x, y):
    return -(torch.log(y) - x / y).mean(dim=1)


def baikal_cma(x, y):
    c = BAIKAL_CMA_COEFFICIENTS
    return -(c[0] * (c[1] * torch.log(c[2] * y) - c[3] * (c[4] * x) / (c[5] * y))).mean(dim=1)


@pytest.mark.parametrize(
    ("loss_class", "formula"), [(BaikalLoss, baikal), (BaikalCMALoss, baikal_cma)]
)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_equals_the_published_formula(loss_class, formula, smoothing):
    logits, target = torch.randn(7, 5, dtype=torch.float64), torch.randint(0, 5, (7,))
    soft = torch.softmax(torch.randn(7, 5, dtype=torch.float64), dim=1)
    loss = loss_class(reduction="none", label_smoothing=smoothing)
    for given, x in ((target, F.one_hot(target, 5).double()), (soft, soft)):
        expected = formula((1 - smoothing) * x + smoothing / 5, torch.softmax(logits, dim=1))
        torch.testing.assert_close(loss(logits, given), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_a_polynomial_tree_is_the_taylor_loss(smoothing, weight):
    # Brier's xy - y², and x²y, with which it is not linear in x.
    brier = ["-", "*", "x", "y", "square", "y"]
    tree = tree_from_prefix(["+", *brier, "*", "square", "x", "y"])
    settings = {"label_smoothing": smoothing, "weight": weight}
    losses = TreeLoss(tree, **settings), TaylorLoss((0, 0, 0, -2, 0, 1, 0, 2), **settings)
    logits, soft = (torch.randn(7, 3, dtype=torch.float64).softmax(1) for _ in range(2))
    for target in (torch.randint(0, 3, (7,)), soft):
        found, expected = (value_and_gradient(loss, logits, target) for loss in losses)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_gradcheck_passes_on_random_trees():
    passed = 0
    for number, tree in enumerate(random_trees(200, seed=2)):
        generator = torch.Generator().manual_seed(number)
        logits = torch.randn(1, 3, generator=generator, dtype=torch.float64, requires_grad=True)
        target = torch.rand(1, 3, generator=generator, dtype=torch.float64)
        loss = TreeLoss(tree, np.random.default_rng(number).uniform(0.5, 2, tree.size))
        value, gradient = value_and_gradient(loss, logits.detach(), target)
        # Where it is smooth and finite, and central differences are not beneath rounding.
        if value.isfinite() and 1e-3 < gradient.abs().max() < 100:
            function = partial(loss, target=target)
            assert torch.autograd.gradcheck(function, logits, check_undefined_grad=False), tree
            passed += 1
            if passed == 40:
                return
    pytest.fail(f"only {passed} trees could be checked")


def test_extreme_logits_give_finite_losses_or_a_clean_end():
    """Never an exception, and what is not finite shows in a loss by the next step at the latest."""
    finite = 0
    for number, tree in enumerate(random_trees(400, seed=3)):
        generator = torch.Generator().manual_seed(number)
        spread = (10.0, 1e4, 1e30)[number % 3]
        logits = spread * torch.randn(4, 5, generator=generator)
        target = torch.randint(0, 5, (4,), generator=generator)
        value, gradient = value_and_gradient(TreeLoss(tree), logits, target)
        if value.isfinite() and not gradient.isfinite().all():
            assert not TreeLoss(tree)(logits - gradient, target).isfinite()
        finite += bool(value.isfinite())
    assert 100 < finite < 300


@pytest.mark.parametrize("prefix", ["/ y x", "log x", "sqrt - -1 y", "log - y 1", "/ 1 / 1 x"])
def test_what_has_no_value_is_not_finite_and_no_error(prefix):
    loss = TreeLoss(prefix.split())(torch.randn(3, 4, requires_grad=True), torch.tensor([0, 1, 2]))
    assert not loss.isfinite()
    loss.backward()


@pytest.mark.parametrize("prefix", ["- log y / x y", "* x sqrt y", "* x y"])
def test_a_target_of_no_probability_is_still_pulled_up(prefix):
    logits = torch.tensor([[-1e3, 1e3, 0.0]], dtype=torch.float64)
    value, gradient = value_and_gradient(TreeLoss(prefix.split()), logits, torch.tensor([0]))
    assert value.isfinite()
    assert gradient.isfinite().all()
    assert gradient[0, 0] < 0


@pytest.mark.parametrize(("prefix", "loss"), [("x", -1), ("1", -3), ("+ x 1", -4)])
def test_a_tree_without_outputs_teaches_nothing_and_is_no_error(prefix, loss):
    tree = TreeLoss(prefix.split(), class_reduction="sum")
    value, gradient = value_and_gradient(tree, torch.randn(2, 3), torch.tensor([0, 1]))
    assert value == loss
    assert gradient.eq(0).all()
