"""Losses that differ as functions are told apart, and others are not, whatever their parameters."""

import math

import pytest
import torch

from optuna_taylorglo.losses.load import EvolvedLoss, logit_gradients, relative_distance
from optuna_taylorglo.losses.taylor import TaylorLoss
from optuna_taylorglo.losses.tree_loss import TreeLoss

THETA = (0.1, 0.2, 0.3, -2.0, 0.5, 2.0, 0.7, 0.4)


def distance(a: EvolvedLoss, b: EvolvedLoss, n_classes: int = 10) -> float:
    return relative_distance(logit_gradients(a, n_classes), logit_gradients(b, n_classes))


def test_the_dead_parameter_makes_no_difference() -> None:
    """Probabilities sum to 1, so a term that is linear in y alone is a constant."""
    other = (*THETA[:2], 50.0, *THETA[3:])
    assert distance(TaylorLoss(THETA), TaylorLoss(other)) < 1e-12


def test_conventions_of_the_same_function_make_no_difference() -> None:
    mean = TaylorLoss((*THETA[:2], *(10 * x for x in THETA[2:])), class_reduction="mean")
    assert distance(TaylorLoss(THETA, class_reduction="sum"), mean) < 1e-6


def test_a_tree_and_a_taylor_loss_of_the_same_function_make_no_difference() -> None:
    # f = xy - y²; predictions below 1e-7 are continued differently, in 1e-7 at most.
    tree = TreeLoss(["-", "*", "x", "y", "square", "y"])
    assert distance(tree, TaylorLoss((0, 0, 0, -2, 0, 1, 0, 0))) < 1e-6
    assert distance(tree, TreeLoss(["*", "x", "log", "y"])) > 0.1


@pytest.mark.parametrize("share", [0.02, 0.3])
def test_scale_is_a_difference_of_its_own_size(share: float) -> None:
    scaled = (*THETA[:2], *((1 + share) * x for x in THETA[2:]))
    expected = share / (1 + share)
    assert distance(TaylorLoss(THETA), TaylorLoss(scaled)) == pytest.approx(expected)


def test_the_loss_stays_as_it_is() -> None:
    loss = TaylorLoss([0.1] * 13, variables=("x", "y", "t"))
    loss.progress = 0.25
    logit_gradients(loss, 3)
    assert float(loss.progress) == 0.25
    assert loss.progress.dtype == torch.float32


def test_losses_that_differ_later_in_training_are_different() -> None:
    form = TaylorLoss([0.0] * 13, variables=("x", "y", "t")).form
    with_t = next(i for i, term in enumerate(form.terms) if term == (1, 1, 1)) + 3
    theta = [0.0] * 13
    theta[with_t] = 1.0
    still = TaylorLoss([0.0] * 13, variables=("x", "y", "t"))
    moving = TaylorLoss(theta, variables=("x", "y", "t"))
    assert distance(still, moving) == 1.0


@pytest.mark.parametrize("n_classes", [2, 100])
def test_gradients_are_finite_for_any_number_of_classes(n_classes: int) -> None:
    gradients = logit_gradients(TaylorLoss(THETA), n_classes)
    assert gradients.dtype == torch.float64
    assert torch.isfinite(gradients).all()
    assert gradients.abs().max() > 0


def test_two_losses_without_gradient_are_the_same() -> None:
    assert distance(TaylorLoss([0.0] * 8), TaylorLoss([0.0] * 8)) == 0.0
    assert math.isclose(distance(TaylorLoss([0.0] * 8), TaylorLoss(THETA)), 1.0)
