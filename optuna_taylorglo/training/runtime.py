"""What belongs to the machine and not to the recipe: device, precision, threads, memory."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import logging
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

import torch

from optuna_taylorglo.errors import UsageError

# Seconds that a few small products may take; a tenth of one does.
_LIMIT = 60.0


def has_bfloat16(device: torch.device) -> bool:
    """Whether a device says that it computes in bfloat16, rather than by way of float32."""
    if device.type == "cuda":
        # Emulated bfloat16, before Ampere, is slower than float32.
        return torch.cuda.get_device_capability(device) >= (8, 0)
    if device.type == "cpu":
        # Public only in recent releases of PyTorch; older ones train in float32.
        capabilities: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
        return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
    return False


@functools.cache
def crashes_in_bfloat16(device: torch.device) -> bool:
    """Whether a device that says it computes in bfloat16 ends the process that makes it do so.

    Some virtual machines announce instructions that PyTorch cannot use there, and nothing but an
    attempt tells: the first product of two matrices ends with SIGILL. So a copy of this process
    makes it. False for devices other than CPUs, and where processes cannot be copied.
    """
    if device.type != "cpu" or not hasattr(os, "fork"):
        return False
    child = os.fork()
    if child == 0:
        _try_and_exit()
    deadline = time.monotonic() + _LIMIT
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status) != 0
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def _try_and_exit() -> NoReturn:
    """Train a small network for one step, in a process of which nothing else may go on."""
    status = 1
    with contextlib.suppress(BaseException):
        faulthandler.disable()
        _leave_no_core()
        # The threads of the process that was copied are not there.
        torch.set_num_threads(1)
        net = torch.nn.Sequential(
            torch.nn.Conv2d(1, 32, 3), torch.nn.Flatten(), torch.nn.Linear(32 * 36, 64)
        )
        with torch.autocast("cpu", torch.bfloat16):
            net(torch.ones(16, 1, 8, 8)).sum().backward()
        status = 0
    os._exit(status)


def _leave_no_core() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


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


# Names and numbers of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST = 2**31 - 1


@dataclass(frozen=True)
class RuntimeConfig:
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
