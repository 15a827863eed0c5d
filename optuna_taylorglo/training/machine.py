"""What belongs to the machine and not to the recipe: device, precision, threads, memory."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from optuna_taylorglo.errors import UsageError
from optuna_taylorglo.training.precision import Precision, PrecisionName, resolve_precision

# Names and numbers of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST = 2**31 - 1


@dataclass(frozen=True)
class Machine:
    """Where trainings run.

    Attributes:
        data_dir: Where data sets lie.
        device: "auto", "cpu", "cuda", "mps" or one device such as "cuda:1".
        precision: "auto", or a precision of `training.precision`.
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
        if self.device == "auto":
            return torch.device(next(name for name in present if present[name]))
        try:
            device = torch.device(self.device)
        except RuntimeError:
            device = None
        if device is None or not present.get(device.type):
            available = ", ".join(["auto", *(name for name in present if present[name])])
            raise UsageError(f"device {self.device!r} is not on this machine; it has {available}.")
        return device

    def prepare(self, *, threads: int) -> None:
        """Set this process up: one device that exists, so many CPU threads, memory that stays."""
        torch.set_num_threads(threads)
        if self.torch_device.type == "cpu":
            keep_freed_memory()

    @cached_property
    def resolved_precision(self) -> Precision:
        """Precision and memory format on that device."""
        return resolve_precision(self.precision, self.torch_device)


def keep_freed_memory() -> bool:
    """Ask the C library not to give large blocks back to the system when they are freed.

    By default every large tensor is mapped afresh, and the system clears it page by page: a
    seventh of the time of a training step of the Basic CNN on a CPU.

    Returns:
        Whether this C library knows how; others have no such setting, and nothing is lost.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = ((_M_MMAP_THRESHOLD, 2**30), (_M_TRIM_THRESHOLD, _LARGEST))
    return all(mallopt(name, value) == 1 for name, value in settings)
