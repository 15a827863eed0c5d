from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy, one_hot

from optuna_taylorglo.losses.canonical import (
    collapse_ratio,
    from_canonical,
    gradient_scale,
    has_canonical_form,
    label_polynomials,
    normalize_scale,
    smooth_labels,
    to_canonical,
    trainability,
)
from optuna_taylorglo.losses.expansion import Expansion
from optuna_taylorglo.losses.taylor import TaylorLoss, taylor_loss

PUBLISHED_MNIST = (11.9039, -4.0240, 6.9796, 8.5834, -1.6677, 11.6064, 12.6684, -3.4674)
PUBLISHED = [
    PUBLISHED_MNIST,
    (-10.9408, 7.5216, 8.2896, 0.2415, 7.8726, 8.9666, 2.0184, 7.0513),
    (0.8439, 1.4872, 1.5742, -1.4446, 2.3616, -0.6632, -2.8569, -1.1313),
]
FOLDED = Expansion(folded=True)
OTHER_FORMS = [
    Expansion(1),
    Expansion(2),
    Expansion(4),
    Expansion(6),
    Expansion(3, ("x", "y", "t")),
    Expansion(4, ("t", "y", "x")),
    Expansion(2, ("x", "z")),
    Expansion(3, ("x", "y", "z")),
    Expansion(3, ("x", "y", "z", "t")),
]


def random_thetas(count: int, size: int = 8, seed: int = 0, scale: float = 2.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(scale=scale, size=(count, size))


def equation_5(theta: Sequence[float], x: np.ndarray, y: np.ndarray, folded: bool) -> np.ndarray:
    """Eq. 5 of every row, with the mean over classes."""
    t0, t1, t2, t3, t4, t5, t6, t7 = theta
    if not folded:
        t3, t4, t6, t7 = t3 / 2, t4 / 6, t6 / 2, t7 / 2
    a, b = y - t1, x - t0
    terms = t2 * a + t3 * a**2 + t4 * a**3 + t5 * b * a + t6 * b * a**2 + t7 * b**2 * a
    return -terms.mean(axis=1)


def binary_minimum(theta: Sequence[float], folded: bool) -> float:
    p = np.linspace(0, 1, 100_001)
    losses = equation_5(theta, np.array([[1.0, 0.0]]), np.stack([p, 1 - p], axis=1), folded)
    return float(p[losses.argmin()])


def first_gradients(
    thetas: np.ndarray, n: int, form: Expansion, **settings: object
) -> torch.Tensor:
    """Gradients at equal logits for target 0, shape (P, n)."""

    def loss(logits: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
        return taylor_loss(logits, torch.tensor([0]), theta, **asdict(form), **settings)  # type: ignore[arg-type]

    zeros = torch.zeros(1, n, dtype=torch.float64)
    gradients = vmap(grad(loss), in_dims=(None, 0))(zeros, torch.tensor(thetas))
    return gradients.squeeze(1)


def test_published_theta_has_its_minimum_where_the_paper_shows_it() -> None:
    assert binary_minimum(PUBLISHED_MNIST, folded=True) == pytest.approx(0.824, abs=1e-3)
    assert binary_minimum(PUBLISHED_MNIST, folded=False) == pytest.approx(0.878, abs=1e-3)


@pytest.mark.parametrize("folded", [True, False])
def test_the_module_has_the_same_binary_minimum(folded: bool) -> None:
    p = torch.linspace(0.001, 0.999, 9981, dtype=torch.float64)
    logits = torch.stack([p.log(), (1 - p).log()], dim=1)
    loss = TaylorLoss(PUBLISHED_MNIST, folded=folded, reduction="none")
    losses = loss(logits, torch.zeros(len(p), dtype=torch.long))
    assert p[losses.argmin()].item() == pytest.approx(0.824 if folded else 0.878, abs=1e-3)


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("n", [2, 3, 10])
def test_canonical_form_is_equation_5_up_to_a_constant(n: int, folded: bool) -> None:
    rng = np.random.default_rng(n)
    y = rng.dirichlet(np.ones(n), size=50)
    x = np.eye(n)[rng.integers(n, size=50)]
    y_t = (x * y).sum(axis=1)
    for theta in random_thetas(50):
        alpha, beta, gamma, delta = to_canonical(theta, Expansion(folded=folded))
        bracket = alpha * y_t + beta / 2 * y_t**2
        bracket += gamma / 2 * (y**2).sum(axis=1) + delta / 3 * (y**3).sum(axis=1)
        constant = equation_5(theta, x, y, folded) + bracket / n
        size = max(1.0, float(np.abs(theta).max()) ** 4)
        assert np.ptp(constant) <= 1e-12 * size


def test_canonical_parameters_are_the_derived_ones() -> None:
    for t in random_thetas(100):
        alpha = t[5] - t[6] * t[1] + t[7] * (0.5 - t[0])
        expected = (alpha, t[6], t[3] - t[4] * t[1] - t[6] * t[0], t[4] / 2)
        assert to_canonical(t) == pytest.approx(expected, abs=1e-12)
        folded = t / np.array([1, 1, 1, 2, 6, 1, 2, 2])
        assert to_canonical(folded, FOLDED) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("folded", [False, True])
def test_theta_and_back_is_the_same_function(folded: bool) -> None:
    y = np.random.default_rng(1).dirichlet(np.ones(5), size=20)
    x = np.eye(5)[np.arange(20) % 5]
    form = Expansion(folded=folded)
    for theta in random_thetas(100):
        canonical = to_canonical(theta, form)
        back = from_canonical(canonical, form)
        assert to_canonical(back, form) == pytest.approx(canonical, rel=1e-15)
        difference = equation_5(theta, x, y, folded) - equation_5(back, x, y, folded)
        assert np.ptp(difference) < 1e-11


@pytest.mark.parametrize("order", [1, 2])
def test_lower_orders_have_a_canonical_form(order: int) -> None:
    low, high = Expansion(order), Expansion(3)
    theta = random_thetas(1, low.n_parameters)[0]
    padded = dict.fromkeys(high.terms, 0.0) | dict(zip(low.terms, theta[2:], strict=True))
    expected = to_canonical([*theta[:2], *padded.values()])
    assert to_canonical(theta, low) == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize(
    ("form", "name"),
    [
        (Expansion(4), r"order 4 over \(x, y\)"),
        (Expansion(3, ("x", "z")), r"order 3 over \(x, z\)"),
        (Expansion(2, ("x", "y", "t")), r"order 2 over \(x, y, t\)"),
    ],
)
def test_forms_without_a_canonical_form_are_refused(form: Expansion, name: str) -> None:
    theta = [0.0] * form.n_parameters
    assert not has_canonical_form(form)
    with pytest.raises(ValueError, match=rf"form is {name}; .*up to order 3 over \(x, y\)"):
        to_canonical(theta, form)
    with pytest.raises(ValueError, match=rf"form is {name}"):
        collapse_ratio(theta, 10, form)
    with pytest.raises(ValueError, match=rf"form is {name}; .*has order 3 over \(x, y\)"):
        from_canonical((1.0, 2.0, 3.0, 4.0), form)


def test_four_canonical_parameters_take_the_third_order() -> None:
    assert has_canonical_form(Expansion(2))
    with pytest.raises(ValueError, match="form is order 2 over"):
        from_canonical((1.0, 2.0, 3.0, 4.0), Expansion(2))


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("n", [2, 4, 10, 100])
def test_trainability_is_autograds_in_sign_and_size(n: int, folded: bool) -> None:
    thetas, form = random_thetas(10_000, seed=n), Expansion(folded=folded)
    gradients = first_gradients(thetas, n, form)[:, 0].numpy()
    h = np.array([trainability(theta, n, form) for theta in thetas])
    assert np.array_equal(np.sign(h), -np.sign(gradients))
    np.testing.assert_allclose(gradients, -(n - 1) / n**3 * h, atol=1e-13, rtol=1e-8)
    assert 0.45 < (h > 0).mean() < 0.55


@pytest.mark.parametrize("n", [2, 10])
@pytest.mark.parametrize("form", OTHER_FORMS, ids=str)
def test_trainability_of_other_forms(form: Expansion, n: int) -> None:
    thetas = random_thetas(200, form.n_parameters, scale=1.0)
    gradients = first_gradients(thetas, n, form, class_reduction="sum", progress=0.3)
    opening = (gradients[:, 1] - gradients[:, 0]).numpy()
    h = np.array([trainability(theta, n, form, progress=0.3) for theta in thetas])
    np.testing.assert_allclose(h / n, opening, atol=1e-11, rtol=1e-9)


def test_a_loss_that_knows_no_target_cannot_learn() -> None:
    assert trainability([1.0, 2.0, 3.0, 4.0], 10, Expansion(3, ("y",))) == 0.0


def test_every_published_loss_can_train() -> None:
    for theta in PUBLISHED:
        assert trainability(theta, 10, FOLDED) > 0


def test_collapse_ratio_is_its_formula() -> None:
    for theta in random_thetas(100):
        for n in (2, 10):
            a, b, g, d = to_canonical(theta)
            expected = (g + b / n + 2 * d / n) / (a + b / n)
            assert collapse_ratio(theta, n) == pytest.approx(expected, rel=1e-12)


def test_collapse_ratio_without_a_push_towards_the_target() -> None:
    assert collapse_ratio(from_canonical((0, 0, 2, 0)), 10) == math.inf
    assert collapse_ratio(from_canonical((0, 0, -2, 0)), 10) == -math.inf
    assert math.isnan(collapse_ratio([0.0] * 8, 10))


@pytest.mark.parametrize("class_reduction", ["mean", "sum"])
@pytest.mark.parametrize("form", [Expansion(), Expansion(5, ("x", "y", "t"))], ids=str)
def test_gradient_scale_is_autograds_ratio(form: Expansion, class_reduction: str) -> None:
    n, logits = 7, torch.zeros(1, 7, dtype=torch.float64)
    reference = grad(lambda z: cross_entropy(z, torch.tensor([0])))(logits)[0]
    thetas = random_thetas(20, form.n_parameters)
    settings: dict[str, Any] = {"class_reduction": class_reduction, "progress": 0.5}
    gradients = first_gradients(thetas, n, form, **settings)
    for theta, gradient in zip(thetas, gradients, strict=True):
        scale = gradient_scale(theta, n, form, **settings)
        torch.testing.assert_close(gradient, scale * reference, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("class_reduction", ["mean", "sum"])
@pytest.mark.parametrize("folded", [False, True])
def test_normalized_losses_start_like_cross_entropy(folded: bool, class_reduction: str) -> None:
    settings: dict[str, Any] = {
        "form": Expansion(folded=folded),
        "class_reduction": class_reduction,
    }
    checked = 0
    for theta in random_thetas(60):
        scale = gradient_scale(theta, 10, **settings)
        if scale <= 0:
            with pytest.raises(ValueError, match="cannot begin to learn"):
                normalize_scale(theta, 10, **settings)
            continue
        normalized = normalize_scale(theta, 10, **settings)
        assert gradient_scale(normalized, 10, **settings) == pytest.approx(1.0)
        assert normalized[:2] == tuple(theta[:2])
        assert np.array(normalized[2:]) * scale == pytest.approx(theta[2:])
        checked += 1
    assert checked > 20


def test_published_loss_starts_like_a_learning_rate_twenty_times_larger() -> None:
    scale = gradient_scale(PUBLISHED_MNIST, 10, FOLDED, class_reduction="sum")
    assert scale == pytest.approx(19.5, abs=0.1)


def test_scale_refuses_raw_logits() -> None:
    with pytest.raises(ValueError, match="variables has 'z'"):
        gradient_scale([0.0] * 19, 10, Expansion(3, ("x", "y", "z")))
    with pytest.raises(ValueError, match="variables has 'z'"):
        normalize_scale([0.0] * 19, 10, Expansion(3, ("x", "y", "z")))


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
@pytest.mark.parametrize(
    "form",
    [
        Expansion(),
        FOLDED,
        Expansion(4, ("y", "x")),
        Expansion(3, ("x", "y", "z"), True),
        Expansion(3, ("t", "x", "y")),
        Expansion(2, ("y",)),
    ],
    ids=repr,
)
def test_label_smoothing_three_ways(form: Expansion, smoothing: float) -> None:
    n = 6
    theta = random_thetas(1, form.n_parameters, scale=1.0)[0]
    logits = torch.randn(9, n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(9) % n
    hard = one_hot(labels, n).double()

    def value_and_gradient(theta: Sequence[float], target: torch.Tensor, **extra: float):
        leaf = logits.clone().requires_grad_()
        parameters = torch.tensor(theta, dtype=torch.float64)
        loss = taylor_loss(leaf, target, parameters, progress=0.4, **asdict(form), **extra)
        return loss.detach(), torch.autograd.grad(loss, leaf)[0]

    by_option = value_and_gradient(theta, labels, label_smoothing=smoothing)
    by_theta = value_and_gradient(smooth_labels(theta, smoothing, n, form), labels)
    by_hand = value_and_gradient(theta, (1 - smoothing) * hard + smoothing / n)
    soft = value_and_gradient(theta, hard, label_smoothing=smoothing)
    for other in (by_theta, by_hand, soft):
        torch.testing.assert_close(other, by_option, rtol=1e-9, atol=1e-10)


def test_label_smoothing_by_the_published_formulas() -> None:
    theta, e, n = random_thetas(1)[0], 0.2, 10
    s = smooth_labels(theta, e, n)
    assert s[0] == pytest.approx((theta[0] - e / n) / (1 - e))
    assert s[1:5] == tuple(theta[1:5])
    assert s[5:7] == pytest.approx((1 - e) * theta[5:7])
    assert s[7] == pytest.approx((1 - e) ** 2 * theta[7])


@pytest.mark.parametrize("smoothing", [-0.1, 1.0, 2.0, math.nan])
def test_smoothing_out_of_range(smoothing: float) -> None:
    with pytest.raises(ValueError, match=r"smoothing must be in \[0, 1\)"):
        smooth_labels(PUBLISHED_MNIST, smoothing, 10)


def test_label_polynomials_at_some_progress() -> None:
    form = Expansion(3, ("x", "y", "t"))
    theta = random_thetas(1, form.n_parameters)[0]
    others, gap = label_polynomials(theta, form, progress=0.7)
    dense = form.coefficients(theta)
    powers = 0.7 ** np.arange(4)
    np.testing.assert_allclose(others[:, 0], dense[0] @ powers, atol=1e-13)
    np.testing.assert_allclose(gap[:, 0], dense[1:].sum(axis=0) @ powers, atol=1e-13)


@pytest.mark.parametrize("n_classes", [1, 0, -3, 2.0, True, None])
def test_refuses_a_number_of_classes_that_is_none(n_classes: object) -> None:
    for function in (trainability, collapse_ratio, gradient_scale, normalize_scale):
        with pytest.raises(ValueError, match="n_classes must be an integer of at least 2"):
            function(PUBLISHED_MNIST, n_classes)  # type: ignore[operator]


def test_refuses_an_unknown_class_reduction() -> None:
    with pytest.raises(ValueError, match="class_reduction must be 'mean' or 'sum', not 'none'"):
        gradient_scale(PUBLISHED_MNIST, 10, class_reduction="none")
