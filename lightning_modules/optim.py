"""Optimizer and learning-rate schedule as a recipe's settings say."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn, optim
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LinearLR,
    LRScheduler,
    MultiStepLR,
    OneCycleLR,
    SequentialLR,
)

from optuna_taylorglo.recipes.settings import OptimizerSettings, ScheduleSettings


def build_optimizer(
    settings: OptimizerSettings, parameters: Iterable[nn.Parameter], *, fused: bool = True
) -> optim.Optimizer:
    """Return the optimizer.

    Args:
        settings: Which, and how.
        parameters: What it updates.
        fused: Whether the update is one kernel, the fastest on CPU and GPU.
    """
    if settings.name == "sgd":
        return optim.SGD(
            parameters,
            lr=settings.lr,
            momentum=settings.momentum,
            nesterov=settings.nesterov,
            weight_decay=settings.weight_decay,
            fused=fused,
        )
    kind = optim.Adam if settings.name == "adam" else optim.AdamW
    return kind(parameters, lr=settings.lr, weight_decay=settings.weight_decay, fused=fused)


def build_schedule(
    settings: ScheduleSettings, optimizer: optim.Optimizer, length: int
) -> LRScheduler:
    """Return the scheduler; call its ``step`` once a unit, at most `length` times.

    Args:
        settings: What it does.
        optimizer: Whose learning rate it changes.
        length: Units of a full training, which may end before.
    """
    if settings.kind == "one_cycle":
        # Momentum stays as the recipe has it.
        peak = [group["lr"] for group in optimizer.param_groups]
        return OneCycleLR(optimizer, peak, total_steps=length, cycle_momentum=False)
    warmup = settings.warmup
    after: LRScheduler
    if settings.kind == "cosine":
        after = CosineAnnealingLR(optimizer, T_max=length - warmup)
    else:
        milestones = [milestone - warmup for milestone in settings.milestones]
        after = MultiStepLR(optimizer, milestones, settings.gamma)
    if not warmup:
        return after
    # The first unit has 1 / warmup of the rate, the last one of the rise all of it.
    rise = LinearLR(optimizer, start_factor=1 / warmup, total_iters=warmup - 1)
    return SequentialLR(optimizer, [rise, after], milestones=[warmup])
