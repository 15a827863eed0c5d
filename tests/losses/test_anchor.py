"""Losses anchored at cross-entropy: what they contain, their gradients, and where they begin."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from optuna_taylorglo.losses.canonical import from_canonical
from optuna_taylorglo.losses.taylor import TaylorLoss, taylor_loss

THETA = from_canonical((1.3, -0.6, 0.7, -0.4))
ZERO = (0.0,) * 8


def batch(n: int = 10, size: int = 32, spread: float = 3.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n)
    logits = spread * torch.randn(size, n, generator=generator, dtype=torch.float64)
    return logits.requires_grad_(), torch.randint(0, n, (size,), generator=generator)


def anchored(theta: Any = THETA, **settings: Any) -> TaylorLoss:
    settings = {"class_reduction": "sum", "base": "cross_entropy"} | settings
    return TaylorLoss(theta, **settings).double()


def value_and_gradient(loss: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    (gradient,) = torch.autograd.grad(loss, logits)
    return loss.detach(), gradient


def assert_same(ours: Tensor, theirs: Tensor, logits: Tensor, constant: float = 0.0) -> None:
    """Equal up to a constant, gradients included."""
    value, gradient = value_and_gradient(ours, logits)
    expected, expected_gradient = value_and_gradient(theirs, logits)
    torch.testing.assert_close(value - constant, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-12, atol=1e-14)


def written_out(logits: Tensor, target: Tensor, canonical: Any, s: float, eps: float) -> Tensor:
    """e^s (CE_ε - f) literally, from the definition, for hard targets and the sum over classes."""
    alpha, beta, gamma, delta = canonical
    y = torch.softmax(logits, dim=1)
    y_t = y.gather(1, target[:, None]).squeeze(1)
    f = alpha * y_t + beta / 2 * y_t**2 + (gamma / 2 * y**2 + delta / 3 * y**3).sum(dim=1)
    x = F.one_hot(target, logits.shape[1]).double() * (1 - eps) + eps / logits.shape[1]
    return (math.exp(s) * (-(x * torch.log_softmax(logits, dim=1)).sum(dim=1) - f)).mean()


@pytest.mark.parametrize("n", [2, 10, 1000])
@pytest.mark.parametrize(("s", "eps"), [(0.0, 0.0), (-1.5, 0.3), (0.7, -0.2)])
def test_it_is_its_definition(n: int, s: float, eps: float) -> None:
    logits, target = batch(n)
    loss = anchored(log_scale=s, smoothing=eps)
    expected = written_out(logits, target, (1.3, -0.6, 0.7, -0.4), s, eps)
    assert_same(loss(logits, target), expected, logits)


def test_it_contains_label_smoothing_and_polyloss() -> None:
    logits, target = batch()
    smoothed = anchored(ZERO, smoothing=0.3)(logits, target)
    assert_same(smoothed, F.cross_entropy(logits, target, label_smoothing=0.3), logits)
    y_t = torch.softmax(logits, dim=1).gather(1, target[:, None])
    polyloss = F.cross_entropy(logits, target) + 17 * (1 - y_t).mean()
    ours = anchored(from_canonical((17.0, 0, 0, 0)))(logits, target)
    assert_same(ours, polyloss, logits, constant=-17)


def test_two_smoothings_are_one_after_the_other() -> None:
    logits, target = batch()
    both = anchored(ZERO, smoothing=0.2, label_smoothing=0.3)(logits, target)
    assert_same(both, F.cross_entropy(logits, target, label_smoothing=0.44), logits)


@pytest.mark.parametrize("kind", ["hard", "ignored", "soft"])
def test_derivatives(kind: str) -> None:
    logits, target = batch(5, 4, spread=1.0)
    if kind == "ignored":
        target[1] = -100
    if kind == "soft":
        target = torch.softmax(logits.detach().flip(0), dim=1)
    loss = anchored(log_scale=-0.3, smoothing=0.15, label_smoothing=0.1)
    assert torch.autograd.gradcheck(lambda z: loss(z, target), (logits,))
    assert torch.autograd.gradgradcheck(lambda z: loss(z, target), (logits,))


def test_pure_function_knows_gradients_of_all_parameters() -> None:
    logits, target = batch(5, 4, spread=1.0)
    parameters = torch.tensor([*THETA, -0.3, 0.15], dtype=torch.float64, requires_grad=True)

    def pure(p: Tensor) -> Tensor:
        return taylor_loss(
            logits.detach(),
            target,
            p[:8],
            class_reduction="sum",
            base="cross_entropy",
            log_scale=p[8],
            smoothing=p[9],
        )

    module = anchored(log_scale=-0.3, smoothing=0.15)
    torch.testing.assert_close(pure(parameters), module(logits, target).detach())
    assert torch.autograd.gradcheck(pure, (parameters,))
    several = torch.func.vmap(pure)(torch.stack([parameters, 2 * parameters]).detach())
    torch.testing.assert_close(several[0], pure(parameters).detach())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"base": "mse"}, "base must be one of none, cross_entropy, not 'mse'"),
        ({"base": "none", "log_scale": 1.0}, "log_scale is 1; it needs base='cross_entropy'"),
        ({"base": "none", "smoothing": 0.1}, r"smoothing is 0\.1; it needs base"),
        ({"smoothing": 1.0}, r"smoothing must be in \[-1, 1\), not 1\.0"),
        ({"smoothing": math.nan}, "smoothing must be in"),
        ({"log_scale": math.inf}, r"log_scale must be in \[-50, 50\], not inf"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        anchored(**settings)
