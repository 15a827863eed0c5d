"""What the losses share with `nn.CrossEntropyLoss`: arguments, shapes, weights and reductions."""

from __future__ import annotations

import json
from abc import abstractmethod
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from optuna_taylorglo.losses.files import FORMAT, VERSION, LossFile, Origin, TreeLossFile
from optuna_taylorglo.text import write_atomically

_ALLOWED = {"class_reduction": ("mean", "sum"), "reduction": ("mean", "sum", "none")}


class Conventions(NamedTuple):
    """How classes and samples add up to one number; `taylor_loss` says what each field means."""

    class_reduction: str = "mean"
    reduction: str = "mean"
    weight: Tensor | None = None
    ignore_index: int = -100
    label_smoothing: float = 0.0

    def validate(self) -> Conventions:
        """Itself, or a ValueError that names the setting."""
        for name, allowed in _ALLOWED.items():
            value = getattr(self, name)
            if value not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, not {value!r}.")
        if not 0 <= self.label_smoothing <= 1:
            raise ValueError(f"label_smoothing must be in [0, 1], not {self.label_smoothing!r}.")
        return self

    def class_scale(self, n_classes: int) -> float:
        """Factor on a sum over classes: 1/n or 1."""
        return 1 / n_classes if self.class_reduction == "mean" else 1.0


class ClassificationLoss(nn.Module):
    """A loss called as `nn.CrossEntropyLoss` is; its `Conventions` may change between calls."""

    weight: Tensor | None

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.class_reduction, self.reduction, weight, self.ignore_index, self.label_smoothing = (
            Conventions(**settings).validate()
        )
        self.register_buffer("weight", weight)

    @property
    def conventions(self) -> Conventions:
        """The current settings."""
        weight = self._buffers["weight"]  # faster than self.weight
        return Conventions(
            self.class_reduction, self.reduction, weight, self.ignore_index, self.label_smoothing
        )


class EvolvedLossModule(ClassificationLoss):
    """A loss that a file can hold."""

    file_type: ClassVar[type[LossFile | TreeLossFile]]

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.n_classes: int | None = None
        self.origin: Origin | None = None
        self.lr_factor: float | None = None

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The arguments that define the function, as plain JSON values."""

    def extra_repr(self) -> str:
        """The settings."""
        rate = {} if self.lr_factor is None else {"lr_factor": self.lr_factor}
        return ", ".join(f"{name}={value!r}" for name, value in (self.settings() | rate).items())

    def save(
        self,
        path: str | PathLike[str],
        *,
        n_classes: int | None = None,
        origin: Origin | None = None,
    ) -> None:
        """Write the loss to a JSON file that `load_loss` reads back exactly, atomically.

        `n_classes` and `origin` are the attributes unless given; `lr_factor` is the attribute.
        """
        settings = self.settings() | {
            "reduction": self.reduction,
            "weight": None if self.weight is None else self.weight.tolist(),
            "ignore_index": self.ignore_index,
            "n_classes": self.n_classes if n_classes is None else n_classes,
            "origin": self.origin if origin is None else origin,
            "lr_factor": self.lr_factor,
        }
        content = self.file_type.from_plain(settings).model_dump()
        # JSON writes Python's shortest exact form of a float, so numbers come back bit for bit.
        text = json.dumps({"format": FORMAT, "version": VERSION, **content}, indent=2)
        write_atomically(Path(path), text + "\n")


class Batch(NamedTuple):
    """Logits and targets, checked and brought into one form."""

    logits: Tensor  # (N, C, …), at least float32, 0 in ignored samples
    target: Tensor  # indices (N, 1, …), 0 in ignored samples; or smoothed probabilities (N, C, …)
    is_soft: bool  # whether the target holds probabilities
    valid: Tensor | None = None  # which samples count, (N, 1, …); None for all
    share: Tensor | None = None  # mean class weight under the smoothed target, (N, 1, …)
    total: Tensor | None = None  # what "mean" divides by; None for the number of samples
    shape: torch.Size | None = None  # of the losses of samples, if it is not that of the batch

    def labels(self, smoothing: float) -> Tensor:
        """Smoothed class probabilities of the shape of the logits."""
        if self.is_soft:
            return self.target
        low = smoothing / self.logits.shape[1]
        return torch.full_like(self.logits, low).scatter(1, self.target, low + 1 - smoothing)

    def weigh(self, losses: Tensor) -> Tensor:
        """Losses of samples, shape (N, 1, …), times the weights of their targets."""
        return losses if self.share is None else losses * self.share

    def reduce(self, losses: Tensor, reduction: str) -> Tensor:
        """Weighted losses of samples, shape (N, 1, …), as the reduction says."""
        if self.valid is not None:
            losses = torch.where(self.valid, losses, 0.0)
        if reduction == "none":
            losses = losses.squeeze(1)
            return losses if self.shape is None else losses.reshape(self.shape)
        if reduction == "sum":
            return losses.sum()
        return losses.mean() if self.total is None else losses.sum() / self.total


def prepare(
    logits: Tensor, target: Tensor, conventions: Conventions, n_classes: int | None = None
) -> Batch:
    """Check a batch and say how its samples count; a ValueError names shapes that do not fit.

    With `n_classes`, logits of another number of classes are refused.
    """
    if logits.dim() == 0:
        raise ValueError("logits has no dimension; its shape must be (C,) or (N, C, …).")
    shape: torch.Size | None = None
    if logits.dim() == 1:
        shape = logits.shape[:0]
        logits, target = logits.unsqueeze(0), target.unsqueeze(0)
    elif _is_sequence(logits, target):
        shape = target.shape
        logits, target = logits.flatten(0, 1), target.flatten()
    weight, n = conventions.weight, logits.shape[1]
    if n_classes is not None and n != n_classes:
        raise ValueError(
            f"logits have {n} classes, and the loss was made for {n_classes}: to use it with {n}, "
            f"load_loss(path, n_classes={n}) or loss.n_classes = {n}."
        )
    if weight is not None and weight.shape != (n,):
        raise ValueError(f"weight has shape {tuple(weight.shape)}; {n} classes take shape ({n},).")
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    weight = None if weight is None else weight.to(logits.dtype)
    smoothing = conventions.label_smoothing
    _check_target(logits, target, conventions.ignore_index)
    if target.is_floating_point():
        x = target.to(logits.dtype)
        if smoothing:
            x = x * (1 - smoothing) + smoothing / n
        share = None if weight is None else (x * over_classes(weight, x)).sum(1, keepdim=True)
        return Batch(logits, x, True, share=share, shape=shape)
    index = target.long().unsqueeze(1)
    if weight is None and _all_count(index, conventions.ignore_index):
        return Batch(logits, index, False, shape=shape)
    valid = index != conventions.ignore_index
    index, logits = index * valid, torch.where(valid, logits, 0.0)
    if weight is None:
        return Batch(logits, index, False, valid, None, valid.sum(), shape)
    count = weight[index] * valid
    share = ((1 - smoothing) * count + smoothing * weight.mean()) * valid
    return Batch(logits, index, False, valid, share, count.sum(), shape)


def over_classes(weight: Tensor, like: Tensor) -> Tensor:
    """Weights of shape (C,) with the axes to multiply a tensor of shape (N, C, …)."""
    return weight.to(like.dtype).reshape(-1, *(1 for _ in like.shape[2:]))


def transforms_active() -> bool:
    """Whether a transform of `torch.func` is active; PyTorch has no public question for it."""
    return bool(torch._C._are_functorch_transforms_active())


def _is_sequence(logits: Tensor, target: Tensor) -> bool:
    """Whether they are (B, T, C) and indices (B, T), which PyTorch's (N, C, d1) cannot mean."""
    if logits.dim() != 3 or target.is_floating_point() or logits.shape[1] == logits.shape[2]:
        return False
    return target.shape == logits.shape[:2]


def _all_count(index: Tensor, ignore_index: int) -> bool:
    """Whether no sample is known to be ignored; asked on the CPU only, a GPU would have to wait."""
    if not index.is_cpu or torch.compiler.is_compiling() or transforms_active():
        return False
    return ignore_index < 0 and index.numel() > 0 and int(index.min()) >= 0


def _check_target(logits: Tensor, target: Tensor, ignore_index: int) -> None:
    soft, shape = target.is_floating_point(), tuple(logits.shape)
    expected = shape if soft else shape[:1] + shape[2:]
    if tuple(target.shape) != expected:
        kind = "class probabilities (class indices must be integers)" if soft else "class indices"
        raise ValueError(
            f"target has shape {tuple(target.shape)}; {kind} for logits of shape {shape} have "
            f"shape {expected}."
        )
    if not soft and target.dtype not in (torch.int64, torch.uint8):
        raise ValueError(f"target has dtype {target.dtype}; class indices are int64 or uint8.")
    if soft and ignore_index >= 0:
        raise ValueError(
            f"ignore_index is {ignore_index}; it must be negative with class probabilities."
        )
