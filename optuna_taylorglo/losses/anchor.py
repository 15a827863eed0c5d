"""Losses that start from cross-entropy, and what they are where training begins.

A Taylor loss is L = -f_θ and begins at nothing: at θ = 0 there is no gradient. The anchored family

    L = e^s (CE_ε - f_θ)                                                                   (A1)

begins at cross-entropy itself, to which θ = 0, s = 0, ε = 0 is equal. s is the logarithm of what
the learning rate is multiplied by (exactly so with plain and momentum SGD), so that scale and shape
are parameters of their own. CE_ε is cross-entropy on labels smoothed by ε; f_θ sees the labels as
they are. Label smoothing is θ = 0. PolyLoss-1, CE + ε₁ (1 - y_t), is α = ε₁ alone (with the sum
over classes), up to a constant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from optuna_taylorglo.losses.canonical import gradient_scale, uniform_curvature
from optuna_taylorglo.losses.expansion import THIRD_ORDER, Expansion

Base = Literal["none", "cross_entropy"]
BASES: tuple[Base, ...] = ("none", "cross_entropy")

PACE = (0.02, 8.0)
"""First gradients, beside cross-entropy's, between which trainings were seen to start: below they
end before they have begun, above they diverge."""

MAX_COLLAPSE = 0.7
"""Collapse ratio (A3) up to which few trainings were seen to end with one class for everything: 8
of 1,167 in searches on wrong and confused labels, against 34 of 100 above."""


class Anchor(NamedTuple):
    """Cross-entropy as the base of a loss (A1)."""

    log_scale: float = 0.0
    smoothing: float = 0.0

    @property
    def scale(self) -> float:
        """e^s, what the whole loss is multiplied by."""
        return math.exp(self.log_scale)


def make_anchor(base: str, log_scale: float, smoothing: float) -> Anchor | None:
    """The anchor that settings describe, None for a loss without a base.

    Raises:
        ValueError: If they describe none; the message names the setting.
    """
    if base not in BASES:
        raise ValueError(f"base must be one of {', '.join(BASES)}, not {base!r}.")
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


def first_gradient(
    theta: Sequence[float],
    n_classes: int,
    form: Expansion = THIRD_ORDER,
    *,
    anchor: Anchor | None,
    class_reduction: str = "mean",
    progress: float = 0.0,
) -> float:
    """First gradient of a loss relative to cross-entropy's; positive if training can begin.

    At the uniform prediction smoothed cross-entropy's gradient is ``-(1-ε) ([j = t] - 1/n)``, that
    of -f_θ is `gradient_scale` times ``-([j = t] - 1/n)``, so (A1) has

        e^s (1 - ε + gradient_scale(θ)).                                                   (A2)

    Raises:
        ValueError: If the loss is over raw logits, whose gradient has another direction.
    """
    scale = gradient_scale(
        theta, n_classes, form, class_reduction=class_reduction, progress=progress
    )
    return scale if anchor is None else anchor.scale * (1 - anchor.smoothing + scale)


def is_steady(
    theta: Sequence[float],
    n_classes: int,
    form: Expansion = THIRD_ORDER,
    *,
    anchor: Anchor,
    class_reduction: str = "mean",
) -> bool:
    """Whether an anchored loss starts learning at a pace, and does not draw all to one class.

    The first gradient (A2) must lie within `PACE`. And the pull towards one class for everything, K
    in (C4), must be small beside that towards the targets, to which cross-entropy adds n (1-ε):

        c K / (n (1-ε) + c h) < MAX_COLLAPSE,                                              (A3)

    c = 1/n or 1 by the reduction over classes, h the trainability. Without cross-entropy that is
    the collapse ratio K / h.
    """
    pace = first_gradient(theta, n_classes, form, anchor=anchor, class_reduction=class_reduction)
    if not PACE[0] < pace < PACE[1]:
        return False
    collapse = uniform_curvature(theta, n_classes, form)
    if class_reduction == "mean":
        collapse /= n_classes
    return collapse < MAX_COLLAPSE * n_classes * pace / anchor.scale
