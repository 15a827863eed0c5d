"""The losses made for wrong labels, and label smoothing below 0, against their published forms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss, one_hot

from optuna_taylorglo import (
    ActiveNegativeLoss,
    EpsilonSoftmaxLoss,
    FocalLoss,
    GeneralizedCrossEntropyLoss,
    JointAsymmetricLoss,
    LabelDistributionallyRobustLoss,
    LabelSmoothingLoss,
    LogitClipLoss,
    NormalizedAsymmetricLoss,
    NormalizedReverseCrossEntropyLoss,
    PolyLoss,
    SymmetricCrossEntropyLoss,
    TaylorCrossEntropyLoss,
)

N, C = 40, 5
TARGET = torch.arange(N) % C


def logits_of(scale: float = 3.0) -> Tensor:
    """Logits with several times as many samples that are wrong as right."""
    generator = torch.Generator().manual_seed(0)
    return scale * torch.randn(N, C, dtype=torch.float64, generator=generator)


# Each loss of one sample with logits z and the one-hot target x, as its paper writes it.


def normalized_cross_entropy(z: Tensor, x: Tensor) -> Tensor:
    p = z.softmax(0)
    return -(x * p.log()).sum() / -sum(p[j].log() for j in range(C))


def asymmetric(z: Tensor, x: Tensor, alpha: float, beta: float, a: float, q: float) -> Tensor:
    p = (x * z.softmax(0)).sum()
    return alpha * normalized_cross_entropy(z, x) + beta * ((a + 1) ** q - (a + p) ** q) / q


def active_negative(z: Tensor, x: Tensor, alpha: float, beta: float) -> Tensor:
    vertical = math.log(1e7) + z.softmax(0).clamp(1e-7, 1).log()
    passive = 1 - (x * vertical).sum() / vertical.sum()
    return alpha * normalized_cross_entropy(z, x) + beta * passive


def epsilon_softmax(z: Tensor, x: Tensor, m: float, alpha: float, beta: float) -> Tensor:
    p = z.softmax(0)
    e = (p + m * one_hot(p.argmax(), C)) / (m + 1)
    absolute_error = (x - p).abs().sum()
    return -alpha * (x * e.clamp(1e-8).log()).sum() + beta * absolute_error


def joint_asymmetric(z: Tensor, x: Tensor, alpha: float, beta: float, a: float) -> Tensor:
    passive = (a * x - z.softmax(0)).pow(2).mean()
    return alpha * normalized_cross_entropy(z, x) + beta * passive


def normalized_outputs(z: Tensor) -> Tensor:
    f = (1 + z.exp()).log()
    return C * f / f.sum()


def label_distributionally_robust(z: Tensor, x: Tensor, temperature: float, c: float) -> Tensor:
    f = normalized_outputs(z)
    differences = f - (x * f).sum() + c * (1 - x)
    return temperature * (differences / temperature).exp().mean().log()


def logit_clip(z: Tensor, x: Tensor, tau: float) -> Tensor:
    norm = z.pow(2).sum().sqrt()
    clipped = z * tau / norm if norm > tau else z
    return -(x * clipped.softmax(0).log()).sum()


def label_smoothing(z: Tensor, x: Tensor, rate: float) -> Tensor:
    return -(((1 - rate) * x + rate / C) * z.softmax(0).log()).sum()


Reference = Callable[..., Tensor]
CASES: list[tuple[nn.Module, Reference, tuple[float, ...]]] = [
    (NormalizedAsymmetricLoss(1.0, 4.0, 6.0, 1.5), asymmetric, (1.0, 4.0, 6.0, 1.5)),
    (NormalizedAsymmetricLoss(10.0, 0.1, 0.01, 0.3), asymmetric, (10.0, 0.1, 0.01, 0.3)),
    (ActiveNegativeLoss(5.0, 5.0), active_negative, (5.0, 5.0)),
    (ActiveNegativeLoss(0.0, 1.0), active_negative, (0.0, 1.0)),
    (EpsilonSoftmaxLoss(1e5, 0.01, 5.0), epsilon_softmax, (1e5, 0.01, 5.0)),
    (EpsilonSoftmaxLoss(0.5, 2.0, 0.3), epsilon_softmax, (0.5, 2.0, 0.3)),
    (JointAsymmetricLoss(1.0, 1.0, 20.0), joint_asymmetric, (1.0, 1.0, 20.0)),
    (JointAsymmetricLoss(3.0, 0.5, 1.5), joint_asymmetric, (3.0, 0.5, 1.5)),
    (LabelDistributionallyRobustLoss(10.0, 0.1), label_distributionally_robust, (10.0, 0.1)),
    (LabelDistributionallyRobustLoss(0.3, 2.0), label_distributionally_robust, (0.3, 2.0)),
    (LogitClipLoss(2.5), logit_clip, (2.5,)),
    (LogitClipLoss(7.0), logit_clip, (7.0,)),
    (LabelSmoothingLoss(-0.8), label_smoothing, (-0.8,)),
    (LabelSmoothingLoss(0.4), label_smoothing, (0.4,)),
]
EACH_CASE = pytest.mark.parametrize(
    ("loss", "reference", "parameters"), CASES, ids=lambda value: type(value).__name__
)


def value_and_gradient(function: Callable[[Tensor], Tensor], logits: Tensor) -> list[Tensor]:
    leaf = logits.clone().requires_grad_()
    value = function(leaf)
    return [value.detach(), *torch.autograd.grad(value, leaf)]


@EACH_CASE
def test_values_and_gradients_are_those_of_the_published_formula(
    loss: nn.Module, reference: Reference, parameters: tuple[float, ...]
) -> None:
    # The second logits reach least probabilities, and sample 0 is surely right.
    for logits in (logits_of(), logits_of(12.0)):
        soft = logits_of().flip(0).softmax(1)
        for target, x in ((TARGET, one_hot(TARGET, C).double()), (soft, soft)):

            def published(z: Tensor, x: Tensor = x) -> Tensor:
                costs = [
                    x[i, j] * reference(z[i], one_hot(torch.tensor(j), C).double(), *parameters)
                    for i in range(N)
                    for j in range(C)
                    if x[i, j] > 0
                ]
                return torch.stack(costs).sum() / N

            found = value_and_gradient(lambda z, t=target: loss(z, t), logits)
            expected = value_and_gradient(published, logits)
            torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


STANDARD = [
    *(case[0] for case in CASES),
    FocalLoss(0.5),
    GeneralizedCrossEntropyLoss(),
    NormalizedReverseCrossEntropyLoss(),
    PolyLoss(),
    SymmetricCrossEntropyLoss(),
    TaylorCrossEntropyLoss(8),
    EpsilonSoftmaxLoss(0.0),
    LabelDistributionallyRobustLoss(0.05, 10.0),
    LogitClipLoss(1e9),
]


@pytest.mark.parametrize("loss", STANDARD, ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_logits_have_finite_values_and_gradients(
    loss: nn.Module, dtype: torch.dtype
) -> None:
    rows = [(1, -1, 0), (-1, 1, 0), (1, 1, -1), (0, 0, 0), (1, 1, 1), (-1, -1, -1), (-1, -1, 1)]
    for distance in (30.0, 200.0, 1e4):
        logits = distance * torch.tensor(rows, dtype=dtype)
        for target in (torch.zeros(len(rows), dtype=torch.int64), logits_of()[:7, :3].softmax(1)):
            for value in value_and_gradient(lambda z, t=target: loss(z, t), logits):
                assert torch.isfinite(value).all()


SETTINGS = [
    {},
    {"weight": torch.tensor([0.5, 2.0, 0.0, 1.5, 1.0], dtype=torch.float64), "ignore_index": 2},
    {"reduction": "none"},
    {"reduction": "sum", "weight": torch.linspace(0.1, 2.0, C, dtype=torch.float64)},
]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("soft", [False, True])
def test_label_smoothing_continues_pytorch_s_below_zero(settings: Any, soft: bool) -> None:
    logits = logits_of()
    target = logits_of().flip(0).softmax(1) if soft else TARGET
    if soft:
        settings = {key: value for key, value in settings.items() if key != "ignore_index"}

    def of_pytorch(rate: float) -> Tensor:
        return cross_entropy(logits, target, label_smoothing=rate, **settings)

    for rate in (0.0, 0.3, 1.0):
        found = LabelSmoothingLoss(rate, **settings)(logits, target)
        torch.testing.assert_close(found, of_pytorch(rate), rtol=1e-10, atol=1e-10)
    # It is linear in the rate.
    found = LabelSmoothingLoss(-0.7, **settings)(logits, target)
    torch.testing.assert_close(found, 2 * of_pytorch(0.0) - of_pytorch(0.7), rtol=1e-10, atol=1e-9)


class OfOutputs(nn.Module):
    """A loss of the normalized outputs f that LDR-KL is computed from."""

    def __init__(self, of_outputs: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.of_outputs = of_outputs

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        outputs = torch.stack([normalized_outputs(z) for z in logits])
        differences = outputs - outputs.gather(1, target[:, None])
        return self.of_outputs(differences + 0.4 * (1 - one_hot(target, C))).mean()


class MeanSquareError(nn.Module):
    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return mse_loss(logits.softmax(1), one_hot(target, C).double())


@pytest.mark.parametrize(
    ("loss", "equal", "accuracy"),
    [
        (NormalizedAsymmetricLoss(0, 1, 1e-12, 0.7), GeneralizedCrossEntropyLoss(0.7), 1e-8),
        (NormalizedAsymmetricLoss(0, 1, 3.0, 1.0), TaylorCrossEntropyLoss(1), 1e-12),
        (NormalizedAsymmetricLoss(0, 1e-3, 1e6, 1.5), TaylorCrossEntropyLoss(1), 1e-6),
        (NormalizedAsymmetricLoss(2, 4, 0.1, 1), NormalizedReverseCrossEntropyLoss(2, 1), 1e-12),
        (EpsilonSoftmaxLoss(0.0, 1.0, 0.0), nn.CrossEntropyLoss(), 1e-12),
        (EpsilonSoftmaxLoss(9.0, 0.0, 0.5), TaylorCrossEntropyLoss(1), 1e-12),
        (JointAsymmetricLoss(0.0, 1.0, 1.0), MeanSquareError(), 1e-12),
        (LogitClipLoss(1e9), nn.CrossEntropyLoss(), 1e-12),
        (LabelDistributionallyRobustLoss(1e6, 0.4), OfOutputs(lambda d: d.mean(1)), 1e-5),
        (LabelDistributionallyRobustLoss(1e-4, 0.4), OfOutputs(lambda d: d.amax(1)), 2e-4),
    ],
)
def test_limits_and_kinships(loss: nn.Module, equal: nn.Module, accuracy: float) -> None:
    # Probabilities are above 1e-8, where ε-softmax ends to be cross-entropy.
    found = value_and_gradient(lambda z: loss(z, TARGET), logits_of(1.5))
    expected = value_and_gradient(lambda z: equal(z, TARGET), logits_of(1.5))
    torch.testing.assert_close(found, expected, rtol=0, atol=accuracy)


def test_normalized_parts_add_up_to_a_constant_over_classes() -> None:
    logits = logits_of(1.0)
    for loss, total in ((ActiveNegativeLoss(1, 0), 1.0), (ActiveNegativeLoss(0, 1), C - 1.0)):
        costs = [loss(logits, torch.full((N,), j)).item() for j in range(C)]
        assert sum(costs) == pytest.approx(total, abs=1e-12)


def test_epsilon_softmax_leaves_what_is_right_and_ignores_what_is_hopeless() -> None:
    loss = EpsilonSoftmaxLoss(m=1e5, alpha=1.0, beta=0.0, reduction="sum")
    logits = torch.tensor([[1.0, 0.0, -1.0], [9.0, 0.0, 0.0]], dtype=torch.float64)
    right, hopeless = torch.tensor([0, 0]), torch.tensor([2, 1])
    assert value_and_gradient(lambda z: loss(z, right), logits)[1].abs().max() < 1e-4
    gradient = value_and_gradient(lambda z: loss(z, hopeless), logits)[1]
    plain = logits[0].softmax(0) - one_hot(torch.tensor(2), 3)
    torch.testing.assert_close(gradient[0], plain, rtol=1e-10, atol=1e-10)
    assert gradient[1].abs().max() == 0  # its target has 1.2e-4 / (1 + 1e5) < 1e-8


def test_outputs_of_ldr_kl_tell_classes_apart_where_all_logits_are_far_below_zero() -> None:
    loss, target = LabelDistributionallyRobustLoss(1e6, 0.0), torch.tensor([0])
    logits = torch.tensor([[-70.0, -70.0 + math.log(3)]])
    value, gradient = value_and_gradient(lambda z: loss.double()(z, target), logits.double())
    # exp(z) divided by its mean is 1/2 and 3/2, whose mean is 1/2 above the target's.
    assert value.item() == pytest.approx(0.5, abs=1e-5)
    assert gradient[0].tolist() == pytest.approx([-0.375, 0.375], abs=1e-5)
    single = value_and_gradient(lambda z: LabelDistributionallyRobustLoss(1.0)(z, target), logits)
    assert single[1][0, 0] < -0.1


def test_clipped_logits_bound_the_loss() -> None:
    z = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    loss, wrong = LogitClipLoss(2.0), torch.tensor([1])
    bound = math.log1p(math.exp(2 * math.sqrt(2)))
    assert loss(1e6 * z, wrong).item() == pytest.approx(bound, rel=1e-12)
    assert loss(z, wrong).item() == pytest.approx(math.log1p(math.exp(2)), rel=1e-12)


@pytest.mark.parametrize(
    ("build", "settings", "message"),
    [
        (LabelSmoothingLoss, {"label_smoothing": 1.5}, "label_smoothing must be at most 1, not 1"),
        (LabelSmoothingLoss, {"label_smoothing": math.nan}, "must be at most 1, not nan"),
        (NormalizedAsymmetricLoss, {"a": 0.0}, "a must be above 0, not 0.0"),
        (NormalizedAsymmetricLoss, {"q": -1.0}, "q must be above 0, not -1.0"),
        (ActiveNegativeLoss, {"beta": -1.0}, "beta must be at least 0, not -1.0"),
        (EpsilonSoftmaxLoss, {"m": -1.0}, "m must be at least 0, not -1.0"),
        (JointAsymmetricLoss, {"a": -1.0}, "a must be at least 0, not -1.0"),
        (LabelDistributionallyRobustLoss, {"temperature": 0}, "temperature must be above 0, not 0"),
        (LabelDistributionallyRobustLoss, {"margin": -1}, "margin must be at least 0, not -1"),
        (LogitClipLoss, {"tau": 0.0}, "tau must be above 0, not 0.0"),
    ],
)
def test_wrong_settings_are_named(build: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(**settings)
