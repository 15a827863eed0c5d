"""θ as a PyTorch loss: the pure function `taylor_loss` and its module `TaylorLoss`.

Both are called like `torch.nn.functional.cross_entropy` and `torch.nn.CrossEntropyLoss`. Here θ
becomes the coefficients of a polynomial in plain powers; `losses.kernel` evaluates it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Self

import torch
from torch import Tensor

from optuna_taylorglo.losses.anchor import Base, make_anchor
from optuna_taylorglo.losses.conventions import Conventions
from optuna_taylorglo.losses.expansion import Expansion, expansion
from optuna_taylorglo.losses.files import LossFile
from optuna_taylorglo.losses.kept_loss import KeptLoss
from optuna_taylorglo.losses.kernel import AnchorValues, Polynomial, polynomial_loss


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


class TaylorLoss(KeptLoss):
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
