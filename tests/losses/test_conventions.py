"""What all losses share with cross-entropy, and what the standard ones are."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from optuna_taylorglo import (
    FocalLoss,
    GeneralizedCrossEntropyLoss,
    NormalizedReverseCrossEntropyLoss,
    PolyLoss,
    SymmetricCrossEntropyLoss,
    TaylorCrossEntropyLoss,
    TaylorLoss,
    TreeLoss,
)
from optuna_taylorglo.losses.tree import CROSS_ENTROPY_TREE

WEIGHT = torch.tensor([0.5, 2.0, 0.0, 1.5], dtype=torch.float64)
FAMILIES: dict[str, Callable[..., nn.Module]] = {
    "anchored": lambda **settings: TaylorLoss([0.0] * 8, base="cross_entropy", **settings),
    "standard": lambda **settings: PolyLoss(0.0, **settings),
    "tree": lambda **s: TreeLoss(CROSS_ENTROPY_TREE, **{"class_reduction": "sum", **s}),
}
EACH_FAMILY = pytest.mark.parametrize("name", FAMILIES)


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def assert_is_cross_entropy(name: str, logits: Tensor, target: Tensor, **settings: Any) -> None:
    values, gradients = [], []
    for function in (FAMILIES[name](**settings), lambda z, t: cross_entropy(z, t, **settings)):
        leaf = logits.clone().requires_grad_()
        values.append(function(leaf, target))
        gradients += torch.autograd.grad(values[-1].sum(), leaf)
    torch.testing.assert_close(*values, equal_nan=True, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(*gradients, equal_nan=True, rtol=1e-10, atol=1e-10)


@EACH_FAMILY
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(4,), (6, 4), (2, 4, 3, 5), (0, 4)])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"ignore_index": 2},
        {"label_smoothing": 0.3},
        {"label_smoothing": 1.0, "ignore_index": 1},
        {"weight": WEIGHT},
        {"weight": WEIGHT, "ignore_index": -1},
        {"weight": WEIGHT, "label_smoothing": 0.3},
    ],
    ids=lambda settings: "-".join(settings) or "plain",
)
def test_it_is_cross_entropy_with_all_its_arguments(
    settings: dict[str, Any], shape: tuple[int, ...], reduction: str, name: str
) -> None:
    if name == "tree" and len(settings) == 2 and "label_smoothing" in settings:
        settings = {"label_smoothing": 0.1}  # weights of soft labels have a test of their own
    logits, generator = normal(*shape), torch.Generator().manual_seed(1)
    target = torch.randint(0, 4, shape[:1] + shape[2:], generator=generator)
    if len(shape) == 1:
        target = torch.tensor(3)
    elif target.numel():
        target.view(-1)[0] = settings.get("ignore_index", -100)
    assert_is_cross_entropy(name, logits, target, reduction=reduction, **settings)
    if settings.get("ignore_index", -1) < 0 and not (name == "tree" and "weight" in settings):
        soft = torch.softmax(normal(*shape, seed=2), dim=min(1, len(shape) - 1))
        assert_is_cross_entropy(name, logits, soft, reduction=reduction, **settings)


@EACH_FAMILY
@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_all_ignored_as_in_cross_entropy(name: str, weight: Tensor | None) -> None:
    for reduction, index in product(("mean", "sum", "none"), (-100, 3)):
        settings = {"reduction": reduction, "ignore_index": index, "weight": weight}
        assert_is_cross_entropy(name, normal(5, 4), torch.full((5,), index), **settings)


@EACH_FAMILY
def test_ignored_rows_count_for_nothing_whatever_is_in_them(name: str) -> None:
    logits, target, loss = normal(6, 4), torch.tensor([-100, 0, 1, 2, 3, 0]), FAMILIES[name]()
    expected = loss(logits[1:], target[1:])
    for content in (math.nan, math.inf, 1e4):
        logits[0] = content
        leaf = logits.clone().requires_grad_()
        value = loss(leaf, target)
        torch.testing.assert_close(value, expected)
        (gradient,) = torch.autograd.grad(value, leaf)
        assert gradient[0].eq(0).all()
        assert gradient[1:].ne(0).all()


@EACH_FAMILY
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_sequences_are_the_flattened_call(name: str, weight: Tensor | None, reduction: str) -> None:
    logits, target = normal(3, 5, 4), torch.arange(15).reshape(3, 5) % 4
    target[0, 3:] = target[2, 0] = 2
    loss = FAMILIES[name](reduction=reduction, weight=weight, ignore_index=2)
    value = loss(logits, target)
    flat = loss(logits.flatten(0, 1), target.flatten())
    torch.testing.assert_close(value, flat.reshape(3, 5) if reduction == "none" else flat)
    assert (value.numel() == 1) or value[0, 3:].eq(0).all()


@EACH_FAMILY
def test_as_many_steps_as_classes_are_read_as_pytorch_reads_them(name: str) -> None:
    target = torch.tensor([[0, 1, 2, 3], [3, 3, 0, 1]])
    assert_is_cross_entropy(name, normal(2, 4, 4), target)


def test_losses_for_another_number_of_classes_are_refused_until_told() -> None:
    for loss in (FAMILIES["anchored"](), FAMILIES["tree"](weight=WEIGHT)):
        loss.n_classes = 4
        for shape, target in (((5,), ()), ((2, 5), (2,)), ((2, 5, 4), (2, 4)), ((2, 3, 5), (2, 3))):
            with pytest.raises(
                ValueError, match=r"5 classes, and the loss was made for 4.*=5\).*= 5"
            ):
                loss(torch.zeros(shape), torch.zeros(target).long())
        assert loss(torch.zeros(2, 5, 4), torch.zeros(2, 5).long()).isfinite()
    loss.n_classes, loss.weight = 5, None
    assert loss(torch.zeros(2, 5), torch.zeros(2).long()).isfinite()


@EACH_FAMILY
def test_types(name: str) -> None:
    loss, target = FAMILIES[name](), torch.tensor([156, 3])  # -100 as an unsigned byte
    logits = normal(2, 200)
    torch.testing.assert_close(loss(logits, target.to(torch.uint8)), loss(logits, target))
    half = loss(logits.half(), target)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, loss(logits.half().float(), target))
    for dtype in (torch.int32, torch.bool):
        with pytest.raises(ValueError, match="target has dtype"):
            loss(logits, target.to(dtype))


@EACH_FAMILY
@pytest.mark.parametrize(
    ("shape", "target", "settings", "message"),
    [
        ((3, 4), torch.zeros(2).long(), {}, r"target has shape \(2,\); class indices .* \(3,\)"),
        ((3, 4, 5), torch.zeros(3, 3).long(), {}, r"\(3, 3\).*\(3, 5\)"),
        ((3, 4), torch.zeros(3), {}, "class indices must be integers"),
        ((3, 4), torch.zeros(3, 5), {}, r"target has shape \(3, 5\)"),
        ((), torch.tensor(0), {}, "logits has no dimension"),
        ((2, 4), torch.full((2, 4), 0.25), {"ignore_index": 1}, "ignore_index is 1"),
        ((2, 4), torch.tensor([0, 1]), {"weight": torch.ones(3)}, r"weight has shape .*4 classes"),
        ((2, 4), torch.tensor([0, 4]), {}, "out of bounds"),
        ((2, 4), torch.tensor([0, -1]), {}, "out of bounds"),
    ],
)
def test_wrong_batches_are_named(
    name: str, shape: tuple[int, ...], target: Tensor, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises((ValueError, RuntimeError, IndexError), match=message):
        FAMILIES[name](**settings)(torch.zeros(shape), target)


STANDARD: list[tuple[nn.Module, Callable[[Tensor], Tensor]]] = [
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
EACH_STANDARD = pytest.mark.parametrize(("loss", "formula"), STANDARD)


def batch() -> tuple[Tensor, Tensor, Tensor]:
    """Logits, class indices, and class probabilities."""
    target = torch.randint(0, 5, (7,), generator=torch.Generator().manual_seed(0))
    return normal(7, 5), target, torch.softmax(normal(7, 5, seed=1), dim=1)


@EACH_STANDARD
def test_values_and_gradients_are_those_of_the_formula(
    loss: nn.Module, formula: Callable[[Tensor], Tensor]
) -> None:
    logits, target, soft = batch()
    costs = formula(torch.softmax(logits, dim=1))
    torch.testing.assert_close(loss(logits, target), costs[torch.arange(7), target].mean())
    torch.testing.assert_close(loss(logits, soft), (soft * costs).sum(1).mean())
    for each in (target, soft):
        assert torch.autograd.gradcheck(partial(loss, target=each), logits.requires_grad_())


@EACH_STANDARD
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
        (TaylorCrossEntropyLoss(2000), nn.CrossEntropyLoss()),
        (GeneralizedCrossEntropyLoss(1.0), TaylorCrossEntropyLoss(1)),
        (PolyLoss(8.0), SymmetricCrossEntropyLoss(1.0, 2.0)),
    ],
)
def test_limits_and_kinships(loss: nn.Module, equal: nn.Module) -> None:
    logits, target, _ = batch()
    torch.testing.assert_close(loss(logits, target), equal(logits, target), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("build", "settings", "message"),
    [
        (FocalLoss, {"gamma": -1.0}, "gamma must be at least 0, not -1.0"),
        (GeneralizedCrossEntropyLoss, {"q": 0.0}, r"q must be in \(0, 1\], not 0.0"),
        (TaylorCrossEntropyLoss, {"order": 0}, "order must be at least 1, not 0"),
        (SymmetricCrossEntropyLoss, {"beta": -2.0}, "beta must be at least 0, not -2.0"),
        (PolyLoss, {"reduction": "average"}, "reduction must be one of mean, sum, none, not 'ave"),
        (PolyLoss, {"class_reduction": "none"}, "class_reduction must be one of mean, sum, not"),
        (PolyLoss, {"label_smoothing": 1.5}, r"label_smoothing must be in \[0, 1\], not 1.5"),
    ],
)
def test_wrong_settings_are_named(build: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(**settings)
