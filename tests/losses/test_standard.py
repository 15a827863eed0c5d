"""Standard losses: published formulas, limits, cross-entropy's conventions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from optuna_taylorglo import (
    FocalLoss,
    GeneralizedCrossEntropyLoss,
    NormalizedReverseCrossEntropyLoss,
    PolyLoss,
    SymmetricCrossEntropyLoss,
    TaylorCrossEntropyLoss,
)

LOSSES: list[tuple[type[nn.Module], dict[str, Any], Callable[[Tensor], Tensor]]] = [
    (FocalLoss, {"gamma": 2.0}, lambda y: -((1 - y) ** 2) * y.log()),
    (FocalLoss, {"gamma": 0.5}, lambda y: -((1 - y) ** 0.5) * y.log()),
    (GeneralizedCrossEntropyLoss, {"q": 0.7}, lambda y: (1 - y**0.7) / 0.7),
    (PolyLoss, {"epsilon": 17.0}, lambda y: -y.log() + 17 * (1 - y)),
    (
        SymmetricCrossEntropyLoss,
        {"alpha": 0.3, "beta": 2.0},
        lambda y: -0.3 * y.log() + 2 * 4 * (1 - y),
    ),
    (
        TaylorCrossEntropyLoss,
        {"order": 3},
        lambda y: (1 - y) + (1 - y) ** 2 / 2 + (1 - y) ** 3 / 3,
    ),
    (
        NormalizedReverseCrossEntropyLoss,
        {"alpha": 5.0, "beta": 0.5},
        lambda y: 5 * y.log() / y.log().sum(1, keepdim=True) + 0.5 * 4 * (1 - y),
    ),
]
EACH = pytest.mark.parametrize(("loss_class", "settings", "formula"), LOSSES)

N_CLASSES = 5


def batch(*spatial: int) -> tuple[Tensor, Tensor, Tensor]:
    """Logits (7, 5, …), class indices, and class probabilities."""
    generator = torch.Generator().manual_seed(0)
    shape = (7, N_CLASSES, *spatial)
    logits = torch.randn(shape, generator=generator, dtype=torch.float64)
    target = torch.randint(0, N_CLASSES, (7, *spatial), generator=generator)
    soft = torch.softmax(torch.randn(shape, generator=generator, dtype=torch.float64), dim=1)
    return logits, target, soft


@EACH
def test_hard_and_soft_targets_cost_what_the_formula_says(
    loss_class: Any, settings: dict[str, Any], formula: Callable[[Tensor], Tensor]
) -> None:
    logits, target, soft = batch()
    costs = formula(torch.softmax(logits, dim=1))
    loss = loss_class(**settings, reduction="none")
    torch.testing.assert_close(loss(logits, target), costs[torch.arange(7), target])
    torch.testing.assert_close(loss(logits, soft), (soft * costs).sum(1))
    one_hot = F.one_hot(target, N_CLASSES).double()
    torch.testing.assert_close(loss(logits, one_hot), loss(logits, target))


@EACH
def test_gradients_are_those_of_the_formula(
    loss_class: Any, settings: dict[str, Any], formula: Callable[[Tensor], Tensor]
) -> None:
    logits, target, soft = batch()
    logits.requires_grad_()
    loss = loss_class(**settings)
    assert torch.autograd.gradcheck(lambda z: loss(z, target), logits)
    assert torch.autograd.gradcheck(lambda z: loss(z, soft), logits)


@EACH
@pytest.mark.parametrize("distance", [0.0, 30.0, 1e4])
def test_sure_predictions_right_or_wrong_stay_finite_in_single_precision(
    loss_class: Any, settings: dict[str, Any], formula: Callable[[Tensor], Tensor], distance: float
) -> None:
    logits = torch.tensor([[distance, -distance, 0.0], [-distance, distance, 0.0]])
    logits.requires_grad_()
    losses = loss_class(**settings, reduction="none")(logits, torch.tensor([0, 0]))
    losses.sum().backward()
    assert torch.isfinite(losses).all()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    assert losses[1] >= losses[0] >= 0


@pytest.mark.parametrize(
    ("loss", "equal"),
    [
        (FocalLoss(0.0), nn.CrossEntropyLoss()),
        (GeneralizedCrossEntropyLoss(1e-9), nn.CrossEntropyLoss()),
        (PolyLoss(0.0), nn.CrossEntropyLoss()),
        (SymmetricCrossEntropyLoss(1.0, 0.0), nn.CrossEntropyLoss()),
        (TaylorCrossEntropyLoss(400), nn.CrossEntropyLoss()),
        (GeneralizedCrossEntropyLoss(1.0), TaylorCrossEntropyLoss(1)),
        (PolyLoss(8.0), SymmetricCrossEntropyLoss(1.0, 2.0)),
    ],
)
def test_limits_and_kinships(loss: nn.Module, equal: nn.Module) -> None:
    logits, target, _ = batch()
    torch.testing.assert_close(loss(logits, target), equal(logits, target), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: FocalLoss(-1.0), "gamma must be at least 0, not -1.0"),
        (lambda: GeneralizedCrossEntropyLoss(0.0), r"q must be in \(0, 1\], not 0.0"),
        (lambda: TaylorCrossEntropyLoss(0), "order must be at least 1, not 0"),
        (lambda: SymmetricCrossEntropyLoss(beta=-2.0), "beta must be at least 0, not -2.0"),
        (lambda: PolyLoss(reduction="all"), "reduction must be one of mean, sum, none"),
    ],
)
def test_wrong_settings_are_named(build: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()
