"""What losses do: described facts against brute force and published numbers; distances."""

import json

import numpy as np
import pytest
import torch

from optuna_taylorglo import BaikalCMALoss, BaikalLoss, TaylorLoss, TreeLoss, describe
from optuna_taylorglo.losses.describe import TargetCurve, logit_gradients, relative_distance
from optuna_taylorglo.losses.expansion import Expansion
from optuna_taylorglo.losses.tree import CROSS_ENTROPY_TREE

MNIST_THETA = (11.9039, -4.0240, 6.9796, 8.5834, -1.6677, 11.6064, 12.6684, -3.4674)
THETA = (0.1, 0.2, 0.3, -2.0, 0.5, 2.0, 0.7, 0.4)
BRIER = (0, 0, 0, -2, 0, 2, 0, 0)


@pytest.mark.parametrize("n_classes", [2, 10, 100])
@pytest.mark.parametrize(
    "loss",
    [
        TaylorLoss(np.linspace(-1, 2, 12), order=4),
        TaylorLoss(MNIST_THETA, folded=True, class_reduction="sum"),
        TaylorLoss(THETA, base="cross_entropy", log_scale=-0.4, smoothing=0.2),
        TreeLoss(["-", "log", "y", "/", "x", "y"]),
        TreeLoss(["*", "sqrt", "y", "-", "x", "y"]),
        TreeLoss(["x"]),
    ],
)
def test_the_curve_is_the_loss_itself_and_its_slope_the_derivative(loss, n_classes):
    loss.label_smoothing, loss.ignore_index = 0.1, 0  # which the curve leaves out
    curve = TargetCurve(loss, n_classes)
    loss.label_smoothing, loss.ignore_index, loss.reduction = 0.0, -100, "none"
    p, step = np.linspace(0.01, 0.99, 50), 1e-6
    y = np.stack([p, *[(1 - p) / (n_classes - 1)] * (n_classes - 1)], axis=1)
    expected = loss(torch.tensor(y).log(), torch.zeros(50).long())
    np.testing.assert_allclose(curve(p), expected, rtol=1e-9, atol=1e-9)
    difference = (curve(p + step) - curve(p - step)) / (2 * step)
    np.testing.assert_allclose(curve.slope(p), difference, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("loss", "n_classes", "minimum", "tolerance"),
    [
        (TaylorLoss(MNIST_THETA, folded=True), 2, 0.824, 1e-3),  # as the paper shows
        (TaylorLoss(MNIST_THETA), 2, 0.878, 1e-3),
        (BaikalLoss(), 2, 0.7071, 1e-4),
        (BaikalCMALoss(), 2, 0.7720, 1e-3),
        (TreeLoss(CROSS_ENTROPY_TREE), 10, 1, 0),
        (TaylorLoss([0.0] * 8, base="cross_entropy", smoothing=0.3), 10, 1 - 0.3 * 0.9, 1e-9),
        (TaylorLoss(THETA, base="cross_entropy"), 10, 1, 0),
        # A polynomial as a tree and as a Taylor loss: xy - y².
        (TreeLoss(["-", "*", "x", "y", "square", "y"]), 10, 11 / 20, 1e-9),
        (TaylorLoss((0, 0, 0, -2, 0, 1, 0, 0)), 10, 11 / 20, 1e-9),
    ],
)
def test_minima_are_the_published_and_derived_ones(loss, n_classes, minimum, tolerance):
    assert TargetCurve(loss, n_classes).minimum() == pytest.approx(minimum, abs=tolerance)


def test_facts_of_the_published_loss():
    text, facts = describe(TaylorLoss(MNIST_THETA, folded=True, class_reduction="sum"), 10)
    assert facts["gradient_scale"] == pytest.approx(19.5, abs=0.05)
    assert facts["canonical"]["beta"] == pytest.approx(2 * 12.6684)
    assert facts["minimum_binary"] == pytest.approx(0.824, abs=0.001)
    assert "19.5 times cross-entropy's" in text
    assert "0.824 with two classes" in text


@pytest.mark.parametrize(
    ("loss", "name", "cosine"),
    [
        # Σ (y - x)² is the Taylor loss with f = -y² + 2xy - x²: θ3 = -2, θ5 = 2.
        (TaylorLoss(BRIER, class_reduction="sum"), "squared error on probabilities (Brier)", 1),
        (TaylorLoss((0, 0, 0, 0, 0, 1, 0, 0)), "mean absolute error on probabilities", 1),
        (TaylorLoss.from_cross_entropy(order=9, center=0.6), "cross-entropy", 0.99),
        (TaylorLoss([0.0] * 8, base="cross_entropy"), "cross-entropy", 1),
        (TreeLoss(CROSS_ENTROPY_TREE, class_reduction="sum"), "cross-entropy", 1),
        (BaikalLoss(), "Baikal", 1),
    ],
)
def test_known_losses_are_recognized(loss, name, cosine):
    _, facts = describe(loss, 10)
    assert facts["nearest_known_loss"] == name
    assert cosine - 1e-9 < facts["nearest_known_loss_cosine"] < 1 + 1e-9
    if name == "cross-entropy" and cosine == 1:
        assert facts["gradient_scale"] == pytest.approx(1, abs=1e-12)
        assert facts["minimum"] == 1


def anchored(alpha, **anchor):
    theta = (0.0, 0.0, 0.0, 0.0, 0.0, alpha, 0.0, 0.0)
    return TaylorLoss(theta, base="cross_entropy", class_reduction="sum", **anchor)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (TreeLoss(["x"]), ["cannot begin to learn: trainability 0 is not above 0"]),
        (TreeLoss(["sqrt", "-", "-1", "y"]), ["cannot begin to", "not finite everywhere"]),
        (anchored(8.0, log_scale=np.log(0.1)), ["L = 0.1 × (cross-entropy - f)", "is 0.64 times"]),
        (anchored(0.0, smoothing=0.3), ["Beyond a probability of 0.73", "label smoothing 0.3 - f"]),
    ],
)
def test_words(loss, words):
    text, facts = describe(loss, 10)
    assert all(each in text for each in words)
    assert facts["can_begin_to_learn"] is ("cannot" not in text)
    if "not finite" in text:
        assert facts["minimum"] is None
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    assert "unlikely" not in str(describe(anchored(0.0), 100))


def test_the_number_of_classes_is_the_loss_s_own_unless_given():
    loss = TaylorLoss(BRIER)
    with pytest.raises(ValueError, match=r"n_classes is not given.*loss\.n_classes = 10"):
        describe(loss)
    loss.n_classes = 3
    assert describe(loss) == describe(loss, 3)
    assert describe(loss, n_classes=10).facts["n_classes"] == 10
    assert loss.n_classes == 3
    assert len(logit_gradients(loss, 10)) == len(logit_gradients(TaylorLoss(BRIER), 10))


@pytest.mark.parametrize(
    "loss",
    [
        TaylorLoss(BRIER),
        anchored(8.0),
        TaylorLoss([0.1] * 19, variables=("x", "y", "z")),
        BaikalLoss(),
        TreeLoss(["sqrt", "-", "-1", "y"]),
    ],
)
def test_the_learning_rate_where_the_scale_does_not_act(loss):
    assert describe(loss, 10).facts["lr_factor"] is None
    loss.lr_factor = 0.3187
    text, facts = describe(loss, 10)
    assert "use it with 0.319 times the learning rate of its recipe" in text
    assert "acts like" not in text
    assert facts["lr_factor"] == 0.3187


def test_a_loss_over_logits_gets_what_has_a_meaning_and_none_for_the_rest():
    loss = TaylorLoss([0.1] * 19, variables=("x", "y", "z"))
    _, facts = describe(loss, 10)
    assert facts["minimum"] is facts["gradient_scale"] is None
    assert isinstance(facts["trainability"], float)
    with pytest.raises(ValueError, match="raw logits"):
        TargetCurve(loss, 10)


def in_time(at_progress):
    """A loss over (x, y, t) with 1 for the term xyt or 0, seen at progress 0.25."""
    form = Expansion(3, ("x", "y", "t"))
    theta = [0.0] * 3 + [at_progress * (alpha == (1, 1, 1)) for alpha in form.terms]
    loss = TaylorLoss(theta, variables=form.variables)
    loss.progress = 0.25
    return loss


def scaled(factor):
    return TaylorLoss((*THETA[:2], *(factor * x for x in THETA[2:])))


@pytest.mark.parametrize(
    ("one", "other", "distance"),
    [
        # Probabilities sum to 1, so a term that is linear in y alone is a constant.
        (TaylorLoss(THETA), TaylorLoss((*THETA[:2], 50.0, *THETA[3:])), 0),
        (TaylorLoss(THETA, class_reduction="sum"), scaled(10), 0),
        # f = xy - y²; predictions below 1e-7 are continued differently.
        (TreeLoss(["-", "*", "x", "y", "square", "y"]), TaylorLoss((0, 0, 0, -2, 0, 1, 0, 0)), 0),
        (TaylorLoss(THETA), scaled(1.3), 0.3 / 1.3),
        (in_time(0.0), in_time(1.0), 1),
        (TaylorLoss([0.0] * 8), TaylorLoss([0.0] * 8), 0),
        (TaylorLoss([0.0] * 8), TaylorLoss(THETA), 1),
    ],
)
def test_distance_is_that_of_functions(one, other, distance):
    gradients = [logit_gradients(loss, 10) for loss in (one, other)]
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert relative_distance(*gradients) == pytest.approx(distance, abs=1e-6)
