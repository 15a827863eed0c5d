"""Trees as losses: equal to the known ones, cross-entropy's conventions, safe at the extremes."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from random_trees import random_trees
from torch import Tensor
from torch.nn import functional as F

from optuna_taylorglo import BaikalCMALoss, BaikalLoss, TaylorLoss, TreeLoss
from optuna_taylorglo.losses.tree import (
    BAIKAL,
    BAIKAL_CMA_COEFFICIENTS,
    tree_from_prefix,
)

WEIGHT = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)


def value_and_gradient(loss: torch.nn.Module, logits: Tensor, target: Tensor) -> list[Tensor]:
    logits = logits.clone().requires_grad_()
    value = loss(logits, target)
    return [value.detach(), *torch.autograd.grad(value.sum(), logits)]


def assert_same(one: torch.nn.Module, other: torch.nn.Module, logits: Tensor, target: Tensor):
    pairs = zip(
        value_and_gradient(one, logits, target),
        value_and_gradient(other, logits, target),
        strict=True,
    )
    for ours, theirs in pairs:
        scale = theirs.abs().max().item()
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12 * scale)


C = BAIKAL_CMA_COEFFICIENTS


def baikal(x, y):
    return -(torch.log(y) - x / y).mean(dim=1)


def baikal_cma(x, y):
    c = C
    return -(c[0] * (c[1] * torch.log(c[2] * y) - c[3] * (c[4] * x) / (c[5] * y))).mean(dim=1)


PAIRS = pytest.mark.parametrize(
    ("loss_class", "formula"), [(BaikalLoss, baikal), (BaikalCMALoss, baikal_cma)]
)


@PAIRS
def test_equals_the_published_formula_on_hard_soft_and_smoothed_targets(loss_class, formula):
    logits = torch.randn(7, 5, dtype=torch.float64)
    target = torch.randint(0, 5, (7,))
    one_hot = F.one_hot(target, 5).double()
    soft = torch.softmax(torch.randn(7, 5, dtype=torch.float64), dim=1)
    y = torch.softmax(logits, dim=1)
    for given, x, smoothing in (
        (target, one_hot, 0.0),
        (soft, soft, 0.0),
        (target, 0.9 * one_hot + 0.1 / 5, 0.1),
        (soft, 0.9 * soft + 0.1 / 5, 0.1),
    ):
        loss = loss_class(reduction="none", label_smoothing=smoothing)
        torch.testing.assert_close(loss(logits, given), formula(x, y), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("loss_class", "minimum", "ratio"),
    [(BaikalLoss, 0.7071, 1), (BaikalCMALoss, 0.7720, C[3] * C[4] / C[5] / C[1])],
)
def test_the_binary_minimum_lies_below_one(loss_class, minimum, ratio):
    # Setting the derivative to 0 gives 2 p² + (r - 1) p - r = 0 with r the ratio b / a.
    closed_form = (1 - ratio + math.sqrt((ratio - 1) ** 2 + 8 * ratio)) / 4
    p = torch.linspace(0.001, 0.999, 99_801, dtype=torch.float64)
    logits = torch.stack([torch.log(p), torch.log(1 - p)], dim=1)
    losses = loss_class(reduction="none")(logits, torch.zeros(len(p), dtype=torch.int64))
    found = p[losses.argmin()].item()
    assert found == pytest.approx(minimum, abs=1e-3)
    assert found == pytest.approx(closed_form, abs=1e-4)


@PAIRS
@pytest.mark.parametrize("shape", [(3,), (4, 3), (4, 3, 2, 2)])
def test_soft_targets_count_with_the_mean_of_the_weights_under_them(loss_class, formula, shape):
    logits, weight = torch.randn(shape, dtype=torch.float64), torch.tensor([0.5, 1.0, 2.0]).double()
    axis = min(1, len(shape) - 1)
    x = torch.softmax(torch.randn(shape, dtype=torch.float64), dim=axis)
    rows, labels = (v.movedim(axis, -1).reshape(-1, 3) for v in (logits, x))
    losses = formula(labels, torch.softmax(rows, dim=1)) * (labels @ weight)
    torch.testing.assert_close(loss_class(weight=weight)(logits, x), losses.mean())
    torch.testing.assert_close(loss_class(weight=weight, reduction="sum")(logits, x), losses.sum())


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_a_polynomial_tree_is_the_taylor_loss(smoothing, weight):
    # Brier's xy - y², and x²y, with which it is not linear in x.
    brier = ["-", "*", "x", "y", "square", "y"]
    tree = tree_from_prefix(["+", *brier, "*", "square", "x", "y"])
    settings = {"label_smoothing": smoothing, "weight": weight}
    taylor = TaylorLoss((0, 0, 0, -2, 0, 1, 0, 2), **settings).double()
    logits = torch.randn(7, 3, dtype=torch.float64)
    assert_same(TreeLoss(tree, **settings), taylor, logits, torch.randint(0, 3, (7,)))
    soft = torch.softmax(torch.randn(7, 3, dtype=torch.float64), dim=1)
    assert_same(TreeLoss(tree, **settings), taylor, logits, soft)


def test_gradcheck_passes_on_random_trees():
    passed = 0
    for number, tree in enumerate(random_trees(400, seed=2)):
        generator = torch.Generator().manual_seed(number)
        logits = torch.randn(1, 3, generator=generator, dtype=torch.float64, requires_grad=True)
        target = torch.rand(1, 3, generator=generator, dtype=torch.float64)
        loss = TreeLoss(tree, np.random.default_rng(number).uniform(0.5, 2, tree.size))
        value, gradient = value_and_gradient(loss, logits.detach(), target)
        # Where it is smooth and finite, and central differences are not beneath rounding.
        if value.isfinite() and 1e-3 < gradient.abs().max() < 100:
            assert torch.autograd.gradcheck(
                lambda z, loss=loss, target=target: loss(z, target),
                logits,
                check_undefined_grad=False,
            ), tree
            passed += 1
            if passed == 100:
                return
    pytest.fail(f"only {passed} trees could be checked")


def test_extreme_logits_give_finite_losses_or_a_clean_end():
    """Never an exception, and what is not finite shows in a loss by the next step at the latest."""
    outcomes: Counter[str] = Counter()
    for number, tree in enumerate(random_trees(1000, seed=3)):
        generator = torch.Generator().manual_seed(number)
        spread = (10.0, 1e4, 1e30)[number % 3]
        weights = (spread * torch.randn(4, 5, generator=generator)).requires_grad_()
        target = torch.randint(0, 5, (4,), generator=generator)
        loss = TreeLoss(tree)
        value = loss(weights, target)
        value.backward()
        assert weights.grad is not None
        if not value.isfinite():
            outcomes["not finite"] += 1
        elif weights.grad.isfinite().all():
            outcomes["finite"] += 1
        else:
            outcomes["gradient beyond float32"] += 1
            assert not loss(weights.detach() - weights.grad, target).isfinite()
    assert outcomes["finite"] > 250
    assert outcomes["not finite"] > 250
    assert outcomes["gradient beyond float32"] < 50


@pytest.mark.parametrize(
    "prefix",
    [
        ["/", "y", "x"],  # a quotient by 0
        ["log", "x"],
        ["sqrt", "-", "-1", "y"],
        ["log", "-", "y", "1"],
        ["/", "1", "/", "1", "x"],  # 1/∞ hides in a value of 0
    ],
)
def test_what_has_no_value_is_not_finite_and_no_error(prefix):
    loss = TreeLoss(prefix)(torch.randn(3, 4, requires_grad=True), torch.tensor([0, 1, 2]))
    assert not loss.isfinite()
    loss.backward()


def test_a_target_of_no_probability_is_still_pulled_up():
    for prefix in (BAIKAL, ["*", "x", "sqrt", "y"], ["*", "x", "y"]):
        logits = torch.tensor([[-1e3, 1e3, 0.0]], dtype=torch.float64)
        value, gradient = value_and_gradient(TreeLoss(prefix), logits, torch.tensor([0]))
        assert value.isfinite()
        assert gradient.isfinite().all()
        assert gradient[0, 0] < 0


@pytest.mark.parametrize("prefix", [["x"], ["1"], ["+", "x", "1"]])
def test_a_tree_without_outputs_teaches_nothing_and_is_no_error(prefix):
    value, gradient = value_and_gradient(
        TreeLoss(prefix, class_reduction="sum"), torch.randn(2, 3), torch.tensor([0, 1])
    )
    assert value == -{"x": 1, "1": 3, "+": 4}[prefix[0]]
    assert gradient.eq(0).all()
