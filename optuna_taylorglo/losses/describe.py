"""What a loss does: `describe` puts its properties into words and numbers."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import scipy
import torch
from torch import Tensor

from optuna_taylorglo.losses.canonical import (
    check_classes,
    collapse_ratio,
    first_gradient,
    has_canonical_form,
    to_canonical,
    trainability,
)
from optuna_taylorglo.losses.expansion import FloatArray
from optuna_taylorglo.losses.taylor import TaylorLoss
from optuna_taylorglo.losses.tree_loss import EvolvedLoss, TreeLoss

# dL/dz = p (1-p) L'(p) at the target, whose probability is p; the others share the rest evenly.
KNOWN_LOSSES: dict[str, Callable[[FloatArray, int], FloatArray]] = {
    "mean absolute error on probabilities": lambda p, n: -p * (1 - p),
    "squared error on probabilities (Brier)": lambda p, n: -p * (1 - p) ** 2,
    "focal loss with exponent 2": lambda p, n: 2 * p * (1 - p) ** 2 * np.log(p) - (1 - p) ** 3,
    "Baikal": lambda p, n: -((1 - p) * (1 + 1 / p) - (n - 1) * p),
}

# Even in the logit: as many near 0 and 1, where poles are, as between.
_GRID = 1 / (1 + np.exp(-np.linspace(-12, 12, 961)))
_LEAST = 1e-300


class Description(NamedTuple):
    """A loss in words and in plain values that JSON can hold; printing it gives the words."""

    text: str
    facts: dict[str, Any]

    def __str__(self) -> str:
        return self.text


class TargetCurve:
    """A loss over the target's probability p, the other classes sharing 1 - p evenly.

    Weights, ignored index and label smoothing of the loss are left out.
    """

    def __init__(self, loss: EvolvedLoss, n_classes: int, *, progress: float = 0.0) -> None:
        if isinstance(loss, TaylorLoss) and "z" in loss.form.variables:
            raise ValueError("variables has 'z': a probability does not determine raw logits.")
        self._loss = copy.deepcopy(loss).double()
        self._loss.n_classes = None  # the curve may take another number
        self._loss.reduction, self._loss.weight = "none", None
        self._loss.ignore_index, self._loss.label_smoothing = -100, 0.0
        if isinstance(self._loss, TaylorLoss):
            self._loss.progress = progress
        self._n = n_classes

    def __call__(self, p: FloatArray) -> FloatArray:
        """The loss at p; NaN where it has no value."""
        with torch.no_grad():
            return np.asarray(self._values(torch.tensor(p, dtype=torch.float64)))

    def slope(self, p: FloatArray) -> FloatArray:
        """dL/dp, for p within (0, 1)."""
        inputs = torch.tensor(p, dtype=torch.float64, requires_grad=True)
        return np.asarray(torch.autograd.grad(self._values(inputs).sum(), inputs)[0])

    def minimum(self) -> float:
        """The p in [0, 1] at which the loss is lowest; two minima closer than a grid may be one."""
        slopes = self.slope(_GRID)
        (brackets,) = np.nonzero((slopes[:-1] * slopes[1:] < 0) & np.isfinite(np.diff(slopes)))
        stationary = [
            scipy.optimize.brentq(lambda p: float(self.slope(np.array(p))), _GRID[i], _GRID[i + 1])
            for i in brackets
        ]
        points = np.array([0.0, *stationary, 1.0])
        values = self(points)
        return float(points[np.argmin(np.where(np.isnan(values), np.inf, values))])

    def _values(self, p: Tensor) -> Tensor:
        # Above 0, where 0·log 0 would be no number.
        target = p.reshape(-1, 1).clamp(min=_LEAST)
        others = ((1 - p).reshape(-1, 1) / (self._n - 1)).clamp(min=_LEAST)
        logits = torch.cat([target, others.expand(-1, self._n - 1)], dim=1).log()
        losses: Tensor = self._loss(logits, torch.zeros(len(logits), dtype=torch.int64))
        return losses.reshape(p.shape)


def nearest_known_loss(loss: EvolvedLoss, n_classes: int) -> tuple[str, float]:
    """The known loss with the most similar gradients along `TargetCurve`, and their cosine."""
    p = _path(n_classes)
    own = p * (1 - p) * TargetCurve(loss, n_classes).slope(p)
    curves = {name: curve(p, n_classes) for name, curve in KNOWN_LOSSES.items()}
    for e in np.linspace(0, 0.9, 91):
        suffix = f" with label smoothing {e:.2f}" if e else ""
        curves[f"cross-entropy{suffix}"] = p - (1 - e + e / n_classes)
    return max(((name, _cosine(own, each)) for name, each in curves.items()), key=itemgetter(1))


def describe(loss: EvolvedLoss, n_classes: int | None = None) -> Description:
    """Tell what a loss does on a problem with this many classes.

    Args:
        loss: The loss; one over training progress is described at its start.
        n_classes: Number of classes, at least 2; by default that of the loss.

    Returns:
        Text and facts: formula, canonical parameters, whether training can begin, where the
        loss is lowest, its first gradient relative to cross-entropy's, and the most similar known
        loss. Facts without a meaning for a form are None.

    Examples:
        >>> from optuna_taylorglo import TaylorLoss, describe
        >>> brier = TaylorLoss((0, 0, 0, -2, 0, 2, 0, 0), class_reduction="sum")
        >>> description = describe(brier, n_classes=10)
        >>> print(description.text.splitlines()[0])
        L = -f, the sum over 10 classes of f = -1·y² + 2·x·y
        >>> round(description.facts["gradient_scale"], 3)
        0.2
    """
    n_classes = loss.n_classes if n_classes is None else n_classes
    if n_classes is None:
        raise ValueError(
            "n_classes is not given, and the loss does not say for how many it was made: "
            "describe(loss, n_classes=10), or loss.n_classes = 10."
        )
    check_classes(n_classes)
    facts: dict[str, Any] = loss.settings() | {"canonical": None, "collapse_ratio": None}
    left, lines, last, first = "L = -f", list[str](), list[str](), None
    if isinstance(loss, TreeLoss):
        written, h = loss.formula, loss.trainability(n_classes)
        if np.isfinite(TargetCurve(loss, n_classes).slope(_path(n_classes))).all():
            first = loss.first_gradient(n_classes)
        else:
            last = ["It is not finite everywhere: a training ends where it is not."]
    else:
        theta, form, anchor = loss.theta, loss.form, loss.anchor
        written, h = form.formula(theta), trainability(theta, n_classes, form)
        if has_canonical_form(form):
            canonical = to_canonical(theta, form)
            facts["canonical"] = canonical._asdict()
            if anchor is None:
                facts["collapse_ratio"] = collapse_ratio(theta, n_classes, form)
            numbers = zip("αβγδ", canonical, strict=True)
            lines = ["Canonical form: " + ", ".join(f"{s} = {v:.4g}" for s, v in numbers) + "."]
        if "z" not in form.variables:
            reduction = loss.class_reduction
            first = first_gradient(theta, n_classes, form, anchor=anchor, class_reduction=reduction)
        if anchor is not None:
            smoothed = f" with label smoothing {anchor.smoothing:.3g}" if anchor.smoothing else ""
            scale = "" if anchor.log_scale == 0 else f"{anchor.scale:.3g} × "
            left = f"L = {scale}(cross-entropy{smoothed} - f)"
            if first is not None:
                h, last = first, _anchored_sentences(loss, n_classes)
    begin = f"can begin to learn: trainability {h:.4g} > 0"
    if not h > 0:
        begin = f"cannot begin to learn: trainability {h:.4g} is not above 0"
    lines = [
        f"{left}, the {loss.class_reduction} over {n_classes} classes of f = {written}",
        *lines,
        f"It {begin}.",
    ]
    lines += _scale_sentences(first, loss.lr_factor)
    binary = minimum = nearest = cosine = None
    if first is not None:
        nearest, cosine = nearest_known_loss(loss, n_classes)
        binary, minimum = (TargetCurve(loss, n).minimum() for n in (2, n_classes))
        lines += [
            f"It is lowest where the target has probability {minimum:.3f}"
            + ("." if n_classes == 2 else f" ({binary:.3f} with two classes)."),
            f"Most like {nearest} (cosine of gradients {cosine:.3f}).",
        ]
    facts |= {
        "formula": written,
        "n_classes": n_classes,
        "trainability": h if math.isfinite(h) else None,
        "can_begin_to_learn": h > 0,
        "gradient_scale": first,
        "lr_factor": loss.lr_factor,
        "minimum_binary": binary,
        "minimum": minimum,
        "nearest_known_loss": nearest,
        "nearest_known_loss_cosine": cosine,
    }
    return Description("\n".join(lines + last), facts)


def _scale_sentences(first: float | None, lr_factor: float | None) -> list[str]:
    """The first gradient relative to cross-entropy's, and which learning rate that means."""
    lines = []
    if first is not None:
        acts = f": at the start that acts like a learning rate {first:.3g} times as large"
        end = acts if lr_factor is None and first > 0 else ""
        lines.append(f"Its first gradient is {first:.3g} times cross-entropy's{end}.")
    if lr_factor is not None:
        rate = "the learning rate" if lr_factor == 1 else f"{lr_factor:.3g} times the learning rate"
        lines.append(
            f"It was found with an optimizer that undoes the scale of a loss: use it with {rate} "
            "of its recipe or function."
        )
    return lines


def _anchored_sentences(loss: TaylorLoss, n_classes: int) -> list[str]:
    """How the loss's gradient on the target's logit differs from cross-entropy's, p - 1."""
    curve, unlikely, sure = TargetCurve(loss, n_classes), 0.02, 0.95

    def relative(p: float) -> float:
        return float(-p * curve.slope(np.array(p)))

    def sentence(p: float, less: str, more: str) -> list[str]:
        start = relative(1 / n_classes)
        ratio = relative(p) / start if start > 0 else 1.0
        if 0.8 <= ratio <= 1.25:
            return []
        return [
            f"It {less if ratio < 1 else more}: at a probability of {p:g} its gradient, "
            f"relative to cross-entropy's, is {ratio:.2g} times that at the start."
        ]

    late = [
        f"Beyond a probability of {curve.minimum():.2f} its gradient turns around: more "
        "confident predictions cost more."
    ]
    if relative(sure) >= 0:
        right = "targets that are nearly right"
        late = sentence(sure, f"lets go of {right}", f"keeps pushing {right}")
    if 1 / n_classes <= unlikely:
        return late
    labels = "labels that the network finds unlikely"
    return late + sentence(unlikely, f"listens less to {labels}", f"insists on {labels}")


def _path(n_classes: int) -> FloatArray:
    """Probabilities of the target from the start of a training to nearly its end."""
    return np.linspace(1 / n_classes, 0.99, 200)


def _cosine(a: FloatArray, b: FloatArray) -> float:
    norm = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / norm if norm > 0 else 0.0


_CONCENTRATIONS = (10.0, 1.0, 0.1)
"""Of the Dirichlet distributions that predictions are drawn from: near uniform to nearly sure."""


def logit_gradients(loss: EvolvedLoss, n_classes: int) -> Tensor:
    """Gradients at fixed predictions in one vector, for a loss in t at three times."""
    loss = copy.deepcopy(loss).double()
    loss.n_classes = None  # the predictions may have another number
    logits, target = _predictions(n_classes)
    gradients = []
    in_time = isinstance(loss, TaylorLoss) and "t" in loss.form.variables
    for progress in (0.0, 0.5, 1.0) if in_time else (0.0,):
        if isinstance(loss, TaylorLoss):
            loss.progress = progress
        inputs = logits.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(inputs, target).sum(), inputs)
        gradients.append(gradient.flatten())
    return torch.cat(gradients)


def relative_distance(a: Tensor, b: Tensor) -> float:
    """‖a − b‖ over the greater of the two norms: 0 for equal vectors, 2 at most."""
    greatest = max(float(a.norm()), float(b.norm()))
    return float((a - b).norm()) / greatest if greatest > 0 else 0.0


@lru_cache(maxsize=8)
def _predictions(n_classes: int) -> tuple[Tensor, Tensor]:
    """Logits of shape (N, C) and targets of shape (N,), always the same."""
    generator = torch.Generator().manual_seed(0)
    parts = []
    for concentration in _CONCENTRATIONS:
        shape = torch.full((128, n_classes), concentration, dtype=torch.float64)
        # A Dirichlet draw is gamma draws over their sum, which softmax divides by; the floor keeps
        # the logarithm of a vanishing one finite.
        parts.append(torch._standard_gamma(shape, generator=generator).clamp_min(1e-12).log())
    logits = torch.cat(parts)
    return logits, torch.randint(n_classes, (len(logits),), generator=generator)
