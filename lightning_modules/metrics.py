"""What bundled networks are measured by: torchmetrics, and what it lacks or computes at a price.

All but `MeanMetric` are given logits (N, classes) or (N, classes, d1, …) and labels without the
axis of classes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import MeanMetric, Metric
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassCalibrationError,
    MulticlassF1Score,
)

from optuna_taylorglo.errors import RecipeError
from optuna_taylorglo.recipes.schema import FitnessSettings

_GREATER = ("accuracy", "balanced_accuracy", "f1", "top5_accuracy")
MODES = dict.fromkeys(_GREATER, "max") | {"ece": "min", "nll": "min"}
"""Names without ``val_`` or ``test_``, and whether greater or smaller is better."""


def metric_of(fitness: FitnessSettings, n_classes: int) -> str:
    """The metric in `MODES` that a `Classifier` has to log for a plain network's fitness.

    Raises:
        RecipeError: If it cannot rank candidates.
    """
    name, mode, field = fitness.metric.removeprefix("val_"), fitness.mode, "metric"
    if fitness.metric == "val_loss":
        problem = (
            "val_loss is each candidate's own loss, so it cannot compare candidates; write "
            "metric: val_nll and mode: min, the cross-entropy of the predictions whatever loss "
            "trained them"
        )
    elif name not in MODES or name == fitness.metric:
        known = ", ".join(f"val_{metric}" for metric in MODES)
        problem = (
            f"{fitness.metric!r} is not logged for a plain network, for which it may be {known}; "
            "a LightningModule may log any"
        )
    elif mode != MODES[name]:
        field, better = "mode", "greater" if mode == "min" else "smaller"
        problem = (
            f"{mode} is not allowed with {fitness.metric}, of which {better} is better; write "
            f"mode: {MODES[name]}"
        )
    elif name == "top5_accuracy" and n_classes < 6:
        problem = (
            f"val_top5_accuracy is always 1, as the data have {n_classes} classes; it needs 6, use "
            "val_accuracy"
        )
    else:
        return name
    raise RecipeError(f"fitness.{field}", problem)


def build_metric(name: str, num_classes: int, ignore_index: int) -> Metric:
    """Build one of `MODES`, or "loss"; "accuracy" and "loss" are plain means."""
    of_classes: dict[str, Any] = {"num_classes": num_classes, "validate_args": False}
    builders: dict[str, Callable[..., Metric]] = {
        "balanced_accuracy": BalancedAccuracy,
        "nll": NegativeLogLikelihood,
        "f1": partial(MulticlassF1Score, average="macro", **of_classes),
        "top5_accuracy": partial(MulticlassAccuracy, top_k=5, average="micro", **of_classes),
        "ece": partial(CalibrationError, **of_classes),
    }
    return builders[name](ignore_index=ignore_index) if name in builders else MeanMetric()


class CalibrationError(MulticlassCalibrationError):
    """Expected calibration error of logits, with 15 bins."""

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Count a batch of logits and labels."""
        # Logits that happen to lie in [0, 1] would be taken for probabilities.
        super().update(preds.softmax(dim=1), target)


class _Mean(Metric):
    """A mean of parts over the labels that count, of which those without labels are left out."""

    full_state_update = False
    total: Tensor
    counted: Tensor

    def __init__(self, ignore_index: int) -> None:
        super().__init__()
        self.ignore_index = ignore_index
        for name in ("total", "counted"):
            self.add_state(name, torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def compute(self) -> Tensor:
        """Return the mean of all batches."""
        seen = self.counted > 0
        return (self.total[seen] / self.counted[seen]).mean()


class NegativeLogLikelihood(_Mean):
    """Cross-entropy of the predictions, whatever loss trained the network.

    `MeanMetric` would leave out a batch whose value is NaN, and so judge a network that diverged
    by the rest.
    """

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Count a batch of logits and labels."""
        sum_ = F.cross_entropy(logits, labels, reduction="sum", ignore_index=self.ignore_index)
        self.total = self.total + sum_
        self.counted = self.counted + (labels != self.ignore_index).sum()


class BalancedAccuracy(_Mean):
    """The mean over classes of the share of their images that are recognized."""

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Count a batch of logits and labels."""
        correct = (logits.argmax(dim=1) == labels).flatten()
        labels = labels.flatten()
        # Unlike bincount this never waits for the device.
        of_class = labels[:, None] == torch.arange(logits.shape[1], device=logits.device)
        of_class = of_class & (labels != self.ignore_index)[:, None]
        self.total = self.total + (of_class & correct[:, None]).sum(dim=0)
        self.counted = self.counted + of_class.sum(dim=0)
