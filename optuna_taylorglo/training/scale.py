"""Whether a factor on the loss, or on the learning rate, changes the steps of an optimizer.

With Adam and its kin a factor on the loss does nothing. It is found out by taking a step at two
scales, not by the optimizer's name.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

# Steps that do not move the weights, as the first ones of a warm-up may be, are passed over.
MOST_STEPS = 20

SCALES = (0.25, 4.0)


class _Enough(BaseException):
    """A training has shown what was asked of it; no handler of exceptions must stop this."""


def acts(first_step: Callable[[float], object]) -> bool | None:
    """Whether a factor, out of `SCALES`, with which a training is called changes its first step.

    Returns:
        True if the step grows with the factor (linearly, for plain SGD), False if it stays as it
        is, None if no optimizer of PyTorch moved any weight.
    """
    if (small := _step_length(first_step, SCALES[0])) is None:
        return None
    if (large := _step_length(first_step, SCALES[1])) is None:
        return None
    # Halfway, as weight decay and clipping blur the two cases.
    return large / small > math.sqrt(SCALES[1] / SCALES[0])


def _step_length(first_step: Callable[[float], object], factor: float) -> float | None:
    """How far the first step of a training that moves any weight moves them; ends the training."""
    before: dict[int, list[Tensor]] = {}
    lengths: list[float] = []

    def keep(optimizer: Optimizer, *_: object) -> None:
        before[id(optimizer)] = [p.detach().clone() for p in _parameters(optimizer)]

    def measure(optimizer: Optimizer, *_: object) -> None:
        moved = zip(_parameters(optimizer), before.pop(id(optimizer), []), strict=False)
        length = math.hypot(*(float(torch.linalg.vector_norm(p - old)) for p, old in moved))
        lengths.append(length)
        if length > 0 or len(lengths) >= MOST_STEPS:
            raise _Enough

    hooks = (register_optimizer_step_pre_hook(keep), register_optimizer_step_post_hook(measure))
    try:
        first_step(factor)
    except _Enough:
        pass
    finally:
        for hook in hooks:
            hook.remove()
    return lengths[-1] if lengths and 0 < lengths[-1] < math.inf else None


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [p.detach() for group in optimizer.param_groups for p in group["params"]]
