"""describe: the facts it states, against brute force and published numbers."""

import json

import numpy as np
import pytest
import torch

from optuna_taylorglo import TaylorLoss, TreeLoss, describe
from optuna_taylorglo.losses.describe import minimum_on_target, target_curve
from optuna_taylorglo.losses.tree import BAIKAL, BAIKAL_CMA_COEFFICIENTS, CROSS_ENTROPY_TREE

MNIST_THETA = (11.9039, -4.0240, 6.9796, 8.5834, -1.6677, 11.6064, 12.6684, -3.4674)


def loss_along_p(loss, p, n_classes):
    """The loss itself where the target has probability p and the others share the rest."""
    logits = torch.log(torch.cat([p, ((1 - p) / (n_classes - 1)).expand(-1, n_classes - 1)], dim=1))
    loss.reduction = "none"
    return loss(logits, torch.zeros(len(p), dtype=torch.int64))


@pytest.mark.parametrize("class_reduction", ["mean", "sum"])
@pytest.mark.parametrize("n_classes", [2, 3, 10, 100])
def test_target_curve_is_the_loss_itself(n_classes, class_reduction):
    theta = torch.randn(12, dtype=torch.float64).tolist()
    loss = TaylorLoss(theta, order=4, class_reduction=class_reduction)
    p = torch.linspace(0.01, 0.99, 50, dtype=torch.float64).unsqueeze(1)
    np.testing.assert_allclose(
        target_curve(loss, n_classes)(p.squeeze(1).numpy()),
        loss_along_p(loss, p, n_classes),
        rtol=1e-9,
        atol=1e-9,
    )


def test_published_loss_is_lowest_where_the_paper_says():
    folded = TaylorLoss(MNIST_THETA, folded=True)
    assert minimum_on_target(folded, 2) == pytest.approx(0.824, abs=0.001)
    assert minimum_on_target(TaylorLoss(MNIST_THETA), 2) == pytest.approx(0.878, abs=0.001)


def test_minimum_is_global_over_the_whole_interval():
    for seed in range(50):
        torch.manual_seed(seed)
        loss = TaylorLoss(torch.randn(8, dtype=torch.float64) * 1.2)
        grid = np.linspace(0, 1, 2001)
        lowest = target_curve(loss, 10)(grid).min()
        assert target_curve(loss, 10)(minimum_on_target(loss, 10)) <= lowest + 1e-12


def test_facts_of_the_published_loss():
    loss = TaylorLoss(MNIST_THETA, folded=True, class_reduction="sum")
    text, facts = describe(loss, 10)
    assert facts["can_begin_to_learn"]
    assert facts["gradient_scale"] == pytest.approx(19.5, abs=0.05)
    assert facts["canonical"]["beta"] == pytest.approx(2 * 12.6684)
    assert facts["minimum_binary"] == pytest.approx(0.824, abs=0.001)
    assert "19.5 times cross-entropy's" in text
    assert "0.824 with two classes" in text
    assert json.loads(json.dumps(facts)) == facts


def test_known_losses_are_recognized():
    # Σ (y - x)² is the Taylor loss with f = -y² + 2xy - x²: θ3 = -2, θ5 = 2.
    brier = TaylorLoss((0, 0, 0, -2, 0, 2, 0, 0), class_reduction="sum")
    _, facts = describe(brier, 10)
    assert facts["nearest_known_loss"].startswith("squared error")
    assert facts["nearest_known_loss_cosine"] == pytest.approx(1, abs=1e-9)
    assert facts["minimum"] == 1
    _, facts = describe(TaylorLoss.from_cross_entropy(order=9, center=0.6), 10)
    assert facts["nearest_known_loss"] == "cross-entropy"
    assert facts["nearest_known_loss_cosine"] > 0.99
    # x y alone: the mean absolute error up to a constant.
    _, facts = describe(TaylorLoss((0, 0, 0, 0, 0, 1, 0, 0)), 10)
    assert facts["nearest_known_loss"].startswith("mean absolute error")


def test_says_so_when_a_loss_cannot_learn():
    text, facts = describe(TaylorLoss((0, 0, 0, 0, 0, -1, 0, 0)), 10)
    assert not facts["can_begin_to_learn"]
    assert "cannot begin to learn" in text


def test_a_loss_over_logits_gets_what_has_a_meaning_and_none_for_the_rest():
    loss = TaylorLoss([0.1] * 19, variables=("x", "y", "z"))
    _, facts = describe(loss, 10)
    assert facts["minimum"] is None
    assert facts["gradient_scale"] is None
    assert isinstance(facts["trainability"], float)
    with pytest.raises(ValueError, match="raw logits"):
        target_curve(loss, 10)


def test_refuses_a_senseless_number_of_classes():
    with pytest.raises(ValueError, match="n_classes must be an integer of at least 2, not 1"):
        describe(TaylorLoss(MNIST_THETA), 1)


@pytest.mark.parametrize("n_classes", [2, 10])
@pytest.mark.parametrize(
    "prefix", [["-", "log", "y", "/", "x", "y"], ["*", "sqrt", "y", "-", "x", "y"], ["x"]]
)
def test_the_curve_of_a_tree_is_the_loss_itself_and_its_slope_the_derivative(prefix, n_classes):
    loss = TreeLoss(prefix)
    p = torch.linspace(0.01, 0.99, 50, dtype=torch.float64)
    curve = target_curve(loss, n_classes)
    expected = loss_along_p(loss, p.unsqueeze(1), n_classes)
    np.testing.assert_allclose(curve(p.numpy()), expected, rtol=1e-9, atol=1e-9)
    step = 1e-6
    difference = (curve(p.numpy() + step) - curve(p.numpy() - step)) / (2 * step)
    np.testing.assert_allclose(curve.slope(p.numpy()), difference, rtol=1e-4, atol=1e-5)


def test_trees_are_lowest_where_published_and_closed_forms_say():
    assert minimum_on_target(TreeLoss(BAIKAL), 2) == pytest.approx(0.7071, abs=1e-4)
    baikal_cma = TreeLoss(BAIKAL, BAIKAL_CMA_COEFFICIENTS)
    assert minimum_on_target(baikal_cma, 2) == pytest.approx(0.7720, abs=1e-3)
    assert minimum_on_target(TreeLoss(CROSS_ENTROPY_TREE), 10) == 1
    # A polynomial as a tree and as a Taylor loss: xy - y².
    tree = TreeLoss(["-", "*", "x", "y", "square", "y"])
    taylor = TaylorLoss((0, 0, 0, -2, 0, 1, 0, 0))
    for n in (2, 10):
        assert minimum_on_target(tree, n) == pytest.approx(minimum_on_target(taylor, n), abs=1e-9)


def test_facts_of_trees():
    text, facts = describe(TreeLoss(BAIKAL), 10)
    assert "f = log(y) - x / y" in text
    assert "Its first gradient is 1 times cross-entropy's" in text
    assert facts["tree"] == BAIKAL.to_prefix()
    assert facts["nearest_known_loss"] == "Baikal"
    assert facts["nearest_known_loss_cosine"] == pytest.approx(1, abs=1e-9)
    assert json.loads(json.dumps(facts)) == facts
    _, facts = describe(TreeLoss(CROSS_ENTROPY_TREE, class_reduction="sum"), 10)
    assert facts["nearest_known_loss"] == "cross-entropy"
    assert facts["gradient_scale"] == pytest.approx(1, abs=1e-12)
    assert facts["minimum"] == 1


def test_a_polynomial_tree_is_described_as_the_taylor_loss_is():
    tree, taylor = TreeLoss(["*", "x", "y"]), TaylorLoss((0, 0, 0, 0, 0, 1, 0, 0))
    one, other = describe(tree, 10).facts, describe(taylor, 10).facts
    for name in ("trainability", "gradient_scale", "minimum", "nearest_known_loss_cosine"):
        assert one[name] == pytest.approx(other[name], abs=1e-9)


@pytest.mark.parametrize("prefix", [["/", "y", "x"], ["sqrt", "-", "-1", "y"]])
def test_says_so_when_a_tree_is_not_finite(prefix):
    text, facts = describe(TreeLoss(prefix), 10)
    assert "cannot begin to learn" in text
    assert "It is not finite everywhere" in text
    assert facts["minimum"] is None
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
