"""Whether a device computes in bfloat16, and lives to tell."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import os
import signal
import time
from collections.abc import Mapping
from typing import Any, NoReturn

import torch

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
