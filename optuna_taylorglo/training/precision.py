"""Numeric precision and memory layout for a device."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from optuna_taylorglo.errors import UsageError
from optuna_taylorglo.training.bfloat16 import crashes_in_bfloat16, has_bfloat16

logger = logging.getLogger(__name__)

PrecisionName = Literal["auto", "32-true", "bf16-mixed", "16-mixed"]


@dataclass(frozen=True)
class Precision:
    """What to train with.

    Attributes:
        trainer: The ``precision`` of ``pytorch_lightning.Trainer``.
        channels_last: The ``channels_last`` of `Classifier`.
    """

    trainer: Literal["32-true", "bf16-mixed", "16-mixed"]
    channels_last: bool


def resolve_precision(requested: PrecisionName, device: torch.device | str) -> Precision:
    """Choose the precision for a device and log the choice.

    The choice depends on what the processor can do, never on a timing, so that equal machines
    choose alike.

    Args:
        requested: "auto" takes bfloat16 autocast where the processor computes in bfloat16 and
            survives an attempt, else float32; any other name is taken as it is. The memory format
            is channels_last on CPU and CUDA either way: on CPU it made float32 steps up to 25 %
            shorter.
        device: Where training will run.

    Raises:
        UsageError: If ``requested`` is not a known name, or would end this process.
    """
    if requested not in get_args(PrecisionName):
        raise UsageError(f"precision must be one of {get_args(PrecisionName)}, got {requested!r}")
    device = torch.device(device)
    channels_last = device.type in ("cpu", "cuda")
    if requested == "bf16-mixed" and has_bfloat16(device) and crashes_in_bfloat16(device):
        raise UsageError(
            "precision 'bf16-mixed' ends the process on this processor, which announces "
            "instructions for bfloat16 that PyTorch cannot use here: take 32-true or auto."
        )
    if requested != "auto":
        precision = Precision(requested, channels_last)
        reason = "as requested"
    elif not has_bfloat16(device):
        precision = Precision("32-true", channels_last)
        reason = f"this {device.type} has no bfloat16 arithmetic"
    elif crashes_in_bfloat16(device):
        precision = Precision("32-true", channels_last)
        reason = f"this {device.type} announces bfloat16, and ends the process that computes in it"
    else:
        precision = Precision("bf16-mixed", channels_last)
        reason = f"this {device.type} computes in bfloat16; ask for 32-true to have float32"
    layout = "channels_last" if channels_last else "contiguous"
    logger.info("precision %s, %s memory: %s", precision.trainer, layout, reason)
    return precision
