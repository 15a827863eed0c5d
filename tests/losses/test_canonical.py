"""The canonical form and what follows from it, against Eq. 5, autograd and published numbers."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy

from optuna_taylorglo.losses.canonical import (
    MAX_ONE_CLASS_SHARE,
    PACE,
    Anchor,
    collapse_ratio,
    first_gradient,
    from_canonical,
    has_canonical_form,
    is_steady,
    normalize_scale,
    one_class_share,
    to_canonical,
    trainability,
)
from optuna_taylorglo.losses.expansion import Expansion
from optuna_taylorglo.losses.taylor import TaylorLoss, taylor_loss

ZERO = (0.0,) * 8
FORMS = [Expansion(), Expansion(folded=True), Expansion(1), Expansion(6)]
FORMS += [Expansion(4, ("t", "y", "x")), Expansion(3, ("x", "y", "z", "t")), Expansion(3, ("y",))]


def random_thetas(count: int, size: int = 8, seed: int = 0, scale: float = 2.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(scale=scale, size=(count, size))


def first_gradients(
    thetas: np.ndarray, n: int, form: Expansion, **settings: object
) -> torch.Tensor:
    """Gradients at equal logits for target 0, shape (P, n)."""

    def loss(logits: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
        return taylor_loss(logits, torch.tensor([0]), theta, **asdict(form), **settings)  # type: ignore[arg-type]

    zeros = torch.zeros(1, n, dtype=torch.float64)
    gradients = vmap(grad(loss), in_dims=(None, 0))(zeros, torch.tensor(thetas))
    return gradients.squeeze(1)


@pytest.mark.parametrize(
    "form", [Expansion(1), Expansion(2), Expansion(), Expansion(folded=True)], ids=repr
)
@pytest.mark.parametrize("n", [2, 10])
def test_canonical_form_is_equation_5_up_to_a_constant(n: int, form: Expansion) -> None:
    rng = np.random.default_rng(n)
    y, target = rng.dirichlet(np.ones(n), size=50), rng.integers(n, size=50)
    y_t = y[np.arange(50), target]
    for theta in random_thetas(20, form.n_parameters):
        alpha, beta, gamma, delta = canonical = to_canonical(theta, form)
        bracket = alpha * y_t + beta / 2 * y_t**2
        bracket += gamma / 2 * (y**2).sum(axis=1) + delta / 3 * (y**3).sum(axis=1)
        same = [theta, from_canonical(canonical, form)] if form.order == 3 else [theta]
        for each in same:
            loss = TaylorLoss(each, **asdict(form), reduction="none")
            losses = loss(torch.tensor(y).log(), torch.tensor(target)).numpy()
            assert np.ptp(losses + bracket / n) <= 1e-10


@pytest.mark.parametrize("form", [Expansion(4), Expansion(3, ("x", "z"))], ids=str)
def test_forms_without_a_canonical_form_are_refused(form: Expansion) -> None:
    assert not has_canonical_form(form)
    with pytest.raises(ValueError, match=r"form is .*; .*up to order 3 over \(x, y\)"):
        to_canonical([0.0] * form.n_parameters, form)
    for other in (form, Expansion(2)):
        with pytest.raises(ValueError, match=r"form is .*; .*has order 3 over \(x, y\)"):
            from_canonical((1.0, 2.0, 3.0, 4.0), other)


@pytest.mark.parametrize("n", [2, 10, 100])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_trainability_is_autograds_in_sign_and_size(form: Expansion, n: int) -> None:
    thetas = random_thetas(200, form.n_parameters, scale=1.0)
    gradients = first_gradients(thetas, n, form, class_reduction="sum")
    opening = (gradients[:, 1] - gradients[:, 0]).numpy()
    h = np.array([trainability(theta, n, form) for theta in thetas])
    np.testing.assert_allclose(h / n, opening, atol=1e-11, rtol=1e-8)
    has_target = "x" in form.variables and form.order > 1
    assert has_target is bool(h.any())  # what has no target cannot learn


@pytest.mark.parametrize("class_reduction", ["mean", "sum"])
@pytest.mark.parametrize("anchor", [None, Anchor(-0.7, 0.3), Anchor(1.2, -0.4)])
@pytest.mark.parametrize("form", [Expansion(), Expansion(5, ("x", "y", "t"))], ids=str)
def test_first_gradient_is_autograds_ratio(
    form: Expansion, anchor: Anchor | None, class_reduction: str
) -> None:
    n, logits = 7, torch.zeros(1, 7, dtype=torch.float64)
    reference = grad(lambda z: cross_entropy(z, torch.tensor([0])))(logits)[0]
    thetas = random_thetas(20, form.n_parameters)
    base: dict[str, Any] = {} if anchor is None else {"base": "cross_entropy", **anchor._asdict()}
    gradients = first_gradients(thetas, n, form, class_reduction=class_reduction, **base)
    for theta, gradient in zip(thetas, gradients, strict=True):
        scale = first_gradient(theta, n, form, anchor=anchor, class_reduction=class_reduction)
        torch.testing.assert_close(gradient, scale * reference, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("class_reduction", ["mean", "sum"])
def test_normalized_losses_start_like_cross_entropy(class_reduction: str) -> None:
    theta = random_thetas(1, seed=1)[0]
    theta[5] += 20
    normalized = normalize_scale(theta, 10, class_reduction=class_reduction)
    assert first_gradient(normalized, 10, class_reduction=class_reduction) == pytest.approx(1)
    assert normalized[:2] == tuple(theta[:2])
    assert np.ptp(np.array(normalized[2:]) / theta[2:]) < 1e-12
    with pytest.raises(ValueError, match="cannot begin to learn"):
        normalize_scale(-theta, 10)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("n", [2, 10])
def test_one_class_share_is_that_of_the_loss_itself(reduction: str, n: int) -> None:
    anchor = Anchor(-1.3, 0.3)
    theta = from_canonical((3.0, -1.0, 4.0, 9.0))
    loss = TaylorLoss(
        theta, base="cross_entropy", class_reduction=reduction, reduction="none", **anchor._asdict()
    )
    logits = torch.zeros(3001, n, dtype=torch.float64)
    logits[:, 0] = torch.linspace(0, math.log(n - 1) + 6, 3001)
    by_target = torch.stack([loss(logits, torch.full((3001,), t)) for t in range(n)])
    falls = [x[0] - x.min() for x in (by_target.mean(dim=0), by_target[0])]
    share = one_class_share(theta, n, anchor=anchor, class_reduction=reduction)
    assert share == pytest.approx(float(falls[0] / falls[1]), rel=0.01, abs=1e-12)
    assert (share > 0) is (reduction == "sum" or n == 2)


def test_cross_entropy_offers_nothing_for_one_class() -> None:
    assert one_class_share(ZERO, 10, anchor=Anchor(0.5, 0.3)) == 0
    blind = from_canonical((0.0, 0.0, 20.0, 0.0))
    assert one_class_share(blind, 10, anchor=Anchor(0.0, 0.9), class_reduction="sum") > 0.8
    against = from_canonical((-30.0, 0.0, -30.0, 0.0))
    assert one_class_share(against, 10, anchor=Anchor(), class_reduction="sum") == math.inf


@pytest.mark.parametrize(("factor", "steady"), [(0.99, True), (1.01, False)])
def test_steady_ends_at_the_share_of_one_class(factor: float, steady: bool) -> None:
    def share(gamma: float) -> float:
        theta = from_canonical((2.0, 0.0, gamma, 0.0))
        return one_class_share(theta, 10, anchor=Anchor(0.0, 0.4), class_reduction="sum")

    at_limit = brentq(lambda gamma: share(gamma) - MAX_ONE_CLASS_SHARE, 5.0, 30.0)
    theta = from_canonical((2.0, 0.0, factor * at_limit, 0.0))
    for log_scale in (-1.0, 1.0):  # a scale alone changes nothing
        anchor = Anchor(log_scale, 0.4)
        assert is_steady(theta, 10, anchor=anchor, class_reduction="sum") is steady


@pytest.mark.parametrize(("pace", "steady"), [(0.9, False), (1.1, True)])
def test_steady_losses_start_at_a_pace(pace: float, steady: bool) -> None:
    for log_scale in (math.log(pace * PACE[0]), math.log(PACE[1] / pace)):
        assert is_steady(ZERO, 10, anchor=Anchor(log_scale)) is steady
    falling = from_canonical((-20.0, 0, 0, 0))
    assert not is_steady(falling, 10, anchor=Anchor(), class_reduction="sum")


def test_collapse_ratio() -> None:
    assert collapse_ratio(from_canonical((1.0, 2.0, 3.0, 4.0)), 10) == pytest.approx(4 / 1.2)
    assert collapse_ratio(from_canonical((0, 0, -2, 0)), 10) == -math.inf
    assert math.isnan(collapse_ratio(ZERO, 10))


def test_wrong_arguments_are_named() -> None:
    for n_classes in (1, 2.0, True, None):
        for function in (trainability, collapse_ratio, first_gradient, normalize_scale):
            with pytest.raises(ValueError, match="n_classes must be an integer of at least 2"):
                function(ZERO, n_classes)  # type: ignore[operator]
    with pytest.raises(ValueError, match="class_reduction must be 'mean' or 'sum', not 'none'"):
        first_gradient(ZERO, 10, class_reduction="none")
    for function in (first_gradient, normalize_scale):
        with pytest.raises(ValueError, match="variables has 'z'"):
            function([0.0] * 19, 10, Expansion(3, ("x", "y", "z")))  # type: ignore[operator]
