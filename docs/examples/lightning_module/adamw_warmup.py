"""A LightningModule as one writes it anyway: AdamW, warm-up, cosine decay, a training step.

All it does for the search is to call ``self.criterion``. `lightning` is a package of its own
(``pip install lightning``); with ``import pytorch_lightning as L``, which comes with
optuna-taylorglo, the module is the same and so is its search.
"""

from __future__ import annotations

import lightning as L
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR


class DigitsMLP(L.LightningModule):
    """Reads 8x8 digits.

    Args:
        num_classes: Number of classes; given by the search.
        hidden: Width of the hidden layers.
        lr: AdamW's learning rate after the warm-up.
        warmup: Steps of the warm-up.
        steps: Steps after which the learning rate is 0; the recipe's `budget.full`.
    """

    def __init__(
        self,
        num_classes: int,
        hidden: int = 64,
        lr: float = 3e-3,
        warmup: int = 50,
        steps: int = 500,
    ) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Flatten(),
            nn.Linear(64, hidden),
            nn.GELU(),
            nn.LayerNorm(hidden),
            nn.Linear(hidden, hidden),
            nn.GELU(),
            nn.Linear(hidden, num_classes),
        )
        self.lr, self.warmup, self.steps = lr, warmup, steps
        self.criterion: nn.Module = nn.CrossEntropyLoss()  # the search puts each candidate here

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """One step with whatever loss is in place."""
        images, labels = batch
        loss: Tensor = self.criterion(self.net(images), labels)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Log the metric that the recipe's `fitness.metric` names."""
        self._log_accuracy("val_accuracy", batch)

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Log its counterpart, for the verdict."""
        self._log_accuracy("test_accuracy", batch)

    def _log_accuracy(self, name: str, batch: tuple[Tensor, Tensor]) -> None:
        images, labels = batch
        hits = self.net(images).argmax(dim=1) == labels
        self.log(name, hits.float().mean(), batch_size=len(labels))

    def configure_optimizers(self) -> dict[str, object]:
        """AdamW, biases and norms without decay; the rate rises for `warmup` steps, then falls."""
        decayed = [p for p in self.net.parameters() if p.ndim > 1]
        others = [p for p in self.net.parameters() if p.ndim <= 1]
        groups = [
            {"params": decayed, "weight_decay": 0.05},
            {"params": others, "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, lr=self.lr)
        rise = LinearLR(optimizer, start_factor=0.02, total_iters=self.warmup)
        fall = CosineAnnealingLR(optimizer, T_max=self.steps - self.warmup)
        schedule = SequentialLR(optimizer, [rise, fall], milestones=[self.warmup])
        # In steps: with bundled data, an epoch of the Trainer reaches to the next validation.
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }
