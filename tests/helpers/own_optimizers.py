"""LightningModules that differ in how their learning rate is decided."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler


class Scheduled(pl.LightningModule):
    """A small net whose optimizer and schedule are chosen by name.

    Args:
        num_classes: Number of classes.
        lr: The learning rate, or its peak.
        kind: A method below.
    """

    def __init__(self, num_classes: int, lr: float = 0.02, kind: str = "constant") -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
        self.criterion: nn.Module = nn.CrossEntropyLoss()
        self.lr = lr
        self.kind = kind

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        loss: Tensor = self.criterion(self.net(batch[0]), batch[1])
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        accuracy = (self.net(batch[0]).argmax(dim=1) == batch[1]).float().mean()
        self.log("val_accuracy", accuracy, batch_size=len(batch[1]))

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        accuracy = (self.net(batch[0]).argmax(dim=1) == batch[1]).float().mean()
        self.log("test_accuracy", accuracy, batch_size=len(batch[1]))

    def configure_optimizers(self) -> Any:
        return getattr(self, self.kind)()

    def constant(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)

    def two_groups(self) -> Any:
        first, last = self.net[1].parameters(), self.net[3].parameters()
        return torch.optim.Adam(
            [{"params": first, "lr": self.lr}, {"params": last, "lr": self.lr / 4}]
        )

    def warm_up(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
        return self._by_step(lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 7)))

    def one_cycle(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)
        total = int(self.trainer.estimated_stepping_batches)
        return self._by_step(lr_scheduler.OneCycleLR(optimizer, self.lr, total_steps=total))

    def milestones(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
        return self._by_step(lr_scheduler.MultiStepLR(optimizer, [4, 9], 0.3))

    def plateau(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr)
        schedule = lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", factor=0.3, patience=0)
        # Lightning steps it after each epoch, that is after each validation here.
        return [optimizer], [{"scheduler": schedule, "monitor": "val_accuracy", "strict": False}]

    def sequence(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
        rise = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3)
        fall = lr_scheduler.CosineAnnealingLR(optimizer, 9)
        return self._by_step(lr_scheduler.SequentialLR(optimizer, [rise, fall], [3]))

    def _by_step(self, schedule: Any) -> Any:
        return [schedule.optimizer], [{"scheduler": schedule, "interval": "step"}]


class ByHand(Scheduled):
    """Optimizes by hand, and sets the rate by hand."""

    def __init__(self, num_classes: int, lr: float = 0.02) -> None:
        super().__init__(num_classes, lr)
        self.automatic_optimization = False

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:  # type: ignore[override]
        optimizer: Any = self.optimizers()
        for group in optimizer.param_groups:
            group["lr"] = self.lr / (1 + self.global_step)
        optimizer.zero_grad()
        self.manual_backward(self.criterion(self.net(batch[0]), batch[1]))
        optimizer.step()


class SetsRateInsideAStep(Scheduled):
    """Sets the rate in its training step, which Lightning runs inside the optimizer's."""

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        for group in self.trainer.optimizers[0].param_groups:
            group["lr"] = self.lr / (1 + self.global_step)
        return super().training_step(batch, batch_idx)


class RatelessOptimizer(torch.optim.Optimizer):
    """Steps of a fixed length."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"length": 0.01})

    def step(self, closure: Any = None) -> Any:
        loss = closure()
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.sub_(parameter.grad.sign() * group["length"])
        return loss


class WithoutRate(Scheduled):
    def configure_optimizers(self) -> Any:
        return RatelessOptimizer(self.parameters())


class WithoutOptimizer(Scheduled):
    configure_optimizers = pl.LightningModule.configure_optimizers
