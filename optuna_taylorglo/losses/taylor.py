"""θ as a PyTorch loss: the pure function `taylor_loss` and its module `TaylorLoss`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import Any, Self

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from optuna_taylorglo.losses.canonical import Base, make_anchor
from optuna_taylorglo.losses.conventions import (
    Batch,
    Conventions,
    EvolvedLossModule,
    over_classes,
    prepare,
    transforms_active,
)
from optuna_taylorglo.losses.expansion import Expansion, expansion
from optuna_taylorglo.losses.files import LossFile

# By its overload, for finding the right one costs as much as the operator on a small batch.
_softmax_backward = torch.ops.aten._softmax_backward_data.default


class FusedLoss(torch.autograd.Function):
    """``Σ_i Σ_m powers[m] y_i^(m+2) + Σ_m at_target[m] y_t^m`` of each sample, reduced.

    With an anchor (c, ε) it is c times the sum of that and of cross-entropy smoothed by ε, whose
    gradient is ``y_j - (1-ε) [j = t] - ε/n``.

    Arguments of `apply`:
        logits: Shape (N, C, …).
        index: Target indices, shape (N, 1, …).
        counts: How the samples count; None if all do, and alike.
        reduction: "mean" or "sum".
        powers: Coefficients for every class.
        at_target: Coefficients for the target's class, at least 2.
        anchor: Scale and smoothing of cross-entropy under the polynomial; None if there is none.
        plain: The same function of the logits by operators that autograd knows.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        index: Tensor,
        counts: Batch | None,
        reduction: str,
        powers: Sequence[float],
        at_target: Sequence[float],
        anchor: tuple[float, float] | None,
        plain: Callable[[Tensor], Tensor],
    ) -> Tensor:
        log_y = None if anchor is None else torch.log_softmax(logits, dim=1)
        y = torch.softmax(logits, dim=1) if log_y is None else log_y.exp()
        factor, scale = None, 1.0
        counted: Tensor | int = index.numel()
        if counts is not None:
            total = 1 if reduction != "mean" or counts.total is None else counts.total
            valid = torch.as_tensor(counts.valid)
            share = valid.to(y.dtype) if counts.share is None else counts.share
            factor = torch.where(valid, share / total, 0.0)
            y = torch.where(valid, y, 0.0)
            log_y = None if log_y is None else torch.where(valid, log_y, 0.0)
            counted = share.sum() / total
        elif reduction == "mean":
            scale = 1 / index.numel()
        y_t = y.gather(1, index)
        loss = _dot(_polynomial(at_target[1:], y_t), y_t, factor)
        if powers:
            loss += _dot(_polynomial(powers, y).mul_(y), y, factor)
        if ctx.needs_input_grad[0]:
            slope = _polynomial([m * c for m, c in enumerate(powers, start=2)], y).mul_(y)
            at_target_slope = _polynomial([m * c for m, c in enumerate(at_target)][1:], y_t)
            slope.scatter_add_(1, index, at_target_slope)
            if factor is not None:
                slope.mul_(factor)
            slope = _softmax_backward(slope, y, 1, y.dtype)
            if anchor is not None:
                slope.add_(_fused_slope(y, index, factor, anchor[1])).mul_(anchor[0])
            ctx.save_for_backward(slope, logits)
            ctx.scale, ctx.plain = scale, plain
        loss = loss.mul_(scale).add_(at_target[0] * counted * scale)
        if anchor is not None and log_y is not None:
            base = _fused_cross_entropy(log_y, index, factor, anchor[1])
            loss = loss.add_(base, alpha=scale).mul_(anchor[0])
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        slope, logits = ctx.saved_tensors
        if torch.is_grad_enabled():
            # Under create_graph the derivative must be differentiable in its turn.
            (slope,) = torch.autograd.grad(ctx.plain(logits), logits, grad, create_graph=True)
        else:
            slope = slope * (grad * ctx.scale)
        return slope, *[None] * 7


def _fused_cross_entropy(
    log_y: Tensor, index: Tensor, factor: Tensor | None, smoothing: float
) -> Tensor:
    """Sum of the smoothed cross-entropy of all samples, of each times its factor."""
    at_target = log_y.gather(1, index)
    if factor is not None:
        at_target, log_y = at_target * factor, log_y * factor
    loss = at_target.sum().mul_(smoothing - 1)
    if smoothing != 0:
        loss.sub_(log_y.sum(), alpha=smoothing / log_y.shape[1])
    return loss


def _fused_slope(y: Tensor, index: Tensor, factor: Tensor | None, smoothing: float) -> Tensor:
    """Derivative of `_fused_cross_entropy` with respect to the logits, in fresh memory."""
    slope = y - smoothing / y.shape[1]
    slope.scatter_add_(1, index, torch.full_like(index, smoothing - 1, dtype=y.dtype))
    return slope if factor is None else slope.mul_(factor)


def _polynomial(coefficients: Sequence[float], v: Tensor) -> Tensor:
    """Its value at `v`, in fresh memory; lowest power first."""
    # Numbers, not tensors: one made inside a transform or in inference mode must not outlive it.
    *lower, second, top = *coefficients, *[0.0] * (2 - len(coefficients))
    result = torch.rsub(v, second, alpha=-top)  # second + top · v in one pass
    for c in reversed(lower):
        result = result.mul_(v).add_(c)
    return result


def _dot(a: Tensor, b: Tensor, factor: Tensor | None) -> Tensor:
    """Sum of ``a b``, of each sample times its factor."""
    return torch.dot((a if factor is None else a * factor).reshape(-1), b.reshape(-1))


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
    batch = prepare(logits, target, conventions)
    if batch.is_soft:
        return _soft_loss(batch, coefficients, conventions, anchor)
    return _hard_loss(batch, coefficients, conventions, anchor, fixed)


def _hard_loss(
    batch: Batch,
    coefficients: Sequence[Polynomial],
    conventions: Conventions,
    anchor: AnchorValues | None,
    fixed: bool,
) -> Tensor:
    logits, index, reduction = batch.logits, batch.target, conventions.reduction
    counts = None if batch.valid is None else batch
    n = logits.shape[1]
    labels = n, -conventions.class_scale(n), conventions.label_smoothing
    if anchor is not None:
        anchor = anchor[0], _twice_smoothed(anchor[1], conventions.label_smoothing)

    def reduced(losses: Tensor, logits: Tensor) -> Tensor:
        if anchor is None:
            return batch.reduce(batch.weigh(losses), reduction)
        base = _cross_entropy(logits, index, anchor[1], conventions.weight)
        return anchor[0] * batch.reduce(batch.weigh(losses) + base, reduction)

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
    if fusible and not (transforms_active() or _has_tangent(logits)):
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
        log_y = log_y * over_classes(weight, logits)
    every_class = log_y.mean(dim=1, keepdim=True)
    return torch.as_tensor(-(1 - smoothing) * log_y.gather(1, index) - smoothing * every_class)


def _has_tangent(logits: Tensor) -> bool:
    tangent: Tensor | None = unpack_dual(logits).tangent  # type: ignore[no-untyped-call]
    return tangent is not None


def _soft_loss(
    batch: Batch,
    coefficients: Sequence[Polynomial],
    conventions: Conventions,
    anchor: AnchorValues | None,
) -> Tensor:
    logits, x, n = batch.logits, batch.target, batch.logits.shape[1]
    y = torch.softmax(logits, dim=1)
    in_x = [_evaluate(polynomial, y, logits) for polynomial in coefficients]
    losses: Tensor = -conventions.class_scale(n) * _horner(in_x, x).sum(dim=1, keepdim=True)
    if anchor is None:
        return batch.reduce(batch.weigh(losses), conventions.reduction)
    scale, base_smoothing = anchor
    log_y = torch.log_softmax(logits, dim=1)
    if conventions.weight is not None:
        log_y = log_y * over_classes(conventions.weight, logits)
    base = -((x * (1 - base_smoothing) + base_smoothing / n) * log_y).sum(dim=1, keepdim=True)
    return scale * batch.reduce(batch.weigh(losses) + base, conventions.reduction)


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


def taylor_loss(
    logits: Tensor,
    target: Tensor,
    theta: Tensor,
    *,
    order: int = 3,
    variables: tuple[str, ...] = ("x", "y"),
    folded: bool = False,
    class_reduction: str = "mean",
    reduction: str = "mean",
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    progress: Tensor | float = 0.0,
    base: Base = "none",
    log_scale: Tensor | float = 0.0,
    smoothing: Tensor | float = 0.0,
) -> Tensor:
    """The Taylor loss as a pure function of logits, target and θ.

    Differentiable in `logits` and in the parameters, and made for `torch.func`: P losses are
    ``torch.func.vmap(taylor_loss, in_dims=(None, None, 0))(logits, target, thetas)``.

    Args:
        logits: Raw network outputs, shape (C,), (N, C) or (N, C, d1, …).
        target: Class indices of shape (), (N,) or (N, d1, …), or class probabilities of the
            shape of `logits`.
        theta: The parameters, shape (P,) with P the form's `n_parameters`.
        order: Order of the expansion.
        variables: Its variables.
        folded: Whether 1/α! is already in θ.
        class_reduction: "mean" for the paper's 1/n, "sum" for what its authors ran.
        reduction: "mean", "sum" or "none" over samples, as in `cross_entropy`.
        weight: Weight of each class, shape (C,). As in `cross_entropy` a sample counts with its
            target's weight, and "mean" divides by the sum of those; with probabilities it counts
            with the mean of the weights under them, and "mean" divides by the number of samples.
        ignore_index: Target index that neither counts nor sends a gradient.
        label_smoothing: ε in [0, 1]; targets become ``(1 - ε) x + ε / C``.
        progress: Training progress in [0, 1], for losses in ``t``.
        base: "cross_entropy" for the anchored family, ``e^s (CE_ε - f)``; "none" for ``-f``.
        log_scale: s of the anchored family.
        smoothing: Its ε, which smooths the labels of cross-entropy alone.

    Returns:
        A scalar, or with reduction "none" the loss of each sample. float32 for half-precision
        logits, else of their dtype.

    Examples:
        >>> import torch
        >>> from optuna_taylorglo import taylor_loss
        >>> logits, labels = torch.zeros(2, 4), torch.tensor([0, 3])
        >>> brier = torch.tensor([0.0, 0.0, 0.0, -2.0, 0.0, 2.0, 0.0, 0.0])
        >>> round(taylor_loss(logits, labels, brier, class_reduction="sum").item(), 4)
        -0.25
        >>> thetas = torch.eye(8)  # eight losses at once, each with one parameter of 1
        >>> torch.func.vmap(taylor_loss, in_dims=(None, None, 0))(logits, labels, thetas).shape
        torch.Size([8])
    """
    form = expansion(order, tuple(variables), folded)
    conventions = Conventions(class_reduction, reduction, weight, ignore_index, label_smoothing)
    coefficients = _nested(_coefficients_of_tensor(theta, form), progress, form)
    anchor: AnchorValues | None = None
    if isinstance(log_scale, Tensor) or isinstance(smoothing, Tensor):
        make_anchor(base, 0.0, 0.0)
        anchor = torch.as_tensor(log_scale).exp(), smoothing
    elif (numbers := make_anchor(base, log_scale, smoothing)) is not None:
        anchor = numbers.scale, numbers.smoothing
    return polynomial_loss(logits, target, coefficients, conventions.validate(), anchor)


class TaylorLoss(EvolvedLossModule):
    """A Taylor loss with fixed θ, in the place of `torch.nn.CrossEntropyLoss`.

        loss = TaylorLoss(theta)
        loss(model(images), labels).backward()

    With ``base="cross_entropy"`` it is one of the anchored family, ``e^s (CE_ε - f)``, which at
    θ = 0, s = 0, ε = 0 is cross-entropy (`losses.anchor`).

    Args:
        theta: The parameters, in the order of `losses.expansion.Expansion`: the center,
            then the terms. For the default form the eight numbers of Eq. 5.
        order: Order of the expansion.
        variables: Its variables, out of x (target), y (softmax output), z (logits), t (progress).
        folded: Whether 1/α! is already in θ. The paper's formula has False, the numbers its
            authors published have True.
        class_reduction: "mean" for the paper's 1/n, "sum" for what its authors ran.
        reduction: As in `torch.nn.CrossEntropyLoss`, and so are the next three; `taylor_loss`
            says what they mean here.
        weight: Weight of each class, shape (C,).
        ignore_index: Target index to leave out.
        label_smoothing: ε in [0, 1].
        base: "none", or "cross_entropy" for the anchored family.
        log_scale: s of the anchored family: the loss is multiplied by e^s.
        smoothing: ε of the anchored family, below 1; it may be negative. It smooths the labels
            that cross-entropy sees, `label_smoothing` those of the whole loss.

    Attributes:
        theta: The parameters as exact floats.
        anchor: Scale and smoothing of the anchored family; None without a base.
        progress: Buffer of no dimensions; for losses in ``t`` the caller sets it to the training
            progress in [0, 1] (assigning a number keeps the buffer).
        n_classes: Number of classes the loss was made for, if that is known.
        origin: Where the loss came from, if it was loaded from a file that says so.

    Examples:
        >>> import torch
        >>> from optuna_taylorglo import TaylorLoss
        >>> brier = (0, 0, 0, -2, 0, 2, 0, 0)  # the Brier score, up to a constant
        >>> criterion = TaylorLoss(brier, class_reduction="sum")
        >>> logits, labels = torch.zeros(2, 4, requires_grad=True), torch.tensor([0, 3])
        >>> loss = criterion(logits, labels)
        >>> round(loss.item(), 4)
        -0.25
        >>> loss.backward()
        >>> logits.grad[0].tolist()
        [-0.1875, 0.0625, 0.0625, 0.0625]

        Anchored at cross-entropy, a θ of 0 is cross-entropy itself:

        >>> anchored = TaylorLoss([0.0] * 8, base="cross_entropy")
        >>> torch.allclose(anchored(logits, labels), torch.nn.CrossEntropyLoss()(logits, labels))
        True
    """

    progress: Tensor
    _coefficients: Tensor
    _anchor: Tensor

    file_type = LossFile

    def __init__(
        self,
        theta: Sequence[float] | Tensor,
        *,
        order: int = 3,
        variables: Sequence[str] = ("x", "y"),
        folded: bool = False,
        class_reduction: str = "mean",
        reduction: str = "mean",
        weight: Tensor | None = None,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        base: Base = "none",
        log_scale: float = 0.0,
        smoothing: float = 0.0,
    ) -> None:
        super().__init__(
            class_reduction=class_reduction,
            reduction=reduction,
            weight=weight,
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
        )
        values = theta.detach().tolist() if isinstance(theta, Tensor) else theta
        self.form = Expansion(order, tuple(variables), folded)
        self.theta = self.form.validate(values)
        self.anchor = make_anchor(base, log_scale, smoothing)
        self.register_buffer("progress", torch.zeros(()), persistent=False)
        # Plain numbers for eager mode; the same in a tensor, so that a compiled training step
        # takes θ as an input and one compilation serves every candidate.
        self._exact = self.form.arranged_coefficients(self.theta)
        self._numbers = _trimmed(self._exact[:, 0].tolist(), self.form)
        exact = torch.tensor(self._exact, dtype=torch.get_default_dtype())
        self.register_buffer("_coefficients", exact, persistent=False)
        self._anchor_numbers = None if self.anchor is None else (self.anchor.scale, smoothing)
        anchor = torch.tensor(self._anchor_numbers or (), dtype=torch.get_default_dtype())
        self.register_buffer("_anchor", anchor, persistent=False)

    @classmethod
    def from_cross_entropy(
        cls, order: int = 3, center: float | tuple[float, float] = 0.5, **settings: Any
    ) -> Self:
        """The Taylor expansion of cross-entropy itself, ``f = x log y``.

        The partial derivatives at the center (a, b) are ``a (-1)^(j-1) (j-1)! / b^j`` for y^j and
        the same without a for x y^j; terms of higher order in x vanish. With the default sum over
        classes the loss approximates `torch.nn.CrossEntropyLoss`, best for outputs near b.

        Args:
            order: Order of the expansion.
            center: b, or (a, b); b must be positive, and a is 0 if not given.
            settings: Further arguments of `TaylorLoss`, for the expansion over (x, y).
        """
        a, b = center if isinstance(center, tuple) else (0.0, center)
        if not b > 0:
            raise ValueError(f"center of y must be positive, not {b!r}: log y has a pole at 0.")
        settings = {"class_reduction": "sum", **settings}
        form = Expansion(order, ("x", "y"), settings.get("folded", False))
        theta = [a, b]
        for i, j in form.terms:
            derivative = -math.factorial(j - 1) / (-b) ** j if i <= 1 else 0.0
            whole = derivative * (a if i == 0 else 1.0)
            theta.append(whole / math.factorial(j) if form.folded else whole)
        return cls(theta, order=order, **settings)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss of a batch; shapes as in `taylor_loss`."""
        if torch.compiler.is_compiling() or "t" in self.form.variables:
            coefficients = _nested(self._coefficients, self.progress, self.form)
            anchor = None if self._anchor_numbers is None else (self._anchor[0], self._anchor[1])
            return polynomial_loss(logits, target, coefficients, self.conventions, anchor)
        return polynomial_loss(
            logits, target, self._numbers, self.conventions, self._anchor_numbers, fixed=True
        )

    def settings(self) -> dict[str, Any]:
        """The arguments that make it the function it is, as plain JSON values."""
        settings: dict[str, Any] = {
            "theta": list(self.theta),
            "order": self.form.order,
            "variables": list(self.form.variables),
            "folded": self.form.folded,
            "class_reduction": self.class_reduction,
            "label_smoothing": self.label_smoothing,
        }
        if self.anchor is not None:
            settings |= {"base": "cross_entropy", **self.anchor._asdict()}
        return settings

    def extra_repr(self) -> str:
        """The settings that make it the function it is."""
        text = (
            f"theta={self.theta}, order={self.form.order}, variables={self.form.variables}, "
            f"folded={self.form.folded}, class_reduction={self.class_reduction!r}"
        )
        if self.anchor is None:
            return text
        log_scale, smoothing = self.anchor
        return f"{text}, base='cross_entropy', log_scale={log_scale}, smoothing={smoothing}"

    def __setattr__(self, name: str, value: Any) -> None:
        # `loss.progress = 0.5` must fill the buffer: replacing it would break device and compile.
        if name == "progress" and "progress" in self._buffers:
            self.progress.copy_(torch.as_tensor(value))
        else:
            super().__setattr__(name, value)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        # .half() and .double() would round, or keep the rounding of, what is known exactly.
        progress = self.progress
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        device = self._coefficients.device
        dtype = torch.promote_types(self._coefficients.dtype, torch.float32)
        self._coefficients = torch.tensor(self._exact, dtype=dtype, device=device)
        self._anchor = torch.tensor(self._anchor_numbers or (), dtype=dtype, device=device)
        if self.progress.dtype != dtype:
            self._buffers["progress"] = progress.to(device=device, dtype=dtype)
        return self


def _coefficients_of_tensor(theta: Tensor, form: Expansion) -> Tensor:
    """`Expansion.arranged_coefficients` for θ in a tensor, differentiable and vmappable."""
    if theta.shape != (form.n_parameters,):
        raise ValueError(
            f"theta has shape {tuple(theta.shape)}; {form} takes ({form.n_parameters},)."
        )
    power, term, constant, exponents = _table_tensors(form, theta.dtype, theta.device)
    center = theta[: len(form.variables)]
    products = constant * theta[term] * torch.pow(-center, exponents).prod(dim=1)
    side, n_variables = form.order + 1, len(form.variables)
    dense = products.new_zeros(side**n_variables).index_add(0, power, products)
    permutation, shape = form.arrangement
    return dense.reshape((side,) * n_variables).permute(permutation).reshape(shape)


@lru_cache(maxsize=64)
def _table_tensors(
    form: Expansion, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    table = form.table
    return (
        torch.tensor(table.power, device=device),
        torch.tensor(table.term, device=device),
        torch.tensor(table.constant, dtype=dtype, device=device),
        torch.tensor(table.exponents, dtype=dtype, device=device),
    )


def _nested(
    coefficients: Tensor, progress: Tensor | float, form: Expansion
) -> tuple[Polynomial, ...]:
    """Coefficients over (x, t, y, z) at this progress, nested by (x, y, z) without the zeros."""
    if "t" in form.variables:
        powers = torch.arange(form.order + 1, device=coefficients.device)
        progress = torch.as_tensor(progress, dtype=coefficients.dtype, device=coefficients.device)
        at_progress = progress**powers
        # Not a matrix product: autocast would round that to half precision.
        coefficients = (coefficients * at_progress[:, None, None]).sum(dim=1)
    else:
        coefficients = coefficients[:, 0]
    return _trimmed([[y.unbind() for y in x.unbind()] for x in coefficients.unbind()], form)


def _trimmed(nested: Sequence[Polynomial], form: Expansion) -> tuple[Polynomial, ...]:
    """Without the powers of a total degree beyond the order, which no term reaches."""
    side = form.order + 1
    return tuple(
        tuple(tuple(y[: side - i - j]) for j, y in enumerate(x[: side - i]))
        for i, x in enumerate(nested)
    )
