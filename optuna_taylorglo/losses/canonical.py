"""What a θ means: its canonical form, its anchor, and where a training with it begins.

With ``q_x(y) = f(x, y)`` and a one-hot target t (`docs/method.md` has the derivations)

    Σ_i f(x_i, y_i) = Σ_i q_0(y_i) + (q_1 - q_0)(y_t)                                      (C1)

    L = -(1/n) [α y_t + (β/2) y_t² + (γ/2) Σ y² + (δ/3) Σ y³] + const                      (C2)

    α = θ5 - θ6 θ1 + θ7 (1/2 - θ0)     β = θ6     γ = θ3 - θ4 θ1 - θ6 θ0     δ = θ4 / 2

for the 1/α! convention; in folded parameters θ3, θ6 and θ7 stand for 1/2 and θ4 for 1/6 of theirs.
Anchored at cross-entropy a loss is ``e^s (CE_ε - f_θ)``, ε smoothing cross-entropy alone.      (A1)
This module needs no torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.polynomial.polynomial import polyder, polyval

from optuna_taylorglo.losses.expansion import THIRD_ORDER, Expansion, FloatArray

Base = Literal["none", "cross_entropy"]

RATE_FACTORS = (0.01, 30.0)
"""Factors on the learning rate, where it is searched in the place of a loss's scale."""

PACE = (0.003, 5.0)
"""First gradients, relative to cross-entropy's, between which trainings were seen to start: with
less they end before they have begun, with more they diverge. 0.02 was best with wrong labels."""

MAX_ONE_CLASS_SHARE = 0.08
"""Share (A3) up to which few trainings were seen to end with one class for everything: 3 of 4,939
in searches on four tasks, against 84 of 661 above."""


class Canonical(NamedTuple):
    """The four numbers of a third-order loss over (x, y) (C2)."""

    alpha: float
    beta: float
    gamma: float
    delta: float


class Anchor(NamedTuple):
    """Cross-entropy as the base of a loss (A1)."""

    log_scale: float = 0.0
    smoothing: float = 0.0

    @property
    def scale(self) -> float:
        """e^s, the factor of the whole loss."""
        return math.exp(self.log_scale)


def make_anchor(base: str, log_scale: float, smoothing: float) -> Anchor | None:
    """The anchor that settings describe, None for a loss without a base; ValueError if wrong."""
    if base not in get_args(Base):
        raise ValueError(f"base must be one of {', '.join(get_args(Base))}, not {base!r}.")
    anchor = Anchor(float(log_scale), float(smoothing))
    if base == "none":
        for name, value in anchor._asdict().items():
            if value != 0:
                raise ValueError(f"{name} is {value:g}; it needs base='cross_entropy'.")
        return None
    if not abs(anchor.log_scale) <= 50:
        raise ValueError(f"log_scale must be in [-50, 50], not {log_scale!r}.")
    if not -1 <= anchor.smoothing < 1:
        raise ValueError(f"smoothing must be in [-1, 1), not {smoothing!r}.")
    return anchor


def label_polynomials(
    theta: Sequence[float], form: Expansion, low: float = 0.0, high: float = 1.0
) -> tuple[FloatArray, FloatArray]:
    """``q_low`` and ``q_high - q_low`` (C1) at the start of training in plain powers of y and z.

    Entry [j, l] multiplies ``y^j z^l``; a variable that is absent has one power only.
    """
    present = [v for v in "xtyz" if v in form.variables]
    shape = [form.order + 1 if v in present else 1 for v in "xtyz"]
    dense = form.coefficients(theta).transpose([form.variables.index(v) for v in present])
    coefficients = list(enumerate(dense.reshape(shape)[:, 0]))
    others = np.sum([low**i * c for i, c in coefficients], axis=0)
    return others, np.sum([(high**i - low**i) * c for i, c in coefficients], axis=0)


def has_canonical_form(form: Expansion) -> bool:
    """Whether (C2) holds for losses of this form."""
    return form.order <= 3 and form.variables == ("x", "y")


def to_canonical(theta: Sequence[float], form: Expansion = THIRD_ORDER) -> Canonical:
    """The canonical parameters of a loss of order 3 or below over (x, y) (C2)."""
    if not has_canonical_form(form):
        raise ValueError(
            f"form is {form}; the canonical form (α, β, γ, δ) exists up to order 3 over (x, y)."
        )
    others, gap = (np.pad(p[:, 0], (0, 3 - form.order)) for p in label_polynomials(theta, form))
    return Canonical(float(gap[1]), 2 * float(gap[2]), 2 * float(others[2]), 3 * float(others[3]))


def from_canonical(canonical: Sequence[float], form: Expansion = THIRD_ORDER) -> tuple[float, ...]:
    """The third-order θ over (x, y) with these (α, β, γ, δ), center 0 and θ2 = θ7 = 0."""
    if form.order != 3 or not has_canonical_form(form):
        raise ValueError(f"form is {form}; θ from (α, β, γ, δ) has order 3 over (x, y).")
    alpha, beta, gamma, delta = (float(value) for value in canonical)
    if form.folded:
        return (0.0, 0.0, 0.0, gamma / 2, delta / 3, alpha, beta / 2, 0.0)
    return (0.0, 0.0, 0.0, gamma, 2 * delta, alpha, beta, 0.0)


def trainability(theta: Sequence[float], n_classes: int, form: Expansion = THIRD_ORDER) -> float:
    """How hard the loss pushes the target's logit up at the prediction 1/n: h > 0 can learn.

    The gradient of (C1) there is ``-(s/n) ([j = t] - 1/n) h``, s = 1/n or 1 by the reduction, with

        h = (q_1 - q_0)'(1/n)      = α + β/n at third order,                               (C3)

    and with z among the variables ``n (h/n + ∂_z f(1) - ∂_z f(0))`` where all logits are 0.
    """
    check_classes(n_classes)
    _, gap = label_polynomials(theta, form)
    # At z = 0 only z⁰ and z¹ survive: the first in ∂_y f, the second in ∂_z f.
    h = float(polyval(1 / n_classes, polyder(gap[:, 0])))
    if "z" in form.variables:
        h += n_classes * float(polyval(1 / n_classes, gap[:, 1]))
    return h


def collapse_ratio(theta: Sequence[float], n_classes: int, form: Expansion = THIRD_ORDER) -> float:
    """How strongly the loss rewards sure predictions, right or wrong, against right ones.

        R = (γ + β/n + 2δ/n) / (α + β/n)                                                   (C4)

    The numerator is the curvature along which the prediction leaves 1/n whatever the target is.
    Losses with h > 0 and R < 1 trained most often. Where h is 0, R is infinite or NaN.
    """
    check_classes(n_classes)
    alpha, beta, gamma, delta = to_canonical(theta, form)
    numerator = np.float64(gamma + (beta + 2 * delta) / n_classes)
    with np.errstate(all="ignore"):
        return float(numerator / (alpha + beta / n_classes))


def first_gradient(
    theta: Sequence[float],
    n_classes: int,
    form: Expansion = THIRD_ORDER,
    *,
    anchor: Anchor | None = None,
    class_reduction: str = "mean",
) -> float:
    """First gradient of the loss relative to cross-entropy's, positive if training can begin.

    By (C3) it is r = h/n² with the mean over classes, h/n with their sum, and anchored (A1)

        e^s (1 - ε + r).                                                                   (A2)
    """
    if "z" in form.variables:
        raise ValueError("variables has 'z': a loss over raw logits has no scale at the start.")
    h = trainability(theta, n_classes, form)
    ratio = h / n_classes / _class_divisor(class_reduction, n_classes)
    return ratio if anchor is None else anchor.scale * (1 - anchor.smoothing + ratio)


def normalize_scale(
    theta: Sequence[float],
    n_classes: int,
    form: Expansion = THIRD_ORDER,
    *,
    class_reduction: str = "mean",
) -> tuple[float, ...]:
    """θ with its coefficients (not the center) divided by its `first_gradient`, which becomes 1."""
    scale = first_gradient(theta, n_classes, form, class_reduction=class_reduction)
    if not scale > 0:
        raise ValueError(
            f"theta cannot begin to learn {n_classes} classes: its first gradient is {scale:.4g}."
        )
    center = len(form.variables)
    values = form.validate(theta)
    return values[:center] + tuple(value / scale for value in values[center:])


def one_class_share(
    theta: Sequence[float],
    n_classes: int,
    form: Expansion = THIRD_ORDER,
    *,
    anchor: Anchor,
    class_reduction: str = "mean",
) -> float:
    """The share of an anchored loss's possible decrease that one class for everything gives.

    From the uniform prediction u let one logit grow until its class has the probability c, the
    others 1 - c in equal parts: p(c). With T the target, uniform over the classes, it is

        max_c E_T [L(u, T) - L(p(c), T)] / max_c [L(u, t) - L(p(c), t)].                   (A3)

    A network that has fallen into the first well does not come out again.
    """
    alpha, beta, gamma, delta = to_canonical(theta, form)
    divisor = _class_divisor(class_reduction, n_classes)
    logits = np.linspace(0, np.log(n_classes - 1) + 6, 100)
    one = 1 / (1 + (n_classes - 1) * np.exp(-logits))
    other = (1 - one) / (n_classes - 1)

    # Two of a class's contributions to (C2): as the target, and as any class.
    def as_target(y: FloatArray) -> FloatArray:
        return alpha * y + beta / 2 * y**2

    def as_any(y: FloatArray) -> FloatArray:
        return gamma / 2 * y**2 + delta / 3 * y**3

    any_target = (np.log(one) + (n_classes - 1) * np.log(other)) / n_classes
    mean_reward = (as_target(one) + (n_classes - 1) * as_target(other)) / n_classes
    confidence = as_any(one) + (n_classes - 1) * as_any(other)
    right = (
        (1 - anchor.smoothing) * np.log(one)
        + anchor.smoothing * any_target
        + (as_target(one) + confidence) / divisor
    )
    same_for_all = any_target + (mean_reward + confidence) / divisor
    deepest_right = float(np.max(right) - right[0])
    if deepest_right <= 0:
        return math.inf
    return float(np.max(same_for_all) - same_for_all[0]) / deepest_right


def is_steady(
    theta: Sequence[float],
    n_classes: int,
    form: Expansion = THIRD_ORDER,
    *,
    anchor: Anchor,
    class_reduction: str = "mean",
    lr_factor: float | None = None,
) -> bool:
    """Whether its first gradient (A2) lies within `PACE` and (A3) below the maximum.

    Where the optimizer undoes the scale of a loss, a factor on the learning rate sets the pace.
    """
    pace = first_gradient(theta, n_classes, form, anchor=anchor, class_reduction=class_reduction)
    if not pace > 0:
        return False
    value, (low, high) = (pace, PACE) if lr_factor is None else (lr_factor, RATE_FACTORS)
    if not low < value < high:
        return False
    share = one_class_share(theta, n_classes, form, anchor=anchor, class_reduction=class_reduction)
    return share < MAX_ONE_CLASS_SHARE


def check_classes(n_classes: int) -> None:
    """Refuse an invalid number of classes."""
    if isinstance(n_classes, bool) or not isinstance(n_classes, int) or n_classes < 2:
        raise ValueError(f"n_classes must be an integer of at least 2, not {n_classes!r}.")


def _class_divisor(class_reduction: str, n_classes: int) -> int:
    if class_reduction not in ("mean", "sum"):
        raise ValueError(f"class_reduction must be 'mean' or 'sum', not {class_reduction!r}.")
    return n_classes if class_reduction == "mean" else 1
