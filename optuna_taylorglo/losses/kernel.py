"""Evaluates a polynomial loss on a batch of logits, with the conventions of cross-entropy.

For hard targets a class has one of two label values, so the loss is one polynomial in the
prediction for all classes and one more for the target's, (C1) in `losses.canonical`:

    L = -s [ Σ_i q_0(y_i) + (q_1 - q_0)(y_t) ],     s = 1/n or 1.

No one-hot tensor is made and no class is looped over. Label smoothing moves the two label values
and changes nothing else. Soft targets take the polynomial in x as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
from torch import Tensor

Scalar = float | Tensor
"""A coefficient: a plain number, or a tensor of no dimensions where θ is a tensor."""

Polynomial = Sequence[Sequence[Scalar]]
"""Entry [j][l] multiplies ``y^j z^l``; a variable that is absent has power 0 only."""

# By its overload, for finding the right one costs as much as the operator on a small batch.
_softmax_backward = torch.ops.aten._softmax_backward_data.default

REDUCTIONS = ("mean", "sum", "none")
CLASS_REDUCTIONS = ("mean", "sum")


class Conventions(NamedTuple):
    """How classes and samples add up to one number; see `taylor_loss`."""

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

    def __call__(self, v: Tensor) -> Tensor:
        """Its value at `v`, in fresh memory."""
        # second + top · v in one pass. Plain numbers, for a tensor made inside a `torch.func`
        # transform or in inference mode must not outlive it.
        result = torch.rsub(v, self.second, alpha=-self.top)
        for c in reversed(self.lower):
            result = result.mul_(v).add_(c)
        return result


class HardTargetPlan:
    """A loss over (x, y) with fixed coefficients on hard targets, and its derivative.

    Args:
        powers: Coefficients of ``y^2, y^3, …`` of every class.
        at_target: Coefficients of ``y_t^0, y_t^1, …`` of the target's class, at least 2.

    Attributes:
        powers: As given.
        at_target: As given.
        every_class: What multiplies y² in the contribution of every class; None at order 1.
        every_class_slope: What multiplies y in its derivative.
        target: What multiplies y_t in the contribution of the target's class, but for a constant.
        target_slope: Its derivative.
    """

    def __init__(self, powers: Sequence[Scalar], at_target: Sequence[Scalar]) -> None:
        self.powers = powers
        self.at_target = at_target
        self.every_class = FixedPolynomial(powers) if powers else None
        self.every_class_slope = FixedPolynomial([m * c for m, c in enumerate(powers, start=2)])
        self.target = FixedPolynomial(at_target[1:])
        self.target_slope = FixedPolynomial([m * c for m, c in enumerate(at_target)][1:])


def plan_hard_targets(
    coefficients: Sequence[Polynomial], n_classes: int, conventions: Conventions
) -> HardTargetPlan:
    """Work out a loss over (x, y) with fixed coefficients.

    The plan serves as long as number of classes, class reduction and label smoothing stay.
    """
    return HardTargetPlan(*_powers_and_target(coefficients, n_classes, conventions))


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
    index = target.long().unsqueeze(1)
    counts = None
    if conventions.weight is not None or not _all_count(index, conventions.ignore_index):
        counts = _count(index, logits, conventions)
        index = index * counts.valid
    # A Python autograd function has no batching rule of its own.
    if plan is not None and conventions.reduction != "none" and not _transforms_active():
        wanted = conventions.reduction, torch.is_grad_enabled()
        loss: Tensor = _PlannedLoss.apply(logits, index, counts, *wanted, plan)
        return loss
    if any(len(row) > 1 for polynomial in coefficients for row in polynomial):
        y = torch.softmax(logits, dim=1)
        losses = _losses_over_logits(y, logits, index, coefficients, conventions)
    else:
        powers, at_target = _powers_and_target(coefficients, logits.shape[1], conventions)
        losses = _losses(torch.softmax(logits, dim=1), index, powers, at_target)
    return _reduced(losses, counts, conventions.reduction)


class _Counts(NamedTuple):
    """How samples count, all of shape (N, 1, …) but for the total.

    Attributes:
        valid: Whether they count at all.
        share: Weight under the smoothed target.
        total: What "mean" divides by.
    """

    valid: Tensor
    share: Tensor
    total: Tensor


def _all_count(index: Tensor, ignore_index: int) -> bool:
    """Whether it is known that no sample is ignored; only a CPU is asked, a GPU would wait."""
    if index.device.type != "cpu" or torch.compiler.is_compiling() or _transforms_active():
        return False
    return ignore_index < 0 and index.numel() > 0 and int(index.min()) >= 0


def _count(index: Tensor, logits: Tensor, conventions: Conventions) -> _Counts:
    valid = index != conventions.ignore_index
    if conventions.weight is None:
        return _Counts(valid, valid.to(logits.dtype), valid.sum())
    weight, smoothing = conventions.weight.to(logits.dtype), conventions.label_smoothing
    count = weight[index * valid] * valid
    share = ((1 - smoothing) * count + smoothing * weight.mean()) * valid
    return _Counts(valid, share, count.sum())


def _reduced(losses: Tensor, counts: _Counts | None, reduction: str) -> Tensor:
    """Losses of samples, shape (N, 1, …), as the reduction has it."""
    if counts is not None:
        # Ignored samples count nothing whatever is in them.
        losses = torch.where(counts.valid, losses * counts.share, 0.0)
    if reduction == "none":
        return losses.squeeze(1)
    if reduction == "sum":
        return losses.sum()
    return losses.mean() if counts is None else losses.sum() / counts.total


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
    """The reduced loss by plan, with its derivative with respect to the logits at once.

    Autograd would keep and walk every step of the polynomials over all classes. On a batch of a
    hundred samples and ten classes, calling operators is nearly all the cost, so there are few.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        index: Tensor,
        counts: _Counts | None,
        reduction: str,
        with_slope: bool,
        plan: HardTargetPlan,
    ) -> Tensor:
        y = torch.softmax(logits, dim=1)
        factor = None
        if counts is not None:
            factor = counts.share if reduction == "sum" else counts.share / counts.total
            y = torch.where(counts.valid, y, 0.0)
            factor = torch.where(counts.valid, factor, 0.0)
        y_t = y.gather(1, index)
        loss = _dot(plan.target(y_t), y_t, factor)
        if plan.every_class is not None:
            loss += _dot(plan.every_class(y).mul_(y), y, factor)
        ctx.plan, ctx.reduction, ctx.counts = plan, reduction, counts
        ctx.scale = 1 / index.numel() if counts is None and reduction == "mean" else 1.0
        if with_slope:
            slope = plan.every_class_slope(y).mul_(y)
            slope.scatter_add_(1, index, plan.target_slope(y_t))
            if factor is not None:
                slope.mul_(factor)
            slope = _softmax_backward(slope, y, 1, y.dtype)
            ctx.save_for_backward(slope, logits, index)
            ctx.save_for_forward(slope, logits, index)
        constant = float(plan.at_target[0])
        if counts is None:
            return loss.mul_(ctx.scale).add_(constant * index.numel() * ctx.scale)
        total = counts.share.sum()
        return loss.add_(constant * (total if reduction == "sum" else total / counts.total))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        slope, logits, index = ctx.saved_tensors
        if torch.is_grad_enabled():
            # Under create_graph the derivative must be differentiable in its turn.
            y = torch.softmax(logits, dim=1)
            losses = _losses(y, index, ctx.plan.powers, ctx.plan.at_target)
            loss = _reduced(losses, ctx.counts, ctx.reduction)
            (slope,) = torch.autograd.grad(loss, logits, grad, create_graph=True)
            return slope, *[None] * 5
        return slope * (grad * ctx.scale), *[None] * 5

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        change: Tensor = (ctx.saved_tensors[0] * tangent).sum() * ctx.scale
        return change


def _dot(a: Tensor, b: Tensor, factor: Tensor | None) -> Tensor:
    """Sum of ``a b``, of each sample times its factor."""
    return torch.dot((a if factor is None else a * factor).reshape(-1), b.reshape(-1))


def _transforms_active() -> bool:
    """Whether a transform of `torch.func` is at work; PyTorch has no public question for it."""
    return bool(torch._C._are_functorch_transforms_active())


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
