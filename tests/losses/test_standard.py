"""Standard losses: published formulas, limits, cross-entropy's conventions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from optuna_taylorglo import (
    FocalLoss,
    GeneralizedCrossEntropyLoss,
    NormalizedReverseCrossEntropyLoss,
    PolyLoss,
    SymmetricCrossEntropyLoss,
    TaylorCrossEntropyLoss,
)

LOSSES: list[tuple[nn.Module, Callable[[Tensor], Tensor]]] = [
    (FocalLoss(2.0), lambda y: -((1 - y) ** 2) * y.log()),
    (FocalLoss(0.5), lambda y: -((1 - y) ** 0.5) * y.log()),
    (GeneralizedCrossEntropyLoss(0.7), lambda y: (1 - y**0.7) / 0.7),
    (PolyLoss(17.0), lambda y: -y.log() + 17 * (1 - y)),
    (SymmetricCrossEntropyLoss(0.3, 2.0), lambda y: -0.3 * y.log() + 2 * 4 * (1 - y)),
    (TaylorCrossEntropyLoss(3), lambda y: (1 - y) + (1 - y) ** 2 / 2 + (1 - y) ** 3 / 3),
    (
        NormalizedReverseCrossEntropyLoss(5.0, 0.5),
        lambda y: 5 * y.log() / y.log().sum(1, keepdim=True) + 0.5 * 4 * (1 - y),
    ),
]
EACH = pytest.mark.parametrize(("loss", "formula"), LOSSES)


def batch() -> tuple[Tensor, Tensor, Tensor]:
    """Logits, class indices, and class probabilities."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn((7, 5), generator=generator, dtype=torch.float64)
    target = torch.randint(0, 5, (7,), generator=generator)
    soft = torch.softmax(torch.randn((7, 5), generator=generator, dtype=torch.float64), dim=1)
    return logits, target, soft


@EACH
def test_values_and_gradients_are_those_of_the_formula(
    loss: nn.Module, formula: Callable[[Tensor], Tensor]
) -> None:
    logits, target, soft = batch()
    costs = formula(torch.softmax(logits, dim=1))
    torch.testing.assert_close(loss(logits, target), costs[torch.arange(7), target].mean())
    torch.testing.assert_close(loss(logits, soft), (soft * costs).sum(1).mean())
    for each in (target, soft):
        assert torch.autograd.gradcheck(partial(loss, target=each), logits.requires_grad_())


@EACH
@pytest.mark.parametrize("distance", [0.0, 30.0, 1e4])
def test_sure_predictions_right_or_wrong_stay_finite_in_single_precision(
    loss: nn.Module, formula: Any, distance: float
) -> None:
    logits = torch.tensor([[distance, -distance, 0.0], [-distance, distance, 0.0]])
    logits.requires_grad_()
    right, wrong = (loss(logits[i : i + 1], torch.tensor([0])) for i in (0, 1))
    (gradient,) = torch.autograd.grad(right + wrong, logits)
    assert torch.isfinite(gradient).all()
    assert torch.inf > wrong >= right >= 0


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
    ],
)
def test_wrong_settings_are_named(build: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()
