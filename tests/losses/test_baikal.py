"""Baikal and BaikalCMA: published formula, published shape, cross-entropy's conventions."""

import math

import pytest
import torch
from torch.nn import functional as F

from optuna_taylorglo import BaikalCMALoss, BaikalLoss

C = (2.7279, 0.9863, 1.5352, -1.1135, 1.3716, -0.8411)


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


@PAIRS
def test_gradients_are_those_of_the_formula(loss_class, formula):
    logits = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([0, 3, 1])
    assert torch.autograd.gradcheck(lambda z: loss_class()(z, target), logits)


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
def test_stays_finite_and_pulls_up_a_target_of_no_probability(loss_class, formula):
    logits = torch.tensor([[-1e4, 1e4, 0.0]], requires_grad=True)
    loss = loss_class()(logits, torch.tensor([0]))
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(logits.grad).all()
    assert logits.grad[0, 0] < 0


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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reduction": "average"}, "reduction must be one of mean, sum, none, not 'average'"),
        ({"class_reduction": "none"}, "class_reduction must be one of mean, sum, not 'none'"),
        ({"label_smoothing": 1.5}, r"label_smoothing must be in \[0, 1\], not 1.5"),
    ],
)
def test_wrong_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        BaikalLoss(**settings)


def test_logits_without_classes_are_refused():
    with pytest.raises(ValueError, match="logits has no dimension"):
        BaikalLoss()(torch.tensor(1.0), torch.tensor(0))


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
