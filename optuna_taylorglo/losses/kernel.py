"""Evaluates a polynomial loss on a batch of logits, with the conventions of cross-entropy.

For hard targets a class has one of two label values, so the loss is one polynomial in the
prediction for all classes and one more for the target's, (C1) in `losses.canonical`:

    L = -s [ Σ_i q_0(y_i) + (q_1 - q_0)(y_t) ],     s = 1/n or 1.

No one-hot tensor is made and no class is looped over. Label smoothing moves the two label values
and changes nothing else. Soft targets take the polynomial in x as well. A loss with an anchor is
``e^s (CE_ε + L)`` with that L, see `losses.anchor`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from optuna_taylorglo.losses.conventions import (
    Conventions,
    at_least_float32,
    check_indices,
    check_probabilities,
    check_weight,
    class_axis,
    count_samples,
    reduce_hard,
    reduce_soft,
    weight_of_classes,
)
from optuna_taylorglo.losses.fused_gradient import FusedLoss

Scalar = float | Tensor
"""A coefficient: a plain number, or a tensor of no dimensions where θ is a tensor."""

Polynomial = Sequence[Sequence[Scalar]]
"""Entry [j][l] multiplies ``y^j z^l``; a variable that is absent has power 0 only."""

AnchorValues = tuple[Scalar, Scalar]
"""Scale e^s and smoothing ε of cross-entropy under a loss."""


def polynomial_loss(
    logits: Tensor,
    target: Tensor,
    coefficients: Sequence[Polynomial],
    conventions: Conventions,
    anchor: AnchorValues | None = None,
    *,
    fixed: bool = False,
) -> Tensor:
    """The loss ``-s Σ_i f(x_i, y_i, z_i)`` of a batch, or that on top of cross-entropy.

    Args:
        logits: Shape (C,), (N, C) or (N, C, d1, …).
        target: Class indices of the shape of `logits` without its C, or class probabilities of
            the shape of `logits`.
        coefficients: Entry [i][j][l] multiplies ``x^i y^j z^l``.
        conventions: Reductions, weights and smoothing.
        anchor: Cross-entropy under the polynomial, if there is any.
        fixed: Whether the coefficients are numbers in tuples, to be met again in later calls, and
            the anchor is one of numbers.

    Returns:
        A scalar, or with reduction "none" the loss of each sample. float32 for half-precision
        logits, else of their dtype.
    """
    check_weight(logits, conventions.weight)
    if class_axis(logits) == 0:
        batch = logits.unsqueeze(0), target.unsqueeze(0)
        loss = polynomial_loss(*batch, coefficients, conventions, anchor, fixed=fixed)
        return loss.squeeze(0) if conventions.reduction == "none" else loss
    logits = at_least_float32(logits)
    if target.is_floating_point():
        return _soft_loss(logits, target, coefficients, conventions, anchor)
    return _hard_loss(logits, target, coefficients, conventions, anchor, fixed)


def _hard_loss(
    logits: Tensor,
    target: Tensor,
    coefficients: Sequence[Polynomial],
    conventions: Conventions,
    anchor: AnchorValues | None,
    fixed: bool,
) -> Tensor:
    check_indices(logits, target)
    index, counts, reduction = target.long().unsqueeze(1), None, conventions.reduction
    if conventions.weight is not None or not _all_count(index, conventions.ignore_index):
        counts = count_samples(index, logits.dtype, conventions)
        index = index * counts.valid
    n = logits.shape[1]
    labels = n, -conventions.class_scale(n), conventions.label_smoothing
    if anchor is not None:
        anchor = anchor[0], _twice_smoothed(anchor[1], conventions.label_smoothing)

    def reduced(losses: Tensor, logits: Tensor) -> Tensor:
        if anchor is None:
            return reduce_hard(losses, counts, reduction)
        base = _cross_entropy(logits, index, anchor[1], conventions.weight)
        return anchor[0] * reduce_hard(losses, counts, reduction, weighted=base)

    if len(coefficients[0][0]) > 1:
        polynomials = _label_polynomials(coefficients, *labels)
        return reduced(_losses_over_logits(logits, index, *polynomials), logits)
    simplify = _simplified_once if fixed else _simplified
    powers, at_target = simplify(coefficients, *labels)

    def plain(logits: Tensor) -> Tensor:
        return reduced(_losses(logits, index, powers, at_target), logits)

    # Cross-entropy weights each class, the fused gradient each sample.
    fusible = fixed and reduction != "none" and (anchor is None or conventions.weight is None)
    # An autograd function in Python has no rules for transforms and forward mode.
    if fusible and not (_transforms_active() or _has_tangent(logits)):
        loss: Tensor = FusedLoss.apply(
            logits, index, counts, reduction, powers, at_target, anchor, plain
        )
        return loss
    return plain(logits)


def _twice_smoothed(first: Scalar, second: float) -> Scalar:
    """One smoothing that is two, one after the other: 1 - (1 - ε)(1 - ε')."""
    return first + second - first * second


def _cross_entropy(
    logits: Tensor, index: Tensor, smoothing: Scalar, weight: Tensor | None
) -> Tensor:
    """Cross-entropy of each sample, weighted and smoothed as PyTorch's is; shape (N, 1, …)."""
    log_y = torch.log_softmax(logits, dim=1)
    if weight is not None:
        log_y = log_y * weight_of_classes(weight, logits)
    every_class = log_y.mean(dim=1, keepdim=True)
    return torch.as_tensor(-(1 - smoothing) * log_y.gather(1, index) - smoothing * every_class)


def _all_count(index: Tensor, ignore_index: int) -> bool:
    """Whether it is known that no sample is ignored; only a CPU is asked, a GPU would wait."""
    if not index.is_cpu or torch.compiler.is_compiling() or _transforms_active():
        return False
    return ignore_index < 0 and index.numel() > 0 and int(index.min()) >= 0


def _transforms_active() -> bool:
    """Whether a transform of `torch.func` is at work; PyTorch has no public question for it."""
    return bool(torch._C._are_functorch_transforms_active())


def _has_tangent(logits: Tensor) -> bool:
    tangent: Tensor | None = unpack_dual(logits).tangent  # type: ignore[no-untyped-call]
    return tangent is not None


def _soft_loss(
    logits: Tensor,
    target: Tensor,
    coefficients: Sequence[Polynomial],
    conventions: Conventions,
    anchor: AnchorValues | None,
) -> Tensor:
    check_probabilities(logits, target, conventions.ignore_index)
    n, smoothing = logits.shape[1], conventions.label_smoothing
    x = target.to(logits.dtype)
    if smoothing > 0:
        x = x * (1 - smoothing) + smoothing / n
    y = torch.softmax(logits, dim=1)
    in_x = [_evaluate(polynomial, y, logits) for polynomial in coefficients]
    losses: Tensor = -conventions.class_scale(n) * _horner(in_x, x).sum(dim=1)
    if anchor is None:
        return reduce_soft(losses, x, conventions)
    scale, base_smoothing = anchor
    log_y = torch.log_softmax(logits, dim=1)
    if conventions.weight is not None:
        log_y = log_y * weight_of_classes(conventions.weight, logits)
    base = -((x * (1 - base_smoothing) + base_smoothing / n) * log_y).sum(dim=1)
    return scale * reduce_soft(losses, x, conventions, weighted=base)


def _label_polynomials(
    coefficients: Sequence[Polynomial], n: int, scale: float, smoothing: float
) -> tuple[Polynomial, Polynomial]:
    """``scale · q`` at the label value of every class, and what the target's adds to it."""
    low = smoothing / n
    high = low + 1 - smoothing
    exponents = range(len(coefficients))
    others = _combine(coefficients, [scale * low**i for i in exponents])
    gap = _combine(coefficients[1:], [scale * (high**i - low**i) for i in exponents[1:]])
    return others, gap


def _simplified(
    coefficients: Sequence[Polynomial], n: int, scale: float, smoothing: float
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The polynomials of a loss without z: powers 2, 3, … of every class, all of the target's."""
    others, gap = _label_polynomials(coefficients, n, scale, smoothing)
    every = [row[0] for row in others]
    first, *rest = [row[0] for row in gap] or [0.0]
    # The outputs sum to 1, so powers 0 and 1 of every class come to a constant.
    return tuple(every[2:]), (first + n * every[0] + every[1], *(rest or [0.0]))


_simplified_once = lru_cache(_simplified)


def _losses_over_logits(
    logits: Tensor, index: Tensor, others: Polynomial, gap: Polynomial
) -> Tensor:
    """Losses of each sample for a polynomial with z in it, shape (N, 1, …)."""
    y = torch.softmax(logits, dim=1)
    every_class = _evaluate(others, y, logits).sum(dim=1, keepdim=True)
    at_target = _evaluate(gap, y.gather(1, index), logits.gather(1, index))
    return torch.as_tensor(every_class + at_target)


def _losses(
    logits: Tensor, index: Tensor, powers: Sequence[Scalar], at_target: Sequence[Scalar]
) -> Tensor:
    """Losses of each sample, shape (N, 1, …); formula and arguments as in `FusedLoss`."""
    y = torch.softmax(logits, dim=1)
    losses: Tensor = _horner(at_target, y.gather(1, index))
    if powers:
        losses = losses + (_horner(powers, y) * y * y).sum(dim=1, keepdim=True)
    return losses


def _combine(polynomials: Sequence[Polynomial], factors: Sequence[float]) -> Polynomial:
    """``Σ_i factors[i] · polynomials[i]``, term by term."""
    return [
        [
            sum((f * c for f, c in zip(factors, terms, strict=True) if f), start=0.0)
            for terms in zip_longest(*rows, fillvalue=0.0)
        ]
        for rows in zip_longest(*polynomials, fillvalue=())
    ]


def _evaluate(polynomial: Polynomial, y: Tensor, z: Tensor) -> Any:
    return _horner([_horner(row, z) for row in polynomial], y)


def _horner(coefficients: Sequence[Any], v: Tensor) -> Any:
    """``Σ_m coefficients[m] v^m``; a single coefficient stays as it is, none at all is 0.

    Args:
        coefficients: Numbers, tensors of no dimensions or of the shape of `v`; lowest power first.
        v: The variable.
    """
    if not coefficients:
        return 0.0
    *lower, result = coefficients
    for c in reversed(lower):
        result = v * result + c
    return result
