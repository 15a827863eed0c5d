"""Trees as losses: equal to the known ones, cross-entropy's conventions, safe at the extremes."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from random_trees import random_trees
from torch import Tensor
from torch.nn import functional as F

from optuna_taylorglo import BaikalCMALoss, BaikalLoss, TaylorLoss, TreeLoss
from optuna_taylorglo.losses.tree import (
    BAIKAL,
    BAIKAL_CMA_COEFFICIENTS,
    CROSS_ENTROPY_TREE,
    tree_from_prefix,
)

WEIGHT = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)


def value_and_gradient(loss: torch.nn.Module, logits: Tensor, target: Tensor) -> list[Tensor]:
    logits = logits.clone().requires_grad_()
    value = loss(logits, target)
    return [value.detach(), *torch.autograd.grad(value.sum(), logits)]


def assert_same(one: torch.nn.Module, other: torch.nn.Module, logits: Tensor, target: Tensor):
    pairs = zip(
        value_and_gradient(one, logits, target),
        value_and_gradient(other, logits, target),
        strict=True,
    )
    for ours, theirs in pairs:
        scale = theirs.abs().max().item()
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12 * scale)


C = BAIKAL_CMA_COEFFICIENTS


def baikal(x, y):
    return -(torch.log(y) - x / y).mean(dim=1)


def baikal_cma(x, y):
    c = C
    return -(c[0] * (c[1] * torch.log(c[2] * y) - c[3] * (c[4] * x) / (c[5] * y))).mean(dim=1)


PAIRS = pytest.mark.parametrize(
    ("loss_class", "formula"), [(BaikalLoss, baikal), (BaikalCMALoss, baikal_cma)]
)


@PAIRS
def test_equals_the_published_formula_on_hard_soft_and_smoothed_targets(loss_class, formula):
    logits = torch.randn(7, 5, dtype=torch.float64)
    target = torch.randint(0, 5, (7,))
    one_hot = F.one_hot(target, 5).double()
    soft = torch.softmax(torch.randn(7, 5, dtype=torch.float64), dim=1)
    y = torch.softmax(logits, dim=1)
    for given, x, smoothing in (
        (target, one_hot, 0.0),
        (soft, soft, 0.0),
        (target, 0.9 * one_hot + 0.1 / 5, 0.1),
        (soft, 0.9 * soft + 0.1 / 5, 0.1),
    ):
        loss = loss_class(reduction="none", label_smoothing=smoothing)
        torch.testing.assert_close(loss(logits, given), formula(x, y), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("loss_class", "minimum", "ratio"),
    [(BaikalLoss, 0.7071, 1), (BaikalCMALoss, 0.7720, C[3] * C[4] / C[5] / C[1])],
)
def test_the_binary_minimum_lies_below_one(loss_class, minimum, ratio):
    # Setting the derivative to 0 gives 2 p² + (r - 1) p - r = 0 with r the ratio b / a.
    closed_form = (1 - ratio + math.sqrt((ratio - 1) ** 2 + 8 * ratio)) / 4
    p = torch.linspace(0.001, 0.999, 99_801, dtype=torch.float64)
    logits = torch.stack([torch.log(p), torch.log(1 - p)], dim=1)
    losses = loss_class(reduction="none")(logits, torch.zeros(len(p), dtype=torch.int64))
    found = p[losses.argmin()].item()
    assert found == pytest.approx(minimum, abs=1e-3)
    assert found == pytest.approx(closed_form, abs=1e-4)


@PAIRS
def test_weight_ignore_index_and_shapes_mean_what_they_mean_for_cross_entropy(loss_class, formula):
    logits = torch.randn(4, 3, 2, 2, dtype=torch.float64)
    target = torch.randint(0, 3, (4, 2, 2))
    target[0, 0, 0] = -100
    weight = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    kept = target != -100
    rows = logits.movedim(1, -1)[kept]
    losses = formula(F.one_hot(target[kept], 3).double(), torch.softmax(rows, dim=1))
    expected = (losses * weight[target[kept]]).sum() / weight[target[kept]].sum()
    torch.testing.assert_close(loss_class(weight=weight)(logits, target), expected)
    torch.testing.assert_close(
        loss_class(class_reduction="sum", reduction="sum")(logits, target), 3 * losses.sum()
    )
    unbatched = loss_class()(rows[0], target[kept][0])
    torch.testing.assert_close(unbatched, losses[0])


@PAIRS
@pytest.mark.parametrize("shape", [(3,), (4, 3), (4, 3, 2, 2)])
def test_soft_targets_count_with_the_mean_of_the_weights_under_them(loss_class, formula, shape):
    logits, weight = torch.randn(shape, dtype=torch.float64), torch.tensor([0.5, 1.0, 2.0]).double()
    axis = min(1, len(shape) - 1)
    x = torch.softmax(torch.randn(shape, dtype=torch.float64), dim=axis)
    rows, labels = (v.movedim(axis, -1).reshape(-1, 3) for v in (logits, x))
    losses = formula(labels, torch.softmax(rows, dim=1)) * (labels @ weight)
    torch.testing.assert_close(loss_class(weight=weight)(logits, x), losses.mean())
    torch.testing.assert_close(loss_class(weight=weight, reduction="sum")(logits, x), losses.sum())


@pytest.mark.parametrize("spread", [1.0, 1e4])
def test_the_tree_of_cross_entropy_is_cross_entropy(spread):
    logits = spread * torch.randn(16, 5, dtype=torch.float64)
    target = torch.randint(0, 5, (16,))
    ours = TreeLoss(CROSS_ENTROPY_TREE, class_reduction="sum", label_smoothing=0.1)
    assert_same(ours, torch.nn.CrossEntropyLoss(label_smoothing=0.1), logits, target)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_a_polynomial_tree_is_the_taylor_loss(smoothing, weight):
    # Brier's xy - y², and x²y, with which it is not linear in x.
    brier = ["-", "*", "x", "y", "square", "y"]
    tree = tree_from_prefix(["+", *brier, "*", "square", "x", "y"])
    settings = {"label_smoothing": smoothing, "weight": weight}
    taylor = TaylorLoss((0, 0, 0, -2, 0, 1, 0, 2), **settings).double()
    logits = torch.randn(7, 3, dtype=torch.float64)
    assert_same(TreeLoss(tree, **settings), taylor, logits, torch.randint(0, 3, (7,)))
    soft = torch.softmax(torch.randn(7, 3, dtype=torch.float64), dim=1)
    assert_same(TreeLoss(tree, **settings), taylor, logits, soft)


def test_a_tree_that_is_not_linear_in_the_target_sees_every_class():
    # (x - 1)² / y is 1/y at all classes but the target.
    logits = torch.randn(6, 4, dtype=torch.float64)
    target = torch.randint(0, 4, (6,))
    y = torch.softmax(logits, dim=1)
    tree = tree_from_prefix(["/", "square", "-", "x", "1", "y"])
    others = (1 / y).sum(dim=1) - 1 / y.gather(1, target[:, None]).squeeze(1)
    found = TreeLoss(tree, reduction="none")(logits, target)
    torch.testing.assert_close(found, -others / 4, rtol=1e-12, atol=0)


def test_half_precision_is_computed_in_single():
    logits = torch.randn(4, 3)
    target = torch.tensor([0, 2, 1, 1])
    half = TreeLoss(BAIKAL)(logits.half(), target)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, TreeLoss(BAIKAL)(logits.half().float(), target))


def test_gradcheck_passes_on_random_trees():
    passed = 0
    for number, tree in enumerate(random_trees(400, seed=2)):
        generator = torch.Generator().manual_seed(number)
        logits = torch.randn(1, 3, generator=generator, dtype=torch.float64, requires_grad=True)
        target = torch.rand(1, 3, generator=generator, dtype=torch.float64)
        loss = TreeLoss(tree, np.random.default_rng(number).uniform(0.5, 2, tree.size))
        value, gradient = value_and_gradient(loss, logits.detach(), target)
        # Where it is smooth and finite, and central differences are not beneath rounding.
        if value.isfinite() and 1e-3 < gradient.abs().max() < 100:
            assert torch.autograd.gradcheck(
                lambda z, loss=loss, target=target: loss(z, target),
                logits,
                check_undefined_grad=False,
            ), tree
            passed += 1
            if passed == 100:
                return
    pytest.fail(f"only {passed} trees could be checked")


def test_extreme_logits_give_finite_losses_or_a_clean_end():
    """Never an exception, and what is not finite shows in a loss by the next step at the latest."""
    outcomes: Counter[str] = Counter()
    for number, tree in enumerate(random_trees(1000, seed=3)):
        generator = torch.Generator().manual_seed(number)
        spread = (10.0, 1e4, 1e30)[number % 3]
        weights = (spread * torch.randn(4, 5, generator=generator)).requires_grad_()
        target = torch.randint(0, 5, (4,), generator=generator)
        loss = TreeLoss(tree)
        value = loss(weights, target)
        value.backward()
        assert weights.grad is not None
        if not value.isfinite():
            outcomes["not finite"] += 1
        elif weights.grad.isfinite().all():
            outcomes["finite"] += 1
        else:
            outcomes["gradient beyond float32"] += 1
            assert not loss(weights.detach() - weights.grad, target).isfinite()
    assert outcomes["finite"] > 250
    assert outcomes["not finite"] > 250
    assert outcomes["gradient beyond float32"] < 50


@pytest.mark.parametrize(
    "prefix",
    [
        ["/", "y", "x"],  # a quotient by 0
        ["log", "x"],
        ["sqrt", "-", "-1", "y"],
        ["log", "-", "y", "1"],
        ["/", "1", "/", "1", "x"],  # 1/∞ hides in a value of 0
    ],
)
def test_what_has_no_value_is_not_finite_and_no_error(prefix):
    loss = TreeLoss(prefix)(torch.randn(3, 4, requires_grad=True), torch.tensor([0, 1, 2]))
    assert not loss.isfinite()
    loss.backward()


def test_gradients_are_finite_at_a_root_of_zero():
    logits = torch.randn(3, 4, dtype=torch.float64)
    value, gradient = value_and_gradient(
        TreeLoss(["sqrt", "*", "x", "y"]), logits, torch.tensor([0, 1, 2])
    )
    y = torch.softmax(logits, dim=1)
    expected = -torch.sqrt(y[torch.arange(3), torch.arange(3)]).mean() / 4
    torch.testing.assert_close(value, expected)
    assert gradient.isfinite().all()


def test_a_target_of_no_probability_is_still_pulled_up():
    for prefix in (BAIKAL, ["*", "x", "sqrt", "y"], ["*", "x", "y"]):
        logits = torch.tensor([[-1e3, 1e3, 0.0]], dtype=torch.float64)
        value, gradient = value_and_gradient(TreeLoss(prefix), logits, torch.tensor([0]))
        assert value.isfinite()
        assert gradient.isfinite().all()
        assert gradient[0, 0] < 0


def test_ignored_samples_count_nothing_whatever_is_in_them():
    # log(1 - y) has its pole where the ignored one is sure.
    loss = TreeLoss(["log", "-", "1", "y"])
    logits = torch.tensor([[0.3, -0.2, 0.1], [1e4, 0.0, 0.0]], requires_grad=True)
    value = loss(logits, torch.tensor([1, -100]))
    value.backward()
    assert torch.equal(value, loss(logits[:1], torch.tensor([1])))
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert logits.grad[1].eq(0).all()
    assert loss(logits, torch.tensor([-100, -100])).isnan()  # as cross-entropy's mean of nothing


@pytest.mark.parametrize("prefix", [["x"], ["1"], ["+", "x", "1"]])
def test_a_tree_without_outputs_teaches_nothing_and_is_no_error(prefix):
    value, gradient = value_and_gradient(
        TreeLoss(prefix, class_reduction="sum"), torch.randn(2, 3), torch.tensor([0, 1])
    )
    assert value == -{"x": 1, "1": 3, "+": 4}[prefix[0]]
    assert gradient.eq(0).all()


def test_small_outputs_go_on_as_documented():
    log_y = torch.linspace(-40, 0, 81, dtype=torch.float64)
    y = TreeLoss(["y"]).values(torch.zeros(()), log_y)
    least = math.log(1e-7)
    beyond = (least - log_y).clamp(min=0)
    torch.testing.assert_close(y, torch.exp(log_y.clamp(min=least)) / (1 + beyond))
    assert (y.diff() > 0).all()


def test_wrong_batches_are_named():
    loss = TreeLoss(BAIKAL, weight=torch.ones(4))
    with pytest.raises(ValueError, match=r"weight has shape \(4,\); 3 classes take shape \(3,\)"):
        loss(torch.randn(2, 3), torch.tensor([0, 1]))
    loss = TreeLoss(BAIKAL)
    with pytest.raises(ValueError, match=r"target has shape \(3,\); class indices"):
        loss(torch.randn(2, 3), torch.tensor([0, 1, 2]))
    with pytest.raises(ValueError, match=r"target has dtype torch\.int32"):
        loss(torch.randn(2, 3), torch.tensor([0, 1], dtype=torch.int32))
    with pytest.raises(ValueError, match="class probabilities for logits"):
        loss(torch.randn(2, 3), torch.rand(2, 4))
    with pytest.raises(ValueError, match="logits has no dimension"):
        loss(torch.tensor(1.0), torch.tensor(0))


def test_it_trains_a_network():
    torch.manual_seed(0)
    images, labels = torch.randn(200, 8), torch.randint(0, 3, (200,))
    images[:, :3] += 3 * F.one_hot(labels, 3)
    net = torch.nn.Linear(8, 3)
    loss, optimizer = TreeLoss(BAIKAL), torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(100):
        optimizer.zero_grad()
        loss(net(images), labels).backward()
        optimizer.step()
    assert (net(images).argmax(dim=1) == labels).float().mean() > 0.9
