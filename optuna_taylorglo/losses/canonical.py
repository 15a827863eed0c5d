"""What a θ means: the canonical form of a Taylor loss and the properties that follow from it.

All functions take θ as in `optuna_taylorglo.losses.expansion`, and none of them needs torch.

Derivation. Write ``q_x(y) = f(x, y)`` for the polynomial in the softmax output at label value x.
With a one-hot target t, every class but t has label 0, so

    Σ_i f(x_i, y_i) = Σ_i q_0(y_i) + (q_1 - q_0)(y_t).                                     (C1)

The softmax outputs sum to 1, so the linear term of ``Σ_i q_0(y_i)`` is a constant. At third order
``q_0`` then keeps a square and a cube, and ``q_1 - q_0`` (no xy³ term exists) a line and a square:

    L = -(1/n) [α y_t + (β/2) y_t² + (γ/2) Σ y² + (δ/3) Σ y³] + const                      (C2)

    α = θ5 - θ6 θ1 + θ7 (1/2 - θ0)     β = θ6     γ = θ3 - θ4 θ1 - θ6 θ0     δ = θ4 / 2

for the 1/α! convention; in folded parameters θ3, θ6 and θ7 stand for 1/2 and θ4 for 1/6 of theirs.
Eight parameters are four: θ2 is dead, and two θ with the same (α, β, γ, δ) train alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from optuna_taylorglo.losses.expansion import THIRD_ORDER, Expansion, FloatArray


class Canonical(NamedTuple):
    """The four numbers that a third-order loss over (x, y) consists of (C2)."""

    alpha: float
    beta: float
    gamma: float
    delta: float


def label_polynomials(
    theta: Sequence[float], form: Expansion, *, progress: float = 0.0
) -> tuple[FloatArray, FloatArray]:
    """Split a loss into what every class contributes and what the target's class adds (C1).

    Args:
        theta: The parameters.
        form: The form of the loss.
        progress: Training progress, for losses in ``t``.

    Returns:
        ``q_0`` and ``q_1 - q_0`` in plain powers: entry [j, l] multiplies ``y^j z^l``, with one
        power only of a variable that is absent.
    """
    coefficients = form.arranged_coefficients(theta)
    powers = np.power(progress, np.arange(coefficients.shape[1]))
    coefficients = np.einsum("xtyz,t->xyz", coefficients, powers)
    return coefficients[0], coefficients[1:].sum(axis=0)


def has_canonical_form(form: Expansion) -> bool:
    """Whether (C2) holds for losses of this form."""
    return form.order <= 3 and form.variables == ("x", "y")


def to_canonical(theta: Sequence[float], form: Expansion = THIRD_ORDER) -> Canonical:
    """The canonical parameters of a loss (C2).

    Args:
        theta: The parameters: 8 for order 3, 5 for order 2, 3 for order 1.
        form: The form of the loss, of order 3 or below over (x, y).
    """
    if not has_canonical_form(form):
        raise ValueError(
            f"form is {form}; the canonical form (α, β, γ, δ) exists up to order 3 over (x, y)."
        )
    others, gap = (np.pad(p[:, 0], (0, 3 - form.order)) for p in label_polynomials(theta, form))
    return Canonical(float(gap[1]), 2 * float(gap[2]), 2 * float(others[2]), 3 * float(others[3]))


def from_canonical(canonical: Sequence[float], form: Expansion = THIRD_ORDER) -> tuple[float, ...]:
    """A third-order θ over (x, y) with these canonical parameters, expanded around 0.

    Of the many θ that are the same function this one has center 0 and the parameters that (C2)
    leaves free, θ2 and θ7, at 0: ``θ3 = γ, θ4 = 2δ, θ5 = α, θ6 = β`` in the 1/α! convention.

    Args:
        canonical: (α, β, γ, δ).
        form: The form of the θ to return, of order 3 over (x, y).
    """
    if form.order != 3 or not has_canonical_form(form):
        raise ValueError(f"form is {form}; θ from (α, β, γ, δ) has order 3 over (x, y).")
    alpha, beta, gamma, delta = (float(value) for value in canonical)
    if form.folded:
        return (0.0, 0.0, 0.0, gamma / 2, delta / 3, alpha, beta / 2, 0.0)
    return (0.0, 0.0, 0.0, gamma, 2 * delta, alpha, beta, 0.0)


def trainability(
    theta: Sequence[float],
    n_classes: int,
    form: Expansion = THIRD_ORDER,
    *,
    progress: float = 0.0,
) -> float:
    """How hard the loss pushes the target's logit away from the others at the very start.

    A fresh network predicts about 1/n for every class. There the gradient of (C1) with respect to
    logit j, by the softmax's derivative, is ``-(s/n) ([j = t] - 1/n) h`` with

        h = (q_1 - q_0)'(1/n)      = α + β/n at third order,                               (C3)

    s = 1/n or 1 by the reduction over classes. Training can start only if **h > 0**: the sign of
    the target logit's gradient is minus that of h.

    With raw logits among the variables each logit also enters directly. Where all logits are 0
    the gap between the target's logit and another then grows as ``h/n + ∂_z f(1) - ∂_z f(0)``,
    and what is returned is n times that.

    Args:
        theta: The parameters.
        n_classes: Number of classes, at least 2.
        form: The form of the loss; without ``x`` it knows no target, and the result is 0: nothing
            can be learned from it.
        progress: Training progress at which to look, for losses in ``t``.

    Returns:
        h, positive for a loss that can begin to learn.
    """
    check_classes(n_classes)
    _, gap = label_polynomials(theta, form, progress=progress)
    polynomial = np.polynomial.polynomial
    # At z = 0 only z⁰ and z¹ survive: the first in ∂_y f, the second in ∂_z f.
    h = float(polynomial.polyval(1 / n_classes, polynomial.polyder(gap[:, 0])))
    if "z" in form.variables:
        h += n_classes * float(polynomial.polyval(1 / n_classes, gap[:, 1]))
    return h


def collapse_ratio(theta: Sequence[float], n_classes: int, form: Expansion = THIRD_ORDER) -> float:
    """How strongly the loss rewards sure predictions, right or wrong, against right ones.

        R = (γ + β/n + 2δ/n) / (α + β/n)                                                   (C4)

    The numerator is the curvature along which the prediction leaves 1/n whatever the target is,
    the denominator is `trainability`. Losses with h > 0 and R < 1 trained most often.

    Returns:
        R; infinite or NaN where `trainability` is 0. It means something only where that is
        positive.
    """
    alpha, beta, _, _ = to_canonical(theta, form)
    numerator = uniform_curvature(theta, n_classes, form)
    denominator = alpha + beta / n_classes
    if denominator == 0:
        return math.nan if numerator == 0 else math.copysign(math.inf, numerator)
    return numerator / denominator


def uniform_curvature(
    theta: Sequence[float], n_classes: int, form: Expansion = THIRD_ORDER
) -> float:
    """γ + β/n + 2δ/n, the numerator of (C4)."""
    check_classes(n_classes)
    _, beta, gamma, delta = to_canonical(theta, form)
    return gamma + (beta + 2 * delta) / n_classes


def gradient_scale(
    theta: Sequence[float],
    n_classes: int,
    form: Expansion = THIRD_ORDER,
    *,
    class_reduction: str = "mean",
    progress: float = 0.0,
) -> float:
    """First gradient of the loss relative to cross-entropy's.

    At the uniform prediction both gradients have the same direction: cross-entropy's is
    ``-([j = t] - 1/n)``, the loss's ``s h / n`` times that (C3). So the ratio is h/n² with the
    mean over classes and h/n with their sum. A ratio of 20 acts like a learning rate 20 times
    larger at the start of training.

    Refuses losses over raw logits: their first gradient is not parallel to cross-entropy's.
    """
    if "z" in form.variables:
        raise ValueError(
            "variables has 'z': the first gradient of a loss over raw logits is not parallel to "
            "cross-entropy's, so it has no scale relative to it."
        )
    h = trainability(theta, n_classes, form, progress=progress)
    return h / n_classes / _class_divisor(class_reduction, n_classes)


def normalize_scale(
    theta: Sequence[float],
    n_classes: int,
    form: Expansion = THIRD_ORDER,
    *,
    class_reduction: str = "mean",
) -> tuple[float, ...]:
    """θ scaled so that its first gradient equals cross-entropy's (`gradient_scale` is 1).

    Multiplying every coefficient by c > 0 (not the center) multiplies the loss and its gradient
    by c and leaves its shape alone.

    Raises:
        ValueError: If the loss cannot begin to learn: no positive factor mends that.
    """
    scale = gradient_scale(theta, n_classes, form, class_reduction=class_reduction)
    if not scale > 0:
        raise ValueError(
            f"theta has trainability {scale:.4g} ≤ 0 for {n_classes} classes: a loss that cannot "
            "begin to learn has no scale to normalize."
        )
    center = len(form.variables)
    values = form.validate(theta)
    return values[:center] + tuple(value / scale for value in values[center:])


def smooth_labels(
    theta: Sequence[float],
    smoothing: float,
    n_classes: int,
    form: Expansion = THIRD_ORDER,
) -> tuple[float, ...]:
    """The θ that on hard labels is what `theta` is on labels smoothed by ε.

    Smoothing replaces x by ``(1-ε) x + ε/n``, an affine map that the center absorbs:

        (1-ε) x + ε/n - θ0 = (1-ε) (x - θ0'),    θ0' = (θ0 - ε/n) / (1-ε)                  (C5)

    and each term takes (1-ε) to the power of its exponent in x.
    """
    check_classes(n_classes)
    if not 0 <= smoothing < 1:
        raise ValueError(f"smoothing must be in [0, 1), not {smoothing!r}.")
    values = list(form.validate(theta))
    if "x" not in form.variables:
        return tuple(values)
    axis = form.variables.index("x")
    values[axis] = (values[axis] - smoothing / n_classes) / (1 - smoothing)
    for position, alpha in enumerate(form.terms, start=len(form.variables)):
        values[position] *= (1 - smoothing) ** alpha[axis]
    return tuple(values)


def same_function(
    theta_a: Sequence[float],
    theta_b: Sequence[float],
    form: Expansion = THIRD_ORDER,
    *,
    tolerance: float = 1e-9,
) -> bool:
    """Whether two θ are the same loss on one-hot targets, up to a constant.

    By (C1) a loss on hard labels is ``q_0`` and ``q_1 - q_0`` without the parts that have no
    gradient: both constants, and the linear part of ``q_0``, since the outputs sum to 1.

    Args:
        theta_a: Parameters of one loss.
        theta_b: Parameters of the other.
        form: The form of both.
        tolerance: Largest difference of coefficients, relative to the largest coefficient.
    """
    a, b = (_effective_coefficients(theta, form) for theta in (theta_a, theta_b))
    size = max(float(np.abs(a).max()), float(np.abs(b).max()))
    return bool(np.abs(a - b).max() <= tolerance * size)


def _effective_coefficients(theta: Sequence[float], form: Expansion) -> FloatArray:
    """``q_0`` and ``q_1 - q_0`` less all that has no gradient, axes (2, t, y, z)."""
    coefficients = form.arranged_coefficients(theta)
    effective = np.stack([coefficients[0], coefficients[1:].sum(axis=0)])
    effective[:, :, 0, 0] = 0.0
    effective[0, :, 1:2, 0] = 0.0
    return effective


def _class_divisor(class_reduction: str, n_classes: int) -> int:
    if class_reduction not in ("mean", "sum"):
        raise ValueError(f"class_reduction must be 'mean' or 'sum', not {class_reduction!r}.")
    return n_classes if class_reduction == "mean" else 1


def check_classes(n_classes: int) -> None:
    """Refuse a number of classes that no classification has."""
    if isinstance(n_classes, bool) or not isinstance(n_classes, int) or n_classes < 2:
        raise ValueError(f"n_classes must be an integer of at least 2, not {n_classes!r}.")
