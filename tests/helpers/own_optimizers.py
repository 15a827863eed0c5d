"""LightningModules that differ in how their learning rate is decided."""

from __future__ import annotations

from typing import Any

import torch
from own_nets import OwnModule
from torch import Tensor, nn
from torch.optim import lr_scheduler

SCHEDULES: dict[str, Any] = {
    "warm_up": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda s: min(1, (s + 1) / 7)),
    "one_cycle": lambda optimizer: lr_scheduler.OneCycleLR(
        optimizer, optimizer.param_groups[0]["lr"], total_steps=24
    ),
    "milestones": lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [4, 9], 0.3),
    "sequence": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [
            lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3),
            lr_scheduler.CosineAnnealingLR(optimizer, 9),
        ],
        [3],
    ),
}


class Scheduled(OwnModule):
    """A small net; `kind` is constant, two_groups, plateau or one of `SCHEDULES`."""

    def __init__(self, num_classes: int, lr: float = 0.02, kind: str = "constant") -> None:
        super().__init__(num_classes)
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
        self.lr = lr
        self.kind = kind

    def configure_optimizers(self) -> Any:
        if self.kind == "two_groups":
            first, last = ({"params": self.net[i].parameters()} for i in (1, 3))
            return torch.optim.Adam([first | {"lr": self.lr}, last | {"lr": self.lr / 4}])
        if self.kind in SCHEDULES:
            optimizer: Any = torch.optim.AdamW(self.parameters(), lr=self.lr)
            return [optimizer], [{"scheduler": SCHEDULES[self.kind](optimizer), "interval": "step"}]
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)
        if self.kind == "constant":
            return optimizer
        schedule = lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", factor=0.3, patience=0)
        # Lightning steps it after each epoch, that is after each validation here.
        return [optimizer], [{"scheduler": schedule, "monitor": "val_accuracy", "strict": False}]


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
            for parameter in self.param_groups[0]["params"]:
                parameter.sub_(parameter.grad.sign() * 0.01)
        return loss


class WithoutRate(Scheduled):
    def configure_optimizers(self) -> Any:
        return RatelessOptimizer(self.parameters())
