"""Multiplies the learning rates that a module's own optimizers use.

It is done at the moment of use: every step of every optimizer is taken with each parameter group's
learning rate times the factor, and the rate is put back after it. So whatever decides the rate, a
scheduler of any kind or a line in the module, goes on as if nothing were.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer


class CannotScale(Exception):
    """A module's learning rate cannot be multiplied; the message says why."""


def scale_learning_rates(optimizers: Sequence[Any], factor: float) -> None:
    """Let optimizers take all further steps with their learning rates times a factor.

    Args:
        optimizers: What the Trainer holds.
        factor: The factor.

    Raises:
        CannotScale: If one of them has no learning rate; later, in a step, if the module sets the
            rate while the step is under way.
    """
    if not optimizers:
        raise CannotScale("it gives the Trainer no optimizer")
    for optimizer in optimizers:
        name = type(optimizer).__name__
        if not isinstance(optimizer, Optimizer):
            raise CannotScale(f"its optimizer {name} is none of PyTorch's kind")
        if any("lr" not in group for group in optimizer.param_groups):
            raise CannotScale(f"its optimizer {name} has no learning rate")
        scaled = _ScaledSteps(factor)
        optimizer.register_step_pre_hook(scaled.begin)
        optimizer.register_step_post_hook(scaled.end)


class _ScaledSteps:
    """The two hooks of one optimizer."""

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._own: list[Any] = []
        self._used: list[Any] = []

    def begin(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._own = [group["lr"] for group in optimizer.param_groups]
        self._used = [rate * self._factor for rate in self._own]
        self._set(optimizer, self._used)

    def end(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        # With automatic optimization the training step runs inside the optimizer's.
        for group, used in zip(optimizer.param_groups, self._used, strict=True):
            if group["lr"] is not used:
                raise CannotScale("it sets the learning rate in the middle of an optimizer's step")
        self._set(optimizer, self._own)

    @staticmethod
    def _set(optimizer: Optimizer, rates: list[Any]) -> None:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
