"""Metrics that torchmetrics lacks or computes at a price."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric


class BalancedAccuracy(Metric):
    """The mean over classes of the share of their images that are recognised.

    Every class counts alike, however many images it has; one without images does not count. The
    number of classes is that of the logits, so nobody has to know it beforehand.
    """

    full_state_update = False
    recognised: Tensor
    images: Tensor

    def __init__(self) -> None:
        super().__init__()
        # Scalars, which the first batch turns into vectors (classes,).
        self.add_state("recognised", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("images", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Count a batch: logits (B, classes) and labels (B,)."""
        # Unlike bincount this never waits for the device.
        of_class = labels[:, None] == torch.arange(logits.shape[1], device=logits.device)
        correct = logits.argmax(dim=1) == labels
        self.recognised = self.recognised + (of_class & correct[:, None]).sum(dim=0)
        self.images = self.images + of_class.sum(dim=0)

    def compute(self) -> Tensor:
        """Return the mean over the classes that were seen."""
        seen = self.images > 0
        return (self.recognised[seen] / self.images[seen]).mean()
