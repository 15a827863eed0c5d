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
from dataclasses import dataclass
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


class FixedPolynomial:
    """A polynomial with fixed coefficients, made for eager mode.

    Args:
        coefficients: Numbers, lowest power first.
    """

    def __init__(self, coefficients: Sequence[Scalar]) -> None:
        numbers = [float(c) for c in coefficients]
        *self.lower, self.second, self.top = numbers + [0.0] * (2 - len(numbers))

    def __call__(self, v: Tensor, *, in_place: bool) -> Tensor:
        """Its value at `v`, in fresh memory.

        Args:
            v: The variable.
            in_place: Whether intermediate results may be overwritten.
        """
        # second + top · v in one pass. Plain numbers, for a tensor made inside a `torch.func`
        # transform or in inference mode must not outlive it.
        result = torch.rsub(v, self.second, alpha=-self.top)
        for c in reversed(self.lower):
            result = result.mul_(v).add_(c) if in_place else result * v + c
        return result


@dataclass(frozen=True)
class HardTargetPlan:
    """A loss over (x, y) with fixed coefficients on hard targets, and its derivative.

    Attributes:
        every_class: What multiplies y² in the contribution of every class; None at order 1.
        at_target: What the target's class adds.
        every_class_slope: What multiplies y in the derivative of the first.
        at_target_slope: Derivative of the second.
    """

    every_class: FixedPolynomial | None
    at_target: FixedPolynomial
    every_class_slope: FixedPolynomial
    at_target_slope: FixedPolynomial


def plan_hard_targets(
    coefficients: Sequence[Polynomial], n_classes: int, conventions: Conventions
) -> HardTargetPlan:
    """Work out a loss over (x, y) with fixed coefficients.

    The plan serves as long as number of classes, class reduction and label smoothing stay.
    """
    powers, at_target = _powers_and_target(coefficients, n_classes, conventions)
    every_class_slope = [m * c for m, c in enumerate(powers, start=2)]
    at_target_slope = [m * c for m, c in enumerate(at_target)][1:]
    return HardTargetPlan(
        FixedPolynomial(powers) if powers else None,
        FixedPolynomial(at_target),
        FixedPolynomial(every_class_slope),
        FixedPolynomial(at_target_slope),
    )


def class_count(logits: Tensor) -> int:
    """Number of classes C of logits of shape (C,), (N, C) or (N, C, d1, …)."""
    if logits.dim() == 0:
        raise ValueError(
            "logits has no dimension; its shape must be (C,), (N, C) or (N, C, d1, …)."
        )
    return logits.shape[min(1, logits.dim() - 1)]


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
    n, weight = class_count(logits), conventions.weight
    if weight is not None and weight.shape != (n,):
        raise ValueError(f"weight has shape {tuple(weight.shape)}; {n} classes take shape ({n},).")
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
    if target.dtype not in (torch.int64, torch.uint8):
        raise ValueError(f"target has dtype {target.dtype}; class indices are int64 or uint8.")
    y = torch.softmax(logits, dim=1)
    target = target.long().unsqueeze(1)
    valid = target != conventions.ignore_index
    index = target * valid
    count, share = valid, None
    if conventions.weight is not None:
        weight, smoothing = conventions.weight.to(logits.dtype), conventions.label_smoothing
        count = weight[index] * valid
        share = (1 - smoothing) * count + smoothing * weight.mean()
    total = count.sum() if conventions.reduction == "mean" else None
    if plan is not None and conventions.reduction != "none":
        loss: Tensor = _PlannedLoss.apply(y, index, valid, share, total, plan)
        return loss
    if any(len(row) > 1 for polynomial in coefficients for row in polynomial):
        losses = _losses_over_logits(y, logits, index, coefficients, conventions)
    else:
        powers, at_target = _powers_and_target(coefficients, logits.shape[1], conventions)
        losses = _losses(y, index, powers, at_target)
    losses = _counted(losses, valid, share)
    if conventions.reduction == "none":
        return torch.squeeze(losses, dim=1)
    return _divided(losses.sum(), total)


def _soft_loss(
    logits: Tensor, target: Tensor, coefficients: Sequence[Polynomial], conventions: Conventions
) -> Tensor:
    if target.shape != logits.shape:
        raise ValueError(
            f"target has shape {tuple(target.shape)}; class probabilities for logits of shape "
            f"{tuple(logits.shape)} have that shape too (class indices must be integers)."
        )
    if conventions.ignore_index >= 0:
        raise ValueError(
            f"ignore_index is {conventions.ignore_index}; class probabilities have no index to "
            "ignore, so it must be negative with them."
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
    """Losses of each sample for a polynomial with z in it, shape (N, 1, …)."""
    others, gap = _label_polynomials(coefficients, z.shape[1], conventions)
    every_class = _evaluate(others, y, z).sum(dim=1, keepdim=True)
    at_target = _evaluate(gap, y.gather(1, index), z.gather(1, index))
    return torch.as_tensor(every_class + at_target)


def _losses(
    y: Tensor, index: Tensor, powers: Sequence[Scalar], at_target: Sequence[Scalar]
) -> Tensor:
    """``Σ_i Σ_m powers[m] y_i^(m+2) + Σ_m at_target[m] y_t^m`` of each sample.

    Args:
        y: Softmax outputs, shape (N, C, …).
        index: Target indices, shape (N, 1, …).
        powers: Coefficients for every class.
        at_target: Coefficients for the target's class, at least 2.

    Returns:
        Shape (N, 1, …).
    """
    losses: Tensor = _horner(at_target, y.gather(1, index))
    if powers:
        losses = losses + (_horner(powers, y) * y * y).sum(dim=1, keepdim=True)
    return losses


class _PlannedLoss(torch.autograd.Function):
    """The reduced loss by plan, with the derivative written out.

    Autograd would keep and walk every step of the polynomials over all classes. The derivative is
    a polynomial itself, evaluated here in place; it is differentiable in its turn.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        y: Tensor,
        index: Tensor,
        valid: Tensor,
        share: Tensor | None,
        total: Tensor | None,
        plan: HardTargetPlan,
    ) -> Tensor:
        losses = plan.at_target(y.gather(1, index), in_place=True)
        if plan.every_class is not None:
            every_class = plan.every_class(y, in_place=True).mul_(y).mul_(y)
            losses = losses + every_class.sum(dim=1, keepdim=True)
        return _divided(_counted(losses, valid, share).sum(), total)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.plan = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        # Under create_graph the steps are recorded, and must not be overwritten.
        in_place = not torch.is_grad_enabled()
        slope = _planned_slope(grad, ctx.saved_tensors, ctx.plan, in_place=in_place)
        return slope, None, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, y_tangent: Tensor, *_: None) -> Tensor:
        one = y_tangent.new_ones(())
        slope = _planned_slope(one, ctx.saved_tensors, ctx.plan, in_place=False)
        return (slope * y_tangent).sum()


def _planned_slope(
    grad: Tensor, inputs: Sequence[Any], plan: HardTargetPlan, *, in_place: bool
) -> Tensor:
    """`grad` times the derivative of the reduced loss with respect to y, of the shape of y.

    Args:
        grad: Derivative with respect to the reduced loss.
        inputs: Tensor inputs of `_PlannedLoss`.
        plan: The loss.
        in_place: Whether intermediate results may be overwritten.
    """
    y, index, valid, share, total = inputs
    sample_grad = _counted(_divided(grad, total), valid, share)
    at_target = plan.at_target_slope(y.gather(1, index), in_place=in_place) * sample_grad
    if plan.every_class is None:
        return torch.zeros_like(y).scatter(1, index, at_target)
    factor = plan.every_class_slope(y, in_place=in_place)
    slope: Tensor = y * sample_grad
    if in_place:
        return slope.mul_(factor).scatter_add_(1, index, at_target)
    return (slope * factor).scatter_add(1, index, at_target)


# Function.apply asks for the signature at every call; answering once saves most of its cost.
_PlannedLoss.forward.__signature__ = inspect.signature(_PlannedLoss.forward)  # type: ignore[attr-defined]


def _counted(value: Tensor, valid: Tensor, share: Tensor | None) -> Tensor:
    """`value` times each sample's share, and 0 where the target is ignored whatever `value` is."""
    return torch.where(valid, value if share is None else value * share, 0.0)


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


def _scale(conventions: Conventions, n: int) -> float:
    return -1 / n if conventions.class_reduction == "mean" else -1.0
