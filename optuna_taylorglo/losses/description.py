"""What a loss does, for a person: `describe` puts its properties into words and numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.polynomial import Polynomial

from optuna_taylorglo.losses.canonical import (
    collapse_ratio,
    gradient_scale,
    has_canonical_form,
    label_polynomials,
    to_canonical,
    trainability,
)
from optuna_taylorglo.losses.expansion import FloatArray

if TYPE_CHECKING:
    from optuna_taylorglo.losses.taylor_loss import TaylorLoss

Curve = Callable[[FloatArray, int], FloatArray]

# Gradients of known losses with respect to the target's logit where the target has probability p
# and the others share the rest evenly: dL/dz = p (1-p) L'(p). Their scale does not matter here.
KNOWN_LOSSES: dict[str, Curve] = {
    "mean absolute error on probabilities": lambda p, n: -p * (1 - p),
    "squared error on probabilities (Brier)": lambda p, n: -p * (1 - p) ** 2,
    "focal loss with exponent 2": lambda p, n: 2 * p * (1 - p) ** 2 * np.log(p) - (1 - p) ** 3,
    "Baikal": lambda p, n: -((1 - p) * (1 + 1 / p) - (n - 1) * p),
}


class Description(NamedTuple):
    """A loss in words and in numbers; printing it gives the words.

    Attributes:
        text: A few lines for a person.
        facts: The same as plain values that JSON can hold.
    """

    text: str
    facts: dict[str, Any]

    def __str__(self) -> str:
        return self.text


def target_curve(loss: TaylorLoss, n_classes: int, *, progress: float = 0.0) -> Polynomial:
    """The loss as a polynomial in the target's probability p, the others sharing 1-p evenly.

        L(p) = -s [ q_1(p) + (n-1) q_0((1-p)/(n-1)) ],     s = 1/n or 1,

    which for two classes is the curve that the paper plots ("binary mode").

    Raises:
        ValueError: If the loss is over raw logits, which p does not determine.
    """
    form = loss.form
    if "z" in form.variables:
        raise ValueError("variables has 'z': a probability does not determine raw logits.")
    others, gap = (
        Polynomial(p[:, 0]) for p in label_polynomials(loss.theta, form, progress=progress)
    )
    rest = Polynomial([1 / (n_classes - 1), -1 / (n_classes - 1)])
    total = others + gap + (n_classes - 1) * others(rest)
    curve: Polynomial = -total / (n_classes if loss.class_reduction == "mean" else 1)
    return curve


def minimum_on_target(loss: TaylorLoss, n_classes: int, *, progress: float = 0.0) -> float:
    """The target probability in [0, 1] at which the loss is lowest (see `target_curve`)."""
    curve = target_curve(loss, n_classes, progress=progress)
    roots = np.asarray(curve.deriv().roots(), dtype=np.complex128)
    stationary = [float(r.real) for r in roots if abs(r.imag) < 1e-9 and 0 < r.real < 1]
    return float(min([0.0, *stationary, 1.0], key=curve))


def nearest_known_loss(loss: TaylorLoss, n_classes: int) -> tuple[str, float, float]:
    """The known loss, and the label smoothing, whose gradients are most alike.

    Compared are the gradients on the target's logit along `target_curve`, from the uniform
    prediction to 0.99, by the cosine of the angle between them: scale does not count.

    Returns:
        Name of the nearest known loss, the cosine, and the label smoothing ε with which
        cross-entropy comes nearest.
    """
    p = np.linspace(1 / n_classes, 0.99, 200)
    own = p * (1 - p) * target_curve(loss, n_classes).deriv()(p)
    smoothings = np.linspace(0, 0.9, 91)
    # Smoothed cross-entropy has the gradient p - (1 - ε + ε/n).
    smoothed = [_cosine(own, p - (1 - e + e / n_classes)) for e in smoothings]
    best = int(np.argmax(smoothed))
    epsilon = float(smoothings[best])
    names = {name: _cosine(own, curve(p, n_classes)) for name, curve in KNOWN_LOSSES.items()}
    suffix = f" with label smoothing {epsilon:.2f}" if best else ""
    names["cross-entropy" + suffix] = smoothed[best]
    nearest = max(names, key=lambda name: names[name])
    return nearest, names[nearest], epsilon


def describe(loss: TaylorLoss, n_classes: int) -> Description:
    """Tell what a loss does on a problem with this many classes.

    Args:
        loss: The loss.
        n_classes: Number of classes, at least 2.

    Returns:
        Text and facts: formula, canonical parameters, whether training can begin, where the
        loss is lowest, its first gradient beside cross-entropy's, and what it is like.
        Losses over training progress are described at its start. What has no meaning for a
        form (such as minima of losses over raw logits) is None in the facts.
    """
    form = loss.form
    h = trainability(loss.theta, n_classes, form)
    facts: dict[str, Any] = {
        "formula": form.formula(loss.theta),
        "theta": list(loss.theta),
        "order": form.order,
        "variables": list(form.variables),
        "folded": form.folded,
        "class_reduction": loss.class_reduction,
        "n_classes": n_classes,
        "trainability": h,
        "can_begin_to_learn": h > 0,
        "canonical": None,
        "collapse_ratio": None,
        "gradient_scale": None,
        "minimum_binary": None,
        "minimum": None,
        "nearest_known_loss": None,
        "nearest_known_loss_cosine": None,
        "nearest_label_smoothing": None,
    }
    over = "the mean" if loss.class_reduction == "mean" else "the sum"
    lines = [f"L = -f, {over} over {n_classes} classes of f = {facts['formula']}"]
    if has_canonical_form(form):
        canonical = to_canonical(loss.theta, form)
        facts["canonical"] = canonical._asdict()
        facts["collapse_ratio"] = collapse_ratio(loss.theta, n_classes, form)
        numbers = zip("αβγδ", canonical, strict=True)
        lines.append("Canonical form: " + ", ".join(f"{s} = {v:.4g}" for s, v in numbers) + ".")
    lines.append(
        f"It can begin to learn: trainability {h:.4g} > 0."
        if h > 0
        else f"It cannot begin to learn: trainability {h:.4g} is not above 0."
    )
    if "z" not in form.variables:
        scale = gradient_scale(loss.theta, n_classes, form, class_reduction=loss.class_reduction)
        nearest, cosine, smoothing = nearest_known_loss(loss, n_classes)
        facts["gradient_scale"] = scale
        facts["minimum_binary"] = minimum_on_target(loss, 2)
        facts["minimum"] = minimum_on_target(loss, n_classes)
        facts["nearest_known_loss"] = nearest
        facts["nearest_known_loss_cosine"] = cosine
        facts["nearest_label_smoothing"] = smoothing
        lines += [
            f"Its first gradient is {scale:.3g} times cross-entropy's: at the start that acts like "
            f"a learning rate {scale:.3g} times as large.",
            f"It is lowest where the target has probability {facts['minimum']:.3f} "
            f"({facts['minimum_binary']:.3f} with two classes).",
            f"Most like {nearest} (cosine of gradients {cosine:.3f}).",
        ]
    return Description("\n".join(lines), facts)


def _cosine(a: FloatArray, b: FloatArray) -> float:
    norm = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / norm if norm > 0 else 0.0
