"""What belongs to a machine and not to a recipe: data folder, device, precision, CPU threads."""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from optuna_taylorglo.errors import RecipeError, UsageError
from optuna_taylorglo.recipes.settings import TrainerSettings
from optuna_taylorglo.validation import show

if TYPE_CHECKING:  # imported late, since it takes seconds: wrong usage is answered before
    import torch

logger = logging.getLogger(__name__)

PrecisionName = Literal["auto", "32-true", "bf16-mixed", "16-mixed"]


@dataclass(frozen=True)
class RuntimeConfig:
    """Where trainings run; can be sent to another process."""

    data_dir: Path = Path("data")
    device: str = "auto"  # or "cpu", "cuda", "mps", or one device such as "cuda:1"
    precision: PrecisionName = "auto"
    allowed_packages: tuple[str, ...] = ()  # whose classes a recipe may name, besides bundled ones
    threads: int = 1  # of the CPU

    @cached_property
    def torch_device(self) -> torch.device:
        """The device that trains."""
        import torch

        available = ["cpu"]
        if torch.backends.mps.is_available():
            available.insert(0, "mps")
        if torch.cuda.is_available():
            available.insert(0, "cuda")
        if self.device == "auto":
            return torch.device(available[0])
        if self.device.partition(":")[0] not in available:
            names = ", ".join(["auto", *available])
            raise UsageError(f"device {self.device!r} is not on this machine; it has {names}.")
        return torch.device(self.device)

    @cached_property
    def resolved_precision(self) -> str:
        """The Trainer's; "auto" takes bfloat16 where the processor computes in it."""
        import torch

        if self.precision != "auto":
            if problem := self._problem_of(self.precision):
                raise UsageError(f"precision {self.precision} {problem}")
            return self.precision
        device, has_bfloat16 = self.torch_device, False
        if device.type == "cuda":
            has_bfloat16 = torch.cuda.get_device_capability(device) >= (8, 0)
        elif device.type == "cpu":
            # Public only in recent releases of PyTorch; older ones train in float32.
            capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
            has_bfloat16 = bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
        precision, reason = "32-true", f"this {device.type} has no bfloat16 arithmetic"
        if has_bfloat16:
            precision = "bf16-mixed"
            reason = f"this {device.type} computes in bfloat16; ask for 32-true to have float32"
        logger.info("precision %s: %s", precision, reason)
        return precision

    def precision_of(self, trainer: TrainerSettings) -> str:
        """The Trainer's: what the recipe asks for, else that of this machine."""
        if trainer.precision is None:
            return self.resolved_precision
        if problem := self._problem_of(trainer.precision):
            raise RecipeError("trainer.precision", f"{show(trainer.precision)} {problem}")
        return trainer.precision

    def _problem_of(self, precision: str) -> str:
        """Why this device does not train in a precision; empty if it does."""
        if precision != "16-mixed" or self.torch_device.type != "cpu":
            return ""
        # Lightning would take bfloat16 in its place.
        return "is not allowed on a CPU, must be bf16-mixed or 32-true"

    def prepare(self) -> None:
        """Set this process up for training, and check that the device exists."""
        import torch

        # Allowed modules may be in the working directory, for scripts as for `python -m`.
        if self.allowed_packages and not {"", os.getcwd()} & set(sys.path):
            sys.path.insert(0, os.getcwd())
        torch.set_num_threads(self.threads)
        _ = self.torch_device

    def flags(self) -> list[str]:
        """The options that are not at their default, as a command line has them."""
        flags = []
        for name in ("data_dir", "device", "precision", "threads"):
            if getattr(self, name) != getattr(RuntimeConfig, name):
                flags += [f"--{name.replace('_', '-')}", str(getattr(self, name))]
        for name in self.allowed_packages:
            flags += ["--allow", name]
        return flags
