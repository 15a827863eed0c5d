"""Optimiser and learning-rate schedule as plain settings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from torch import nn, optim


@dataclass(frozen=True)
class OptimiserSettings:
    """Which optimiser and with what.

    Attributes:
        name: "sgd", "adam" or "adamw".
        lr: Initial learning rate.
        momentum: Momentum of SGD.
        nesterov: Nesterov's form of the momentum of SGD.
        weight_decay: Weight decay of all parameters.
    """

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: float = 0.01
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        """Check every setting."""
        if self.name not in ("sgd", "adam", "adamw"):
            raise ValueError(f"name must be 'sgd', 'adam' or 'adamw', got {self.name!r}")
        if self.lr <= 0:
            raise ValueError(f"lr must be positive, got {self.lr!r}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum!r}")
        if self.nesterov and (self.name != "sgd" or self.momentum == 0):
            raise ValueError("nesterov must be False unless name is 'sgd' and momentum is not 0")
        if self.weight_decay < 0:
            raise ValueError(f"weight_decay must not be negative, got {self.weight_decay!r}")

    def build(self, parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
        """Return the optimiser; its update is one fused kernel, the fastest on CPU and GPU."""
        if self.name == "sgd":
            return optim.SGD(
                parameters,
                lr=self.lr,
                momentum=self.momentum,
                nesterov=self.nesterov,
                weight_decay=self.weight_decay,
                fused=True,
            )
        kind = optim.Adam if self.name == "adam" else optim.AdamW
        return kind(parameters, lr=self.lr, weight_decay=self.weight_decay, fused=True)


@dataclass(frozen=True)
class ScheduleSettings:
    """A learning rate that falls at milestones.

    Attributes:
        unit: What milestones count: optimiser "steps", or "epochs" of the Trainer.
        milestones: When to multiply the learning rate by ``gamma``, ascending. Empty: constant.
        gamma: The factor.
    """

    unit: Literal["steps", "epochs"] = "epochs"
    milestones: tuple[int, ...] = ()
    gamma: float = 0.1

    def __post_init__(self) -> None:
        """Check every setting and make the milestones a tuple."""
        object.__setattr__(self, "milestones", tuple(self.milestones))
        if self.unit not in ("steps", "epochs"):
            raise ValueError(f"unit must be 'steps' or 'epochs', got {self.unit!r}")
        ascending = all(a < b for a, b in zip(self.milestones, self.milestones[1:], strict=False))
        if not ascending or any(milestone < 1 for milestone in self.milestones):
            raise ValueError(f"milestones must be positive and ascending, got {self.milestones!r}")
        if self.gamma <= 0:
            raise ValueError(f"gamma must be positive, got {self.gamma!r}")

    def build(self, optimiser: optim.Optimizer) -> optim.lr_scheduler.MultiStepLR:
        """Return the scheduler; call its ``step`` once a unit."""
        return optim.lr_scheduler.MultiStepLR(optimiser, list(self.milestones), self.gamma)
