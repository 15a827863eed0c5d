"""Evaluates a polynomial loss on a batch of logits, with the conventions of cross-entropy.

For hard targets a class has one of two label values, so the loss is one polynomial in the
prediction for all classes and one more for the target's, (C1) in `optuna_taylorglo.canonical`:

    L = -s [ Σ_i q_0(y_i) + (q_1 - q_0)(y_t) ],     s = 1/n or 1.

No one-hot tensor is made and no class is looped over. Label smoothing moves the two label values
and changes nothing else. Soft targets take the polynomial in x as well.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
from torch import Tensor

Scalar = float | Tensor
"""A coefficient: a plain number, or a tensor of no dimensions where θ is a tensor."""

Polynomial = Sequence[Sequence[Scalar]]
"""Entry [j][l] multiplies ``y^j z^l``; a variable that is absent has power 0 only."""

REDUCTIONS = ("mean", "sum", "none")
CLASS_REDUCTIONS = ("mean", "sum")


class Conventions(NamedTuple):
    """How classes and samples add up to one number; see `optuna_taylorglo.loss.taylor_loss`."""

    class_reduction: str = "mean"
    reduction: str = "mean"
    weight: Tensor | None = None
    ignore_index: int = -100
    label_smoothing: float = 0.0

    def validate(self) -> Conventions:
        """Itself, or a ValueError that names the setting."""
        for name, allowed in (("class_reduction", CLASS_REDUCTIONS), ("reduction", REDUCTIONS)):
            value = getattr(self, name)
            if value not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, not {value!r}.")
        if not 0 <= self.label_smoothing <= 1:
            raise ValueError(f"label_smoothing must be in [0, 1], not {self.label_smoothing!r}.")
        return self


class HardTargetPlan(NamedTuple):
    """The two polynomials of a loss on hard targets, as tensors ready for eager mode.

    Attributes:
        powers: Coefficients of the powers of y from 2 on, for every class.
        at_target: Coefficients of the powers of y from 0 on, for the target's class.
        power_slopes: Derivative of the first, coefficients of the powers of y from 1 on.
        at_target_slopes: Derivative of the second, from power 0 on.
    """

    powers: list[Tensor]
    at_target: list[Tensor]
    power_slopes: list[Tensor]
    at_target_slopes: list[Tensor]


def plan_hard_targets(
    coefficients: Sequence[Polynomial], logits: Tensor, conventions: Conventions
) -> HardTargetPlan:
    """Work out a loss over (x, y) with fixed coefficients for logits of this kind.

    The plan serves all logits with this number of classes, dtype and device, as long as class
    reduction and label smoothing stay.
    """
    powers, at_target = _powers_and_target(coefficients, logits.shape[1], conventions)
    slopes = (
        [m * c for m, c in enumerate(powers, start=2)],
        [m * c for m, c in enumerate(at_target)],
    )

    def tensors(numbers: Sequence[Scalar]) -> list[Tensor]:
        return list(torch.tensor(numbers, dtype=logits.dtype, device=logits.device).unbind())

    return HardTargetPlan(
        tensors(powers), tensors(at_target), tensors(slopes[0]), tensors(slopes[1][1:])
    )


def polynomial_loss(
    logits: Tensor,
    target: Tensor,
    coefficients: Sequence[Polynomial],
    conventions: Conventions,
    plan: HardTargetPlan | None = None,
) -> Tensor:
    """The loss ``-s Σ_i f(x_i, y_i, z_i)`` of a batch.

    Args:
        logits: float32 or float64, shape (C,), (N, C) or (N, C, d1, …).
        target: Class indices of the shape of `logits` without its C, or class probabilities of
            the shape of `logits`.
        coefficients: Entry [i][j][l] multiplies ``x^i y^j z^l``.
        conventions: Reductions, weights and smoothing.
        plan: What `plan_hard_targets` made of the coefficients, where there is one.

    Returns:
        A scalar, or with reduction "none" the loss of each sample.
    """
    if logits.dim() == 1:
        batch = logits.unsqueeze(0), target.unsqueeze(0)
        loss = polynomial_loss(*batch, coefficients, conventions, plan)
        return loss.squeeze(0) if conventions.reduction == "none" else loss
    if target.is_floating_point():
        return _soft_loss(logits, target, coefficients, conventions)
    return _hard_loss(logits, target, coefficients, conventions, plan)


def _hard_loss(
    logits: Tensor,
    target: Tensor,
    coefficients: Sequence[Polynomial],
    conventions: Conventions,
    plan: HardTargetPlan | None,
) -> Tensor:
    expected = logits.shape[:1] + logits.shape[2:]
    if target.shape != expected:
        raise ValueError(
            f"target has shape {tuple(target.shape)}; class indices for logits of shape "
            f"{tuple(logits.shape)} have shape {tuple(expected)}."
        )
    y = torch.softmax(logits, dim=1)
    valid = target != conventions.ignore_index
    index = target * valid
    share = count = valid
    if conventions.weight is not None:
        weight, smoothing = conventions.weight.to(logits.dtype), conventions.label_smoothing
        count = weight[index] * valid
        share = (1 - smoothing) * count + smoothing * weight.mean() * valid
    total = count.sum() if conventions.reduction == "mean" else None
    index = index.unsqueeze(1)
    if plan is not None and conventions.reduction != "none":
        loss: Tensor = _PlannedLoss.apply(y, index, share, total, plan)
        return loss
    if any(len(row) > 1 for polynomial in coefficients for row in polynomial):
        losses = _losses_over_logits(y, logits, index, coefficients, conventions)
    else:
        powers, at_target = _powers_and_target(coefficients, logits.shape[1], conventions)
        losses = _losses(y, index, powers, at_target)
    losses = losses * share
    return losses if conventions.reduction == "none" else _divided(losses.sum(), total)


def _soft_loss(
    logits: Tensor, target: Tensor, coefficients: Sequence[Polynomial], conventions: Conventions
) -> Tensor:
    if target.shape != logits.shape:
        raise ValueError(
            f"target has shape {tuple(target.shape)}; class probabilities for logits of shape "
            f"{tuple(logits.shape)} have that shape too (class indices must be integers)."
        )
    n, smoothing = logits.shape[1], conventions.label_smoothing
    x = target.to(logits.dtype)
    if smoothing > 0:
        x = x * (1 - smoothing) + smoothing / n
    y = torch.softmax(logits, dim=1)
    in_x = [_evaluate(polynomial, y, logits) for polynomial in coefficients]
    losses: Tensor = _scale(conventions, n) * _horner(in_x, x).sum(dim=1)
    if conventions.weight is not None:
        weight = conventions.weight.to(x.dtype).reshape(n, *(1 for _ in x.shape[2:]))
        losses = losses * (x * weight).sum(dim=1)
    if conventions.reduction == "mean":
        return losses.mean()
    return losses.sum() if conventions.reduction == "sum" else losses


def _label_polynomials(
    coefficients: Sequence[Polynomial], n: int, conventions: Conventions
) -> tuple[Polynomial, Polynomial]:
    """``-s q`` at the label value of every class, and what the target's label value adds to it."""
    low = conventions.label_smoothing / n
    high = low + 1 - conventions.label_smoothing
    scale = _scale(conventions, n)
    exponents = range(len(coefficients))
    others = _combine(coefficients, [scale * low**i for i in exponents])
    gap = _combine(coefficients[1:], [scale * (high**i - low**i) for i in exponents[1:]])
    return others, gap


def _powers_and_target(
    coefficients: Sequence[Polynomial], n: int, conventions: Conventions
) -> tuple[list[Scalar], list[Scalar]]:
    """The polynomials of a loss without z: powers of every class, then those of the target's."""
    others, gap = _label_polynomials(coefficients, n, conventions)
    every = [row[0] for row in others]
    at_target = [row[0] for row in gap] or [0.0]
    # The outputs sum to 1, so powers 0 and 1 of every class come to a constant.
    at_target[0] = at_target[0] + n * every[0] + every[1]
    if len(at_target) < 2:
        at_target.append(0.0)
    return every[2:], at_target


def _losses_over_logits(
    y: Tensor,
    z: Tensor,
    index: Tensor,
    coefficients: Sequence[Polynomial],
    conventions: Conventions,
) -> Tensor:
    """Losses of each sample for a polynomial with z in it, shape (N, …)."""
    others, gap = _label_polynomials(coefficients, z.shape[1], conventions)
    every_class = _evaluate(others, y, z).sum(dim=1, keepdim=True)
    at_target = _evaluate(gap, y.gather(1, index), z.gather(1, index))
    return torch.squeeze(every_class + at_target, dim=1)


def _losses(
    y: Tensor,
    index: Tensor,
    powers: Sequence[Scalar],
    at_target: Sequence[Scalar],
    *,
    in_place: bool = False,
) -> Tensor:
    """``Σ_i Σ_m powers[m] y_i^(m+2) + Σ_m at_target[m] y_t^m`` of each sample.

    Args:
        y: Softmax outputs, shape (N, C, …).
        index: Target indices, shape (N, 1, …).
        powers: Coefficients for every class.
        at_target: Coefficients for the target's class, at least 2.
        in_place: Whether intermediate results may be overwritten.

    Returns:
        Shape (N, …).
    """
    losses = torch.squeeze(_horner(at_target, y.gather(1, index), in_place=in_place), dim=1)
    if powers:
        squares_and_up = _horner(powers, y, in_place=in_place, lowest=2)
        losses = losses + squares_and_up.sum(dim=1)
    return losses


class _PlannedLoss(torch.autograd.Function):
    """``Σ share · losses / total`` by plan, with the derivative written out.

    Autograd would keep and walk every step of the polynomials over all classes. The derivative is
    a polynomial itself, evaluated here in place; it is differentiable in its turn.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        y: Tensor, index: Tensor, share: Tensor, total: Tensor | None, plan: HardTargetPlan
    ) -> Tensor:
        losses = _losses(y, index, plan.powers, plan.at_target, in_place=True)
        return _divided((losses * share).sum(), total)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        y, index, share, total, ctx.plan = inputs
        ctx.save_for_backward(y, index, share, total)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        y, index, share, total = ctx.saved_tensors
        # Under create_graph the steps below are recorded, and must not be overwritten.
        in_place = not torch.is_grad_enabled()
        sample_grad = (_divided(grad, total) * share).unsqueeze(1)
        at_target = _horner(ctx.plan.at_target_slopes, y.gather(1, index), in_place=in_place)
        at_target = at_target * sample_grad
        if not ctx.plan.powers:
            slope = torch.zeros_like(y).scatter(1, index, at_target)
        else:
            slope = _horner(ctx.plan.power_slopes, y, in_place=in_place, lowest=1)
            slope = slope.mul_(sample_grad) if in_place else slope * sample_grad
            slope = slope.scatter_add(1, index, at_target)
        return slope, None, None, None, None


# Function.apply asks for the signature at every call; answering once saves most of its cost.
_PlannedLoss.forward.__signature__ = inspect.signature(_PlannedLoss.forward)  # type: ignore[attr-defined]


def _divided(value: Tensor, total: Tensor | None) -> Tensor:
    return value if total is None else value / total


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


def _horner(
    coefficients: Sequence[Any], v: Tensor, *, in_place: bool = False, lowest: int = 0
) -> Any:
    """``Σ_m coefficients[m] v^(m + lowest)``; a single coefficient of power 0 stays a scalar.

    Args:
        coefficients: Numbers, tensors of no dimensions or of the shape of `v`; lowest power first.
        v: The variable.
        in_place: Whether intermediate results may be overwritten.
        lowest: Power of the first coefficient.
    """
    if not coefficients:
        return 0.0
    *lower, result = coefficients
    fresh = False  # whether `result` is a tensor of our own making, which may be overwritten
    for c in reversed(lower):
        result = result.mul_(v) if in_place and fresh else v * result
        result = result.add_(c) if in_place else result + c
        fresh = True
    for _ in range(lowest):
        result = result.mul_(v) if in_place and fresh else v * result
        fresh = True
    return result


def _scale(conventions: Conventions, n: int) -> float:
    return -1 / n if conventions.class_reduction == "mean" else -1.0
