"""θ as a PyTorch loss: the pure function `taylor_loss` and its module `TaylorLoss`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial, reduce
from typing import Any, Self

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from optuna_taylorglo.losses.canonical import Anchor, Base, label_polynomials, make_anchor
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
from optuna_taylorglo.losses.tree import CROSS_ENTROPY_TREE, expanded_theta

_LOG2_E = 1 / math.log(2)

Scalar = float | Tensor
Numbers = tuple[Sequence[float], Sequence[float], float, float]


class _HardTargets(torch.autograd.Function):
    """``Σ_j p(y_j) + q(y_t) + w CE_ε`` of each sample with target t, and its closed gradient

        dL/dz_j = y_j (h_j - Σ_k y_k h_k) + w (y_j - (1-ε) [j = t] - ε/n),
        h_j = p'(y_j) + [j = t] q'(y_t).

    It takes logits (N, C, …), targets (N, 1, …), numbers (coefficients of p from y² on, those of q,
    w and ε), and the same function by operators that autograd knows; it returns (N, 1, …).
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, index: Tensor, numbers: Numbers, plain: Callable[[Tensor], Tensor]
    ) -> Tensor:
        every, at_target, base, smoothing = numbers
        y = logits - logits.amax(1, keepdim=True)
        target_logits = y.gather(1, index)
        sum_of_logits = y.sum(1, keepdim=True) if smoothing else None
        sum_of_exp = y.mul_(_LOG2_E).exp2_().sum(1, keepdim=True)  # four times as fast as exp_
        y.div_(sum_of_exp)
        y_t = y.gather(1, index)
        constant, linear, *higher = at_target
        linear_term = y_t * linear
        losses = linear_term + constant
        target_slope = linear_term + base * (smoothing - 1)
        power = y_t
        for m, c in enumerate(higher, start=2):
            power = power * y_t
            losses.add_(power, alpha=c)
            target_slope.add_(power, alpha=m * c)
        every_slope = base * smoothing - target_slope
        powers = y * y
        for m, c in enumerate(every, start=2):
            if m > 2:
                powers.mul_(y)
            moment = powers.sum(1, keepdim=True)
            losses.add_(moment, alpha=c)
            every_slope.sub_(moment, alpha=m * c)
        if base:
            losses.add_(sum_of_exp.log_(), alpha=base)
            losses.sub_(target_logits, alpha=base * (1 - smoothing))
        if sum_of_logits is not None:
            losses.sub_(sum_of_logits, alpha=base * smoothing / y.shape[1])
        if ctx.needs_input_grad[0]:
            *lower, top = (m * c for m, c in enumerate(every, start=2))
            slope = torch.mul(y, top, out=powers)
            for c in reversed(lower):
                slope.add_(c).mul_(y)
            slope.add_(every_slope).mul_(y)
            if smoothing:
                slope.sub_(base * smoothing / y.shape[1])
            slope.scatter_add_(1, index, target_slope)
            ctx.save_for_backward(logits, slope)
            ctx.plain = plain
        return losses

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        logits, slope = ctx.saved_tensors
        if torch.is_grad_enabled():
            # Under create_graph the derivative must be differentiable in its turn.
            (slope,) = torch.autograd.grad(ctx.plain(logits), logits, grad, create_graph=True)
            return slope, None, None, None
        return slope * grad, None, None, None


@lru_cache
def _coefficients(
    theta: tuple[float, ...],
    form: Expansion,
    anchor: Anchor | None,
    n: int,
    class_scale: float,
    label_smoothing: float,
) -> Numbers:
    """The numbers of a loss for `_HardTargets`."""
    low = label_smoothing / n
    others, gap = (p[:, 0] for p in label_polynomials(theta, form, low, low + 1 - label_smoothing))
    # The outputs sum to 1, so powers 0 and 1 of every class come to a constant.
    gap[0] += n * others[0] + others[1]
    base, smoothing = (0.0, 0.0) if anchor is None else (anchor.scale, anchor.smoothing)
    if base:  # two smoothings, one after the other: 1 - (1 - ε)(1 - ε')
        smoothing += label_smoothing - smoothing * label_smoothing
    factor = -class_scale * (base or 1.0)
    every = (factor * others[2:]).tolist() or [0.0]
    at_target = (factor * gap).tolist()[: max(2, form.order)]  # there is no x y^k
    return every, at_target, base, smoothing


def _losses(
    logits: Tensor,
    batch: Batch,
    conventions: Conventions,
    form: Expansion,
    parameters: Sequence[Scalar],
    progress: Scalar,
) -> Tensor:
    """Weighted losses of each sample by their definition (Eq. 4, A1), shape (N, 1, …).

    The parameters are θ, then scale and smoothing of the anchor if there is one.
    """
    n, x = logits.shape[1], batch.labels(conventions.label_smoothing)
    values = {"x": x, "y": torch.softmax(logits, dim=1), "z": logits, "t": progress}
    theta, anchor = parameters[: form.n_parameters], parameters[form.n_parameters :]
    shifted = [values[v] - a for v, a in zip(form.variables, theta, strict=False)]
    rows = zip(form.terms, form.factors, theta[len(shifted) :], strict=True)
    f = _polynomial({alpha: factor * c for alpha, factor, c in rows}, shifted)
    losses = batch.weigh(-conventions.class_scale(n) * f.sum(dim=1, keepdim=True))
    if not anchor:
        return losses
    scale, smoothing = anchor
    log_y = torch.log_softmax(logits, dim=1)
    if conventions.weight is not None:
        log_y = log_y * over_classes(conventions.weight, logits)
    cross_entropy = -((x * (1 - smoothing) + smoothing / n) * log_y).sum(dim=1, keepdim=True)
    return scale * (cross_entropy + losses)


def _polynomial(terms: Mapping[tuple[int, ...], Scalar], variables: Sequence[Any]) -> Any:
    """``Σ_α terms[α] Π_v variables[v]^α_v`` by Horner's rule, one variable after the other."""
    if not variables:
        return terms[()]
    first, *rest = variables
    factors = []
    for power in range(max(alpha[0] for alpha in terms), -1, -1):
        inner = {alpha[1:]: c for alpha, c in terms.items() if alpha[0] == power}
        factors.append(_polynomial(inner, rest) if inner else 0.0)
    return reduce(lambda result, factor: first * result + factor, factors)


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
        logits: Raw network outputs, shape (C,), (N, C) or (N, C, d1, …); or (B, T, C) of
            sequences. With T = C it is (N, C, d1), as in PyTorch: flatten to be sure.
        target: Class indices of shape (), (N,), (N, d1, …) or (B, T), or class probabilities of
            the shape of `logits`, which is then not (B, T, C).
        theta: The parameters, shape (P,) with P the form's `n_parameters`.
        order: Order of the expansion.
        variables: Its variables.
        folded: Whether 1/α! is already in θ.
        class_reduction: "mean" for the paper's 1/n, "sum" for what its authors ran.
        reduction: "mean", "sum" or "none" over samples, as in `cross_entropy`.
        weight: Weight of each class, shape (C,), as in `cross_entropy`; with probabilities a sample
            counts with the mean of the weights under them, and "mean" divides by their number.
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
    if theta.shape != (form.n_parameters,):
        raise ValueError(
            f"theta has shape {tuple(theta.shape)}; {form} takes ({form.n_parameters},)."
        )
    parameters: list[Scalar] = list(theta.unbind())
    if isinstance(log_scale, Tensor) or isinstance(smoothing, Tensor):
        make_anchor(base, 0.0, 0.0)
        parameters += [torch.as_tensor(log_scale).exp(), smoothing]
    elif (anchor := make_anchor(base, log_scale, smoothing)) is not None:
        parameters += [anchor.scale, anchor.smoothing]
    conventions = Conventions(class_reduction, reduction, weight, ignore_index, label_smoothing)
    batch = prepare(logits, target, conventions.validate())
    losses = _losses(batch.logits, batch, conventions, form, parameters, progress)
    return batch.reduce(losses, reduction)


class TaylorLoss(EvolvedLossModule):
    """A Taylor loss with fixed θ, in the place of `torch.nn.CrossEntropyLoss`.

        loss = TaylorLoss(theta)
        loss(model(images), labels).backward()

    With ``base="cross_entropy"`` it is one of the anchored family, ``e^s (CE_ε - f)``, which at
    θ = 0, s = 0, ε = 0 is cross-entropy.

    Args:
        theta: The center, then a parameter for each term; by default the eight of Eq. 5.
        order: Order of the expansion.
        variables: Its variables, out of x (target), y (softmax output), z (logits), t (progress).
        folded: Whether 1/α! is already in θ, as in the numbers that the authors published.
        base: "none", or "cross_entropy" for the anchored family.
        log_scale: s of the anchored family.
        smoothing: ε of the anchored family, below 1; it may be negative. It smooths the labels
            that cross-entropy sees, `label_smoothing` those of the whole loss.
        settings: class_reduction, reduction, weight, ignore_index and label_smoothing, as in
            `taylor_loss`.

    Attributes:
        theta: The parameters as exact floats.
        anchor: Scale and smoothing of the anchored family; None without a base.
        progress: Training progress in [0, 1], a tensor that the caller sets for losses in ``t``.
        n_classes: Number of classes the loss was made for, if known; logits of another are refused.
        origin: Where a loss from a file came from, if known.
        lr_factor: Factor on the learning rate that the loss is to be used with, if an optimizer
            that undoes the scale of a loss found it; None if its own scale acts as it stands.

    Examples:
        >>> import torch
        >>> from optuna_taylorglo import TaylorLoss
        >>> brier = (0, 0, 0, -2, 0, 2, 0, 0)  # the Brier score, up to a constant
        >>> criterion = TaylorLoss(brier, class_reduction="sum")
        >>> logits, labels = torch.zeros(2, 4, requires_grad=True), torch.tensor([0, 3])
        >>> loss = criterion(logits, labels)
        >>> loss.backward()
        >>> logits.grad[0].tolist()
        [-0.1875, 0.0625, 0.0625, 0.0625]

        Anchored at cross-entropy, a θ of 0 is cross-entropy itself:

        >>> anchored = TaylorLoss([0.0] * 8, base="cross_entropy")
        >>> torch.allclose(anchored(logits, labels), torch.nn.CrossEntropyLoss()(logits, labels))
        True
    """

    file_type = LossFile

    def __init__(
        self,
        theta: Sequence[float] | Tensor,
        *,
        order: int = 3,
        variables: Sequence[str] = ("x", "y"),
        folded: bool = False,
        base: Base = "none",
        log_scale: float = 0.0,
        smoothing: float = 0.0,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        values = theta.detach().tolist() if isinstance(theta, Tensor) else theta
        self.form = Expansion(order, tuple(variables), folded)
        self.theta = self.form.validate(values)
        _ = self.form.factors  # cached now, as torch.compile cannot compute them
        self.anchor = make_anchor(base, log_scale, smoothing)
        anchor = () if self.anchor is None else (self.anchor.scale, self.anchor.smoothing)
        self._numbers = (*self.theta, *anchor)
        # No buffers: .half() must not round them.
        self._as_tensor = torch.tensor(self._numbers, dtype=torch.float64)
        self._progress = torch.zeros((), dtype=torch.float64)

    @property
    def progress(self) -> Tensor:
        """Training progress in [0, 1], for losses in ``t``; no dimensions."""
        return self._progress

    @progress.setter
    def progress(self, value: Tensor | float) -> None:
        self._progress.copy_(torch.as_tensor(value))

    @classmethod
    def from_cross_entropy(
        cls, order: int = 3, center: float | tuple[float, float] = 0.5, **settings: Any
    ) -> Self:
        """The Taylor expansion of cross-entropy, ``f = x log y``, around y = b or (x, y) = (a, b).

        With the default sum over classes it approximates cross-entropy, best for outputs near b.
        """
        form = Expansion(order, ("x", "y"), settings.get("folded", False))
        point = center if isinstance(center, tuple) else (0.0, center)
        theta = expanded_theta(CROSS_ENTROPY_TREE, form=form, center=point)
        return cls(theta, order=order, **{"class_reduction": "sum", **settings})

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss of a batch; shapes as in `taylor_loss`."""
        conventions, form = self.conventions, self.form
        batch = prepare(logits, target, conventions, self.n_classes)
        n, compiling = batch.logits.shape[1], torch.compiler.is_compiling()
        plain = partial(
            _losses,
            batch=batch,
            conventions=conventions,
            form=form,
            # Tensors are inputs of a compiled graph, so that it serves every candidate.
            parameters=self._as_tensor.unbind() if compiling else self._numbers,
            progress=self.progress,
        )
        if (
            batch.is_soft
            or conventions.weight is not None
            or not {"x", "y"}.issuperset(form.variables)
            or compiling
            or transforms_active()
            or unpack_dual(batch.logits).tangent is not None  # type: ignore[no-untyped-call]
        ):
            losses = plain(batch.logits)
        else:
            scale, smoothing = conventions.class_scale(n), conventions.label_smoothing
            numbers = _coefficients(self.theta, form, self.anchor, n, scale, smoothing)
            losses = _HardTargets.apply(batch.logits, batch.target, numbers, plain)
        return batch.reduce(losses, conventions.reduction)

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
