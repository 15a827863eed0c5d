"""What bundled networks are measured by: torchmetrics, and what it lacks or computes at a price.

All but `MeanMetric` are given logits (N, classes) or (N, classes, d1, …) and labels without the
axis of classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

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

MODES: Mapping[str, Literal["max", "min"]] = MappingProxyType(
    {
        "accuracy": "max",
        "balanced_accuracy": "max",
        "f1": "max",
        "top5_accuracy": "max",
        "ece": "min",
        "nll": "min",
    }
)
"""Names without ``val_`` or ``test_``, and whether greater or smaller is better."""


def metric_of(fitness: FitnessSettings, n_classes: int) -> str:
    """The metric in `MODES` that a `Classifier` has to log for a plain network's fitness.

    Raises:
        RecipeError: If there is no such metric, the other direction is better, the data have too
            few classes, or it is each candidate's own loss.
    """
    name, mode = fitness.metric.removeprefix("val_"), fitness.mode
    field = "metric"
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
    """Build a metric.

    Args:
        name: One of `MODES`, or "loss"; "accuracy" and "loss" are plain means.
        num_classes: Number of classes.
        ignore_index: Label that does not count.
    """
    builders: dict[str, Callable[[], Metric]] = {
        "accuracy": MeanMetric,
        "loss": MeanMetric,
        "balanced_accuracy": lambda: BalancedAccuracy(ignore_index),
        "f1": lambda: MulticlassF1Score(
            num_classes, average="macro", ignore_index=ignore_index, validate_args=False
        ),
        "top5_accuracy": lambda: MulticlassAccuracy(
            num_classes, top_k=5, average="micro", ignore_index=ignore_index, validate_args=False
        ),
        "ece": lambda: CalibrationError(
            num_classes, ignore_index=ignore_index, validate_args=False
        ),
        "nll": lambda: NegativeLogLikelihood(ignore_index),
    }
    return builders[name]()


class CalibrationError(MulticlassCalibrationError):
    """Expected calibration error of logits, with 15 bins."""

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Count a batch of logits and labels."""
        # Logits that happen to lie in [0, 1] would be taken for probabilities.
        super().update(preds.softmax(dim=1), target)


class NegativeLogLikelihood(Metric):
    """Cross-entropy of the predictions, whatever loss trained the network.

    `MeanMetric` would leave out a batch whose value is NaN, and so judge a network that diverged
    by the rest.

    Args:
        ignore_index: Label that does not count.
    """

    full_state_update = False
    total: Tensor
    counted: Tensor

    def __init__(self, ignore_index: int) -> None:
        super().__init__()
        self.ignore_index = ignore_index
        self.add_state("total", torch.zeros(()), dist_reduce_fx="sum")
        self.add_state("counted", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Count a batch of logits and labels."""
        sum_ = F.cross_entropy(logits, labels, reduction="sum", ignore_index=self.ignore_index)
        self.total = self.total + sum_
        self.counted = self.counted + (labels != self.ignore_index).sum()

    def compute(self) -> Tensor:
        """Return the mean over all labels that count."""
        return self.total / self.counted


class BalancedAccuracy(Metric):
    """The mean over classes of the share of their images that are recognized.

    A class without images does not count. The number of classes is that of the logits.

    Args:
        ignore_index: Label that does not count.
    """

    full_state_update = False
    recognized: Tensor
    images: Tensor

    def __init__(self, ignore_index: int) -> None:
        super().__init__()
        self.ignore_index = ignore_index
        # Scalars, which the first batch turns into vectors (classes,).
        self.add_state("recognized", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("images", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Count a batch of logits and labels."""
        correct = (logits.argmax(dim=1) == labels).flatten()
        labels = labels.flatten()
        # Unlike bincount this never waits for the device.
        of_class = labels[:, None] == torch.arange(logits.shape[1], device=logits.device)
        of_class = of_class & (labels != self.ignore_index)[:, None]
        self.recognized = self.recognized + (of_class & correct[:, None]).sum(dim=0)
        self.images = self.images + of_class.sum(dim=0)

    def compute(self) -> Tensor:
        """Return the mean over the classes that were seen."""
        seen = self.images > 0
        return (self.recognized[seen] / self.images[seen]).mean()
