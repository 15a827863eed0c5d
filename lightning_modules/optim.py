"""Optimiser and learning-rate schedule as a recipe's settings say."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn, optim

from optuna_taylorglo.recipes.schema import OptimiserSettings, ScheduleSettings


def build_optimiser(
    settings: OptimiserSettings, parameters: Iterable[nn.Parameter]
) -> optim.Optimizer:
    """Return the optimiser; its update is one fused kernel, the fastest on CPU and GPU."""
    if settings.name == "sgd":
        return optim.SGD(
            parameters,
            lr=settings.lr,
            momentum=settings.momentum,
            nesterov=settings.nesterov,
            weight_decay=settings.weight_decay,
            fused=True,
        )
    kind = optim.Adam if settings.name == "adam" else optim.AdamW
    return kind(parameters, lr=settings.lr, weight_decay=settings.weight_decay, fused=True)


def build_schedule(
    settings: ScheduleSettings, optimiser: optim.Optimizer
) -> optim.lr_scheduler.MultiStepLR:
    """Return the scheduler; call its ``step`` once a unit."""
    return optim.lr_scheduler.MultiStepLR(optimiser, list(settings.milestones), settings.gamma)
