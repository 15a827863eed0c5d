"""The conventions of cross-entropy, as all losses here keep them: arguments, axes, reductions."""

from __future__ import annotations

from abc import abstractmethod
from os import PathLike
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from optuna_taylorglo.losses.files import LossFile, Origin, TreeLossFile, write_loss

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

    def class_scale(self, n_classes: int) -> float:
        """What a sum over classes is multiplied by: 1/n or 1."""
        return 1 / n_classes if self.class_reduction == "mean" else 1.0


class ClassificationLoss(nn.Module):
    """A loss that is called as `nn.CrossEntropyLoss` is; its settings may change between calls.

    Args:
        class_reduction: "mean" for 1/n, or "sum".
        reduction: "mean", "sum" or "none" over samples.
        weight: Weight of each class, shape (C,); a sample counts with its target's.
        ignore_index: Target index to leave out.
        label_smoothing: ε in [0, 1].
    """

    weight: Tensor | None

    def __init__(
        self,
        *,
        class_reduction: str = "mean",
        reduction: str = "mean",
        weight: Tensor | None = None,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        Conventions(class_reduction, reduction, weight, ignore_index, label_smoothing).validate()
        self.class_reduction = class_reduction
        self.reduction = reduction
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing
        self.register_buffer("weight", weight)

    @property
    def conventions(self) -> Conventions:
        """The settings as they are now."""
        return Conventions(
            self.class_reduction,
            self.reduction,
            self._buffers["weight"],  # self.weight, which a module looks for at some length
            self.ignore_index,
            self.label_smoothing,
        )


def at_least_float32(logits: Tensor) -> Tensor:
    """Logits in which a loss can be evaluated: half precision as float32."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def class_axis(logits: Tensor) -> int:
    """The axis of C in shapes (C,), (N, C) and (N, C, d1, …)."""
    dimensions = logits.dim()
    if dimensions == 0:
        raise ValueError(
            "logits has no dimension; its shape must be (C,), (N, C) or (N, C, d1, …)."
        )
    return min(1, dimensions - 1)


def check_weight(logits: Tensor, weight: Tensor | None) -> None:
    """Refuse weights that are not one for each class."""
    n = logits.shape[class_axis(logits)]
    if weight is not None and weight.shape != (n,):
        raise ValueError(f"weight has shape {tuple(weight.shape)}; {n} classes take shape ({n},).")


def check_indices(logits: Tensor, target: Tensor) -> None:
    """Refuse class indices that do not fit logits of shape (N, C) or (N, C, d1, …)."""
    expected = logits.shape[:1] + logits.shape[2:]
    if target.shape != expected:
        raise ValueError(
            f"target has shape {tuple(target.shape)}; class indices for logits of shape "
            f"{tuple(logits.shape)} have shape {tuple(expected)}."
        )
    if target.dtype not in (torch.int64, torch.uint8):
        raise ValueError(f"target has dtype {target.dtype}; class indices are int64 or uint8.")


def check_probabilities(logits: Tensor, target: Tensor, ignore_index: int) -> None:
    """Refuse class probabilities that do not fit the logits, or an index to ignore in them."""
    if target.shape != logits.shape:
        raise ValueError(
            f"target has shape {tuple(target.shape)}; class probabilities for logits of shape "
            f"{tuple(logits.shape)} have that shape too (class indices must be integers)."
        )
    if ignore_index >= 0:
        raise ValueError(
            f"ignore_index is {ignore_index}; class probabilities have no index to "
            "ignore, so it must be negative with them."
        )


class Counts(NamedTuple):
    """How samples with hard targets count, all of shape (N, 1, …) but for the total.

    Attributes:
        valid: Whether they count at all.
        share: Weight under the smoothed target.
        total: What "mean" divides by.
    """

    valid: Tensor
    share: Tensor
    total: Tensor


def count_samples(index: Tensor, dtype: torch.dtype, conventions: Conventions) -> Counts:
    """What weights and ignored targets make of the samples.

    Args:
        index: Target indices, shape (N, 1, …).
        dtype: Of the logits.
        conventions: Weights, ignored index and smoothing.
    """
    valid = index != conventions.ignore_index
    if conventions.weight is None:
        return Counts(valid, valid.to(dtype), valid.sum())
    weight, smoothing = conventions.weight.to(dtype), conventions.label_smoothing
    count = weight[index * valid] * valid
    share = ((1 - smoothing) * count + smoothing * weight.mean()) * valid
    return Counts(valid, share, count.sum())


def reduce_hard(
    losses: Tensor, counts: Counts | None, reduction: str, weighted: Tensor | None = None
) -> Tensor:
    """Losses of samples with hard targets, shape (N, 1, …), as the reduction has it.

    Args:
        losses: The losses.
        counts: How the samples count; None if all do, and alike.
        reduction: "mean", "sum" or "none".
        weighted: What to add to the losses once they are weighted.
    """
    if counts is not None:
        losses = losses * counts.share
    if weighted is not None:
        losses = losses + weighted
    if counts is not None:
        # Ignored samples count nothing whatever is in them.
        losses = torch.where(counts.valid, losses, 0.0)
        if reduction == "mean":
            return losses.sum() / counts.total
    return losses.squeeze(1) if reduction == "none" else _reduce(losses, reduction)


def reduce_soft(
    losses: Tensor, x: Tensor, conventions: Conventions, weighted: Tensor | None = None
) -> Tensor:
    """Losses of samples with class probabilities, as weights and reduction have it.

    Args:
        losses: The losses, of the shape of `x` without its C.
        x: The probabilities, smoothed, shape (C,), (N, C) or (N, C, d1, …).
        conventions: Weights and reduction.
        weighted: What to add to the losses once they are weighted.
    """
    if conventions.weight is not None:
        losses = losses * (x * weight_of_classes(conventions.weight, x)).sum(class_axis(x))
    if weighted is not None:
        losses = losses + weighted
    return _reduce(losses, conventions.reduction)


def weight_of_classes(weight: Tensor, like: Tensor) -> Tensor:
    """Weights of shape (C,) with the axes that make them fit (C,), (N, C) or (N, C, d1, …)."""
    axis = class_axis(like)
    return weight.to(like.dtype).reshape(-1, *(1 for _ in like.shape[axis + 1 :]))


def _reduce(losses: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return losses
    return losses.mean() if reduction == "mean" else losses.sum()


class EvolvedLoss(ClassificationLoss):
    """A loss that can be kept in a file; arguments as `ClassificationLoss`.

    Attributes:
        n_classes: Number of classes the loss was made for, if that is known.
        origin: Where the loss came from, if it was loaded from a file that says so.
    """

    file_type: ClassVar[type[LossFile | TreeLossFile]]

    def __init__(self, **conventions: Any) -> None:
        super().__init__(**conventions)
        self.n_classes: int | None = None
        self.origin: Origin | None = None

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The arguments that make it the function it is, as plain JSON values."""

    def save(
        self,
        path: str | PathLike[str],
        *,
        n_classes: int | None = None,
        origin: Origin | None = None,
    ) -> None:
        """Write the loss to a JSON file that `load_loss` reads back exactly.

        Args:
            path: File to write; replaced atomically if it exists.
            n_classes: Number of classes it was made for; by default what the loss remembers.
            origin: Where it came from; by default what the loss remembers.
        """
        settings = self.settings() | {
            "reduction": self.reduction,
            "weight": None if self.weight is None else self.weight.tolist(),
            "ignore_index": self.ignore_index,
            "n_classes": self.n_classes if n_classes is None else n_classes,
            "origin": self.origin if origin is None else origin,
        }
        write_loss(path, self.file_type(**settings))
