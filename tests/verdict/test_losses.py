"""Losses as plain values: what is built from them is the loss itself, and controls are fair."""

import copy
import json
import pickle
from dataclasses import asdict

import pytest
import torch
from torch import nn

import optuna_taylorglo as ot
from optuna_taylorglo.losses.tree import BAIKAL, BAIKAL_CMA_COEFFICIENTS
from optuna_taylorglo.verdict.statistics import Role
from optuna_taylorglo.verdict.tasks import (
    ComparedLoss,
    compared_evolved_loss,
    cross_entropy,
    scale_controls,
)

THETA = (0.1, 0.2, 0.3, -2.0, 0.5, 2.0, 0.7, 0.0)
N_CLASSES = 10
TARGET = torch.arange(16) % N_CLASSES
WEIGHT = torch.linspace(0.2, 2.0, N_CLASSES)
LOSSES = (
    ot.TaylorLoss(THETA, class_reduction="sum", label_smoothing=0.1),
    ot.TaylorLoss(THETA, base="cross_entropy", log_scale=-1.5, smoothing=0.2),
    ot.TreeLoss(BAIKAL, BAIKAL_CMA_COEFFICIENTS, label_smoothing=0.2),
)
IN_TIME = ot.TaylorLoss([0.2 * i for i in range(7)], order=2, variables=("x", "y", "t"))


def value(criterion, target=TARGET):
    """A criterion's loss of one fixed batch."""
    logits = torch.randn(16, N_CLASSES, generator=torch.Generator().manual_seed(0))
    return criterion(logits, target)


def test_cross_entropy_takes_the_studys_conventions_exactly():
    conventions = {"weight": WEIGHT, "label_smoothing": 0.2, "ignore_index": 3}
    loss = cross_entropy().criterion(conventions)
    assert value(loss) == value(nn.CrossEntropyLoss(**conventions))
    # A baseline whose smoothing is tuned has its own, and all the rest.
    own = cross_entropy(settings={"label_smoothing": 0.0}).criterion(conventions)
    assert value(own) == value(nn.CrossEntropyLoss(weight=WEIGHT, ignore_index=3))
    below = ComparedLoss("n", "l", "label-smoothing", settings={"label_smoothing": -0.5})
    expected = ot.LabelSmoothingLoss(-0.5, weight=WEIGHT, ignore_index=3)
    assert value(below.criterion(conventions)) == value(expected)


@pytest.mark.parametrize(
    ("kind", "settings", "loss"),
    [
        ("cross-entropy", {"label_smoothing": 0.1}, nn.CrossEntropyLoss(label_smoothing=0.1)),
        ("baikal", {}, ot.BaikalLoss()),
        ("baikal-cma", {}, ot.BaikalCMALoss()),
        ("focal", {"gamma": 3.0}, ot.FocalLoss(3.0)),
        ("gce", {"q": 0.4}, ot.GeneralizedCrossEntropyLoss(0.4)),
        ("poly", {"epsilon": 17.0}, ot.PolyLoss(17.0)),
        ("sce", {"alpha": 0.3}, ot.SymmetricCrossEntropyLoss(0.3)),
        ("taylor-ce", {"order": 4}, ot.TaylorCrossEntropyLoss(4)),
        ("nce-rce", {"alpha": 10.0}, ot.NormalizedReverseCrossEntropyLoss(10.0)),
        ("nce-agce", {"a": 2.0, "q": 3.0}, ot.NormalizedAsymmetricLoss(a=2.0, q=3.0)),
        ("anl-ce", {"beta": 1.0}, ot.ActiveNegativeLoss(beta=1.0)),
        ("eps-softmax", {"m": 100.0}, ot.EpsilonSoftmaxLoss(100.0)),
        ("jal-ce", {"a": 30.0}, ot.JointAsymmetricLoss(a=30.0)),
        ("ldr-kl", {"margin": 1.0}, ot.LabelDistributionallyRobustLoss(margin=1.0)),
        ("logit-clip", {"tau": 1.0}, ot.LogitClipLoss(1.0)),
        ("label-smoothing", {"label_smoothing": -0.5}, ot.LabelSmoothingLoss(-0.5)),
    ],
)
def test_each_kind_is_the_loss_itself_to_the_last_bit(kind, settings, loss):
    plain = ComparedLoss("n", "l", kind, settings=settings).criterion()
    assert torch.equal(value(plain), value(loss))
    scaled = ComparedLoss("n", "l", kind, settings=settings, scale=2.5).criterion()
    # Also where callbacks copy the module that holds it.
    for one in (scaled, copy.deepcopy(scaled), pickle.loads(pickle.dumps(scaled))):
        assert torch.equal(value(one), value(loss) * 2.5)


@pytest.mark.parametrize("loss", [*LOSSES, IN_TIME])
def test_an_evolved_loss_survives_the_database(loss):
    stored = asdict(compared_evolved_loss("w", "evolved", Role.EVOLVED, loss))
    again = ComparedLoss(**json.loads(json.dumps(stored))).criterion()
    assert type(again) is type(loss)
    assert again.settings() == loss.settings()
    assert torch.equal(value(again), value(loss))
    if loss is IN_TIME:  # scaled, it is still told how far training is
        scaled = ComparedLoss(**stored | {"scale": 2.0}).criterion()
        before = value(scaled)
        scaled.progress.fill_(1.0)
        assert not torch.equal(value(scaled), before)


def first_gradient(criterion):
    """Length of the gradient where all classes are equally likely."""
    logits = torch.zeros(1, N_CLASSES, requires_grad=True)
    criterion(logits, torch.tensor([3])).backward()
    return logits.grad.norm().item()


@pytest.mark.parametrize("loss", LOSSES)
def test_controls_tell_scale_from_shape(loss):
    """Each begins with the gradient of the loss whose scale it borrows."""
    shape, scale = scale_controls(loss, N_CLASSES)
    assert (shape.name, shape.role) == ("winner-normalized", Role.SHAPE_CONTROL)
    assert (scale.name, scale.role) == ("ce-scaled", Role.SCALE_CONTROL)
    assert shape.settings["label_smoothing"] == loss.label_smoothing
    own = compared_evolved_loss("w", "w", Role.EVOLVED, loss)
    for compared in (own, shape):
        compared.settings["label_smoothing"] = 0.0
    of_loss = first_gradient(own.criterion())
    of_cross_entropy = first_gradient(nn.CrossEntropyLoss())
    assert first_gradient(shape.criterion()) == pytest.approx(of_cross_entropy, rel=1e-5)
    assert first_gradient(scale.criterion()) == pytest.approx(of_loss, rel=1e-5)
    assert of_loss != pytest.approx(of_cross_entropy, rel=0.1)


def test_a_loss_without_a_scale_has_no_controls():
    for tree in (["*", "-1", "*", "x", "y"], ["1"], ["/", "y", "x"], ["/", "x", "x"]):
        assert scale_controls(ot.TreeLoss(tree), N_CLASSES) == []
    reverse = ot.TaylorLoss([-value for value in (0.0, -0.5, 0.0, 0.0, 0.0, 2.0, -4.0, 0.0)])
    assert scale_controls(reverse, N_CLASSES) == []
    in_logits = ot.TaylorLoss([0.1] * 5, order=2, variables=("x", "z"))
    assert scale_controls(in_logits, N_CLASSES) == []
    with pytest.raises(ValueError, match="kind must be one of"):
        ComparedLoss("evil", "evil", "os.system")
