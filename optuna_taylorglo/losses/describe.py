"""What a loss does, for a person: `describe` puts its properties into words and numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.polynomial import Polynomial

from optuna_taylorglo.losses.anchored import Anchor, first_gradient
from optuna_taylorglo.losses.canonical import (
    check_classes,
    collapse_ratio,
    has_canonical_form,
    label_polynomials,
    to_canonical,
    trainability,
)
from optuna_taylorglo.losses.expansion import FloatArray

if TYPE_CHECKING:
    from optuna_taylorglo.losses.load import EvolvedLoss
    from optuna_taylorglo.losses.taylor import TaylorLoss
    from optuna_taylorglo.losses.tree_loss import TreeCurve, TreeLoss

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


class TargetCurve(NamedTuple):
    """A loss over the target's probability p, the other classes sharing 1 - p evenly.

        L(p) = polynomial(p) - a log p - b log(1 - p)                                      (D1)

    Attributes:
        polynomial: What the Taylor polynomial contributes, and the constants.
        log_target: a, what an anchor contributes at the target.
        log_others: b, what it contributes at the others; above 0 with label smoothing.
    """

    polynomial: Polynomial
    log_target: float = 0.0
    log_others: float = 0.0

    def __call__(self, p: FloatArray) -> FloatArray:
        """The loss at p; infinite where a logarithm is."""
        values = np.asarray(self.polynomial(p), dtype=np.float64)
        with np.errstate(divide="ignore"):
            for factor, q in ((self.log_target, p), (self.log_others, 1 - np.asarray(p))):
                values = values - factor * np.log(q) if factor != 0 else values
        return values

    def slope(self, p: FloatArray) -> FloatArray:
        """dL/dp, for p within (0, 1)."""
        slope: FloatArray = self.polynomial.deriv()(p) - self.log_target / p
        return slope + self.log_others / (1 - p)

    def stationary_points(self) -> list[float]:
        """Where in (0, 1) the slope is 0: with logarithms the roots of ``p (1-p) L'(p)``."""
        product = self.polynomial.deriv()
        if self.log_target or self.log_others:
            p = Polynomial([0.0, 1.0])
            product = p * (1 - p) * product - self.log_target * (1 - p) + self.log_others * p
        roots = np.asarray(product.roots(), dtype=np.complex128)
        return [float(r.real) for r in roots if abs(r.imag) < 1e-9 and 0 < r.real < 1]


def target_curve(
    loss: EvolvedLoss, n_classes: int, *, progress: float = 0.0
) -> TargetCurve | TreeCurve:
    """The loss over the target's probability p, the others sharing 1-p evenly.

        L(p) = -s [ q_1(p) + (n-1) q_0((1-p)/(n-1)) ],     s = 1/n or 1,     q_x(y) = f(x, y),

    which for two classes is the curve that the paper plots ("binary mode"). With an anchor it is
    e^s times the sum of that and of smoothed cross-entropy,
    ``-(1 - ε (n-1)/n) log p - ε (n-1)/n log((1-p)/(n-1))``.

    Raises:
        ValueError: If the loss is over raw logits, which p does not determine.
    """
    from optuna_taylorglo.losses.tree_loss import TreeLoss

    if isinstance(loss, TreeLoss):
        from optuna_taylorglo.losses.tree_loss import TreeCurve

        return TreeCurve(loss, n_classes)
    form = loss.form
    if "z" in form.variables:
        raise ValueError("variables has 'z': a probability does not determine raw logits.")
    others, gap = (
        Polynomial(p[:, 0]) for p in label_polynomials(loss.theta, form, progress=progress)
    )
    rest = Polynomial([1 / (n_classes - 1), -1 / (n_classes - 1)])
    total = others + gap + (n_classes - 1) * others(rest)
    polynomial = -total / (n_classes if loss.class_reduction == "mean" else 1)
    if loss.anchor is None:
        return TargetCurve(polynomial)
    scale = loss.anchor.scale
    shared = loss.anchor.smoothing * (n_classes - 1) / n_classes
    constant = shared * float(np.log(n_classes - 1))
    return TargetCurve(scale * (polynomial + constant), scale * (1 - shared), scale * shared)


def minimum_on_target(loss: EvolvedLoss, n_classes: int, *, progress: float = 0.0) -> float:
    """The target probability in [0, 1] at which the loss is lowest (see `target_curve`)."""
    curve = target_curve(loss, n_classes, progress=progress)
    points = np.array([0.0, *curve.stationary_points(), 1.0])
    values = curve(points)
    return float(points[np.argmin(np.where(np.isnan(values), np.inf, values))])


def nearest_known_loss(loss: EvolvedLoss, n_classes: int) -> tuple[str, float, float]:
    """The known loss, and the label smoothing, whose gradients are most alike.

    Compared are the gradients on the target's logit along `target_curve`, from the uniform
    prediction to 0.99, by the cosine of the angle between them: scale does not count.

    Returns:
        Name of the nearest known loss, the cosine, and the label smoothing ε with which
        cross-entropy comes nearest.
    """
    p = _path(n_classes)
    own = p * (1 - p) * target_curve(loss, n_classes).slope(p)
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


def describe(loss: EvolvedLoss, n_classes: int) -> Description:
    """Tell what a loss does on a problem with this many classes.

    Args:
        loss: The loss.
        n_classes: Number of classes, at least 2.

    Returns:
        Text and facts: formula, canonical parameters, whether training can begin, where the
        loss is lowest, its first gradient beside cross-entropy's, and what it is like.
        Losses over training progress are described at its start. What has no meaning for a
        form (such as minima of losses over raw logits) is None in the facts.

    Examples:
        >>> from optuna_taylorglo import TaylorLoss, describe
        >>> brier = TaylorLoss((0, 0, 0, -2, 0, 2, 0, 0), class_reduction="sum")
        >>> description = describe(brier, n_classes=10)
        >>> print(description.text.splitlines()[0])
        L = -f, the sum over 10 classes of f = -1·y² + 2·x·y
        >>> round(description.facts["gradient_scale"], 3)
        0.2
    """
    from optuna_taylorglo.losses.tree_loss import TreeLoss

    check_classes(n_classes)
    if isinstance(loss, TreeLoss):
        return _described_tree(loss, n_classes)
    form, anchor = loss.form, loss.anchor
    over_logits = "z" in form.variables
    first = None if over_logits else _first_gradient(loss, n_classes)
    # Where logits are no variables, both have the same sign; an anchor is in the latter only.
    h = first if anchor is not None and first is not None else _trainability(loss, n_classes)
    facts: dict[str, Any] = {
        "formula": form.formula(loss.theta),
        "theta": list(loss.theta),
        "order": form.order,
        "variables": list(form.variables),
        "folded": form.folded,
        "anchor": None if anchor is None else anchor._asdict(),
        "canonical": None,
        "collapse_ratio": None,
    }
    left = "L = -f" if anchor is None else _anchored_formula(anchor)
    lines = [_first_line(left, loss, n_classes, facts["formula"])]
    if has_canonical_form(form):
        canonical = to_canonical(loss.theta, form)
        facts["canonical"] = canonical._asdict()
        if anchor is None:
            facts["collapse_ratio"] = collapse_ratio(loss.theta, n_classes, form)
        numbers = zip("αβγδ", canonical, strict=True)
        lines.append("Canonical form: " + ", ".join(f"{s} = {v:.4g}" for s, v in numbers) + ".")
    effects = _effects(loss, n_classes, h, first)
    lines.append(effects.text)
    if anchor is not None and first is not None:
        lines += _anchored_sentences(loss, n_classes)
    return Description("\n".join(lines), facts | effects.facts)


def _described_tree(loss: TreeLoss, n_classes: int) -> Description:
    from optuna_taylorglo.losses.tree_loss import tree_gradient_scale, tree_trainability

    facts = {
        "formula": loss.formula,
        "tree": loss.tree.to_prefix(),
        "coefficients": list(loss.coefficients),
    }
    first = tree_gradient_scale(loss, n_classes)
    finite = bool(np.isfinite(target_curve(loss, n_classes).slope(_path(n_classes))).all())
    h = tree_trainability(loss, n_classes)
    effects = _effects(loss, n_classes, h, first if finite else None)
    lines = [_first_line("L = -f", loss, n_classes, loss.formula), effects.text]
    if not finite:
        lines.append("It is not finite everywhere: a training ends where it is not.")
    return Description("\n".join(lines), facts | effects.facts)


def _first_line(left: str, loss: EvolvedLoss, n_classes: int, formula: str) -> str:
    over = "the mean" if loss.class_reduction == "mean" else "the sum"
    return f"{left}, {over} over {n_classes} classes of f = {formula}"


def _effects(loss: EvolvedLoss, n_classes: int, h: float, first: float | None) -> Description:
    """What a loss of any form does.

    Args:
        loss: The loss.
        n_classes: Number of classes.
        h: Its trainability.
        first: Its first gradient beside cross-entropy's; None for a loss that is not to be looked
            at over the target's probability.
    """
    facts: dict[str, Any] = {
        "class_reduction": loss.class_reduction,
        "n_classes": n_classes,
        "trainability": h if math.isfinite(h) else None,
        "can_begin_to_learn": h > 0,
        "gradient_scale": first,
        "minimum_binary": None,
        "minimum": None,
        "nearest_known_loss": None,
        "nearest_known_loss_cosine": None,
        "nearest_label_smoothing": None,
    }
    begins = (
        f"It can begin to learn: trainability {h:.4g} > 0."
        if h > 0
        else f"It cannot begin to learn: trainability {h:.4g} is not above 0."
    )
    if first is None:
        return Description(begins, facts)
    nearest, cosine, smoothing = nearest_known_loss(loss, n_classes)
    facts |= {
        "minimum_binary": minimum_on_target(loss, 2),
        "minimum": minimum_on_target(loss, n_classes),
        "nearest_known_loss": nearest,
        "nearest_known_loss_cosine": cosine,
        "nearest_label_smoothing": smoothing,
    }
    lines = [
        begins,
        f"Its first gradient is {first:.3g} times cross-entropy's: at the start that acts like "
        f"a learning rate {first:.3g} times as large.",
        f"It is lowest where the target has probability {facts['minimum']:.3f} "
        f"({facts['minimum_binary']:.3f} with two classes).",
        f"Most like {nearest} (cosine of gradients {cosine:.3f}).",
    ]
    return Description("\n".join(lines), facts)


def _first_gradient(loss: TaylorLoss, n_classes: int) -> float:
    return first_gradient(
        loss.theta,
        n_classes,
        loss.form,
        anchor=loss.anchor,
        class_reduction=loss.class_reduction,
    )


def _trainability(loss: TaylorLoss, n_classes: int) -> float:
    return trainability(loss.theta, n_classes, loss.form)


def _anchored_formula(anchor: Anchor) -> str:
    smoothed = f" with label smoothing {anchor.smoothing:.3g}" if anchor.smoothing else ""
    return f"L = {anchor.scale:.3g} × (cross-entropy{smoothed} - f)"


def _anchored_sentences(loss: TaylorLoss, n_classes: int) -> list[str]:
    """What a loss does to cross-entropy, from the start of a training to its end.

    Compared are gradients on the target's logit, ``p (1-p) L'(p)``, with cross-entropy's ``p - 1``.
    """
    curve = target_curve(loss, n_classes)
    start, sure, doubted = 1 / n_classes, 0.95, 0.02

    def relative(p: float) -> float:
        return float(p * (1 - p) * curve.slope(np.array(p)) / (p - 1))

    first, late, early = relative(start), relative(sure), relative(doubted)
    sentences = []
    if late < 0:
        sentences.append(
            f"Beyond a probability of {minimum_on_target(loss, n_classes):.2f} it pulls a "
            "prediction back: being surer costs."
        )
    elif first > 0 and (verb := _changed(late / first, "lets go of", "goes on pushing")):
        sentences.append(
            f"It {verb} targets that are nearly right: at a probability of {sure:g} it pulls "
            f"{late / first:.2g} times as hard, beside cross-entropy, as at the start."
        )
    unlikely = first > 0 and start > doubted
    if unlikely and (verb := _changed(early / first, "listens less to", "insists on")):
        sentences.append(
            f"It {verb} labels that the network finds unlikely: at a probability of {doubted:g} "
            f"it pulls {early / first:.2g} times as hard, beside cross-entropy, as at the start."
        )
    return sentences


def _changed(ratio: float, less: str, more: str) -> str:
    """A word for a ratio that is worth one."""
    return less if ratio < 0.8 else more if ratio > 1.25 else ""


def _path(n_classes: int) -> FloatArray:
    """Probabilities of the target from the start of a training to nearly its end."""
    return np.linspace(1 / n_classes, 0.99, 200)


def _cosine(a: FloatArray, b: FloatArray) -> float:
    norm = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / norm if norm > 0 else 0.0
