"""Watches over one training: its progress, and losses that are not finite."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from optuna_taylorglo.errors import Diverged

STEPS_BETWEEN_CHECKS = 10
"""Each check waits for the device, so they are some steps apart."""


class TrainingMonitor:
    """Tells a criterion how far training is, and notices when a loss stops being finite.

    Args:
        total_steps: Optimizer steps of the whole training.
    """

    def __init__(self, total_steps: float) -> None:
        self._total_steps = total_steps
        self._unchecked: list[Tensor] = []

    def tell_progress(self, criterion: object, step: int) -> None:
        """Set the criterion's tensor ``progress``, if it has one, to the share of steps done."""
        progress = getattr(criterion, "progress", None)
        if isinstance(progress, Tensor):
            progress.fill_(min(step / self._total_steps, 1.0))

    def observe(self, losses: Iterable[Tensor], step: int) -> None:
        """Take in the losses of some steps; they are checked now and then.

        Raises:
            Diverged: If one since the last check is not finite.
        """
        self._unchecked += losses
        if len(self._unchecked) >= STEPS_BETWEEN_CHECKS:
            self.check(step)

    def check(self, step: int) -> None:
        """Look at all losses that were not looked at yet.

        Raises:
            Diverged: If one of them is not finite.
        """
        losses, self._unchecked = self._unchecked, []
        if losses and not torch.stack(losses).isfinite().all():
            raise Diverged(f"the loss is not finite at step {step}")
