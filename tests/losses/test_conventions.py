"""What all losses share with cross-entropy, proven where each of them is cross-entropy."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from optuna_taylorglo import PolyLoss, TaylorLoss, TreeLoss
from optuna_taylorglo.losses.tree import CROSS_ENTROPY_TREE

WEIGHT = torch.tensor([0.5, 2.0, 0.0, 1.5], dtype=torch.float64)
LOSSES: dict[str, Callable[..., nn.Module]] = {
    "anchored": lambda **settings: TaylorLoss([0.0] * 8, base="cross_entropy", **settings),
    "standard": lambda **settings: PolyLoss(0.0, **settings),
    "tree": lambda **s: TreeLoss(CROSS_ENTROPY_TREE, **{"class_reduction": "sum", **s}),
}
EACH = pytest.mark.parametrize("name", LOSSES)


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def assert_is_cross_entropy(name: str, logits: Tensor, target: Tensor, **settings: Any) -> None:
    values, gradients = [], []
    for function in (LOSSES[name](**settings), lambda z, t: cross_entropy(z, t, **settings)):
        leaf = logits.clone().requires_grad_()
        values.append(function(leaf, target))
        gradients += torch.autograd.grad(values[-1].sum(), leaf)
    torch.testing.assert_close(*values, equal_nan=True, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(*gradients, equal_nan=True, rtol=1e-10, atol=1e-10)


@EACH
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


@EACH
@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_all_ignored_as_in_cross_entropy(name: str, weight: Tensor | None) -> None:
    for reduction, index in product(("mean", "sum", "none"), (-100, 3)):
        settings = {"reduction": reduction, "ignore_index": index, "weight": weight}
        assert_is_cross_entropy(name, normal(5, 4), torch.full((5,), index), **settings)


@EACH
def test_ignored_rows_count_for_nothing_whatever_is_in_them(name: str) -> None:
    logits, target, loss = normal(6, 4), torch.tensor([-100, 0, 1, 2, 3, 0]), LOSSES[name]()
    expected = loss(logits[1:], target[1:])
    for content in (math.nan, math.inf, 1e4):
        logits[0] = content
        leaf = logits.clone().requires_grad_()
        value = loss(leaf, target)
        torch.testing.assert_close(value, expected)
        (gradient,) = torch.autograd.grad(value, leaf)
        assert gradient[0].eq(0).all()
        assert gradient[1:].ne(0).all()


@EACH
def test_types(name: str) -> None:
    loss, target = LOSSES[name](), torch.tensor([156, 3])  # -100 as an unsigned byte
    logits = normal(2, 200)
    torch.testing.assert_close(loss(logits, target.to(torch.uint8)), loss(logits, target))
    half = loss(logits.half(), target)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, loss(logits.half().float(), target))
    for dtype in (torch.int32, torch.bool):
        with pytest.raises(ValueError, match="target has dtype"):
            loss(logits, target.to(dtype))


@EACH
@pytest.mark.parametrize(
    ("shape", "target", "settings", "message"),
    [
        ((3, 4), torch.zeros(2).long(), {}, r"target has shape \(2,\); class indices .* \(3,\)"),
        ((3, 4, 5), torch.zeros(3, 4).long(), {}, r"\(3, 4\).*\(3, 5\)"),
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
        LOSSES[name](**settings)(torch.zeros(shape), target)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reduction": "average"}, "reduction must be one of mean, sum, none, not 'average'"),
        ({"class_reduction": "none"}, "class_reduction must be one of mean, sum, not 'none'"),
        ({"label_smoothing": 1.5}, r"label_smoothing must be in \[0, 1\], not 1.5"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], message: str) -> None:
    for build in LOSSES.values():
        with pytest.raises(ValueError, match=message):
            build(**settings)
