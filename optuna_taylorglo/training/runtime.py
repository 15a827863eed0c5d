"""What belongs to a machine and not to a recipe: data folder, device, precision, CPU threads."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from optuna_taylorglo.errors import UsageError

logger = logging.getLogger(__name__)

PrecisionName = Literal["auto", "32-true", "bf16-mixed", "16-mixed"]


def has_bfloat16(device: torch.device) -> bool:
    """Whether a device computes in bfloat16 natively, not by emulation."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    if device.type == "cpu":
        # Public only in recent releases of PyTorch; older ones train in float32.
        capabilities: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
        return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
    return False


def resolve_precision(requested: PrecisionName, device: torch.device | str) -> str:
    """The ``precision`` of a Trainer for a device; the choice is logged.

    It depends on what the processor can do, never on a timing, so equal machines choose alike.

    Args:
        requested: "auto" takes bfloat16 autocast where the processor computes in bfloat16, else
            float32; any other name is taken as it is.
        device: Where training will run.

    Raises:
        UsageError: If ``requested`` is not a known name.
    """
    if requested not in get_args(PrecisionName):
        raise UsageError(f"precision must be one of {get_args(PrecisionName)}, got {requested!r}")
    device = torch.device(device)
    if requested != "auto":
        precision, reason = requested, "as requested"
    elif has_bfloat16(device):
        precision = "bf16-mixed"
        reason = f"this {device.type} computes in bfloat16; ask for 32-true to have float32"
    else:
        precision, reason = "32-true", f"this {device.type} has no bfloat16 arithmetic"
    logger.info("precision %s: %s", precision, reason)
    return precision


@dataclass(frozen=True)
class RuntimeConfig:
    """Where trainings run.

    Attributes:
        data_dir: Folder of the data sets.
        device: "auto", "cpu", "cuda", "mps" or one device such as "cuda:1".
        precision: "auto", or a precision of the Trainer.
        allowed_packages: Packages, besides the bundled ones, whose classes a recipe may name.
    """

    data_dir: Path = Path("data")
    device: str = "auto"
    precision: PrecisionName = "auto"
    allowed_packages: tuple[str, ...] = ()

    @cached_property
    def torch_device(self) -> torch.device:
        """The device that trains.

        Raises:
            UsageError: If this machine has no such device.
        """
        present = {
            "cuda": torch.cuda.is_available(),
            "mps": torch.backends.mps.is_available(),
            "cpu": True,
        }
        available = [name for name in present if present[name]]
        if self.device == "auto":
            return torch.device(available[0])
        try:
            device = torch.device(self.device)
        except RuntimeError:
            device = None
        if device is None or device.type not in available:
            names = ", ".join(["auto", *available])
            raise UsageError(f"device {self.device!r} is not on this machine; it has {names}.")
        return device

    @cached_property
    def resolved_precision(self) -> str:
        """The Trainer's precision on that device."""
        return resolve_precision(self.precision, self.torch_device)

    def prepare(self, *, threads: int) -> None:
        """Set this process up for so many CPU threads, and check that the device exists."""
        torch.set_num_threads(threads)
        _ = self.torch_device
