"""Trees expanded as Taylor losses: against derivatives by hand and by autograd, and exactness."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from random_trees import random_trees

from optuna_taylorglo import TaylorLoss, TreeLoss
from optuna_taylorglo.losses.expansion import Expansion
from optuna_taylorglo.losses.tree import (
    BAIKAL,
    BAIKAL_CMA_COEFFICIENTS,
    CROSS_ENTROPY_TREE,
    expanded_theta,
    tree_from_prefix,
)
from optuna_taylorglo.losses.tree_loss import tree_values


def test_baikal_by_hand():
    a, b = 0.3, 0.4
    # f = log y - x/y: y, y², y³, xy, xy², x²y.
    derivatives = (
        1 / b + a / b**2,
        -1 / b**2 - 2 * a / b**3,
        2 / b**3 + 6 * a / b**4,
        1 / b**2,
        -2 / b**3,
        0.0,
    )
    theta = expanded_theta(BAIKAL, center=(a, b))
    assert theta == pytest.approx((a, b, *derivatives), rel=1e-13)
    folded = expanded_theta(BAIKAL, form=Expansion(folded=True), center=(a, b))
    factorials = (1, 2, 6, 1, 2, 2)
    expected = [d / f for d, f in zip(derivatives, factorials, strict=True)]
    assert folded == pytest.approx((a, b, *expected), rel=1e-13)


def test_coefficients_of_the_nodes_are_in_it():
    c, a, b = BAIKAL_CMA_COEFFICIENTS, 1.0, 0.5
    ratio = c[0] * c[3] * c[4] / c[5]
    theta = expanded_theta(BAIKAL, c, center=(a, b))
    assert theta[2] == pytest.approx(c[0] * c[1] / b + ratio * a / b**2, rel=1e-13)
    assert theta[5] == pytest.approx(ratio / b**2, rel=1e-13)


@pytest.mark.parametrize("order", [1, 2, 3, 5])
@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("center", [0.5, 0.2, (0.7, 0.3)])
def test_cross_entropy_is_what_its_own_constructor_gives(order, folded, center):
    ours = TreeLoss(CROSS_ENTROPY_TREE, class_reduction="sum").expand(order, center, folded=folded)
    theirs = TaylorLoss.from_cross_entropy(order, center, folded=folded)
    assert (ours.form, ours.class_reduction) == (theirs.form, theirs.class_reduction)
    assert ours.theta == pytest.approx(theirs.theta, rel=1e-13)


def test_random_trees_have_the_derivatives_that_autograd_finds():
    form, checked = Expansion(4), 0
    for number, tree in enumerate(random_trees(300, seed=4, max_depth=4)):
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
        np.testing.assert_allclose(theta[2:], expected, rtol=1e-8, atol=1e-8)
        checked += 1
    assert checked > 100


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


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_near_the_center_the_error_is_of_the_next_order(order):
    a, b = 1.0, 0.4
    form = Expansion(order)
    expanded = form.coefficients(expanded_theta(BAIKAL, form=form, center=(a, b)))

    def error(step: float) -> float:
        whole = [math.log(y) - (a + step) / y for y in (b + step, b)]
        polynomial = np.polynomial.polynomial.polyval2d
        points = [polynomial(a + step, y, expanded) for y in (b + step, b)]
        # Differences over y, because terms in x alone are trimmed.
        return abs((whole[0] - whole[1]) - (points[0] - points[1]))

    assert error(0.02) / error(0.01) == pytest.approx(2 ** (order + 1), rel=0.25)


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
