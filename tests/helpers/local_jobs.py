"""What processes of tests do; in a module, so that it can be sent to them."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from optuna_taylorglo.process import stop_on_signals


def say(*words: str) -> int:
    print(*words, flush=True)
    return 0


def say_environment(*names: str) -> int:
    return say(*(str(os.environ.get(name)) for name in names))


def until_told() -> int:
    """Wait for a signal, or for the end of the command."""
    stop = stop_on_signals()
    print("ready", os.getpid(), flush=True)
    stop.wait(60)
    print("asked", flush=True)
    return 5


def stubborn() -> int:
    """Do not end when told to."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("ready", flush=True)
    time.sleep(60)
    return 0


def until_file(path: str) -> int:
    while not Path(path).exists():
        time.sleep(0.02)
    return say("done")


def until_file_unless_broken(path: str) -> int:
    return 1 if os.environ.get("BROKEN") == "yes" else until_file(path)


def die(counter: str, lives: int, how: str) -> int:
    """Die so many times, then end well."""
    path = Path(counter)
    begun = path.read_text().count("x") if path.exists() else 0
    path.write_text("x" * (begun + 1))
    print("begun", flush=True)
    if begun >= lives:
        return 0
    if how.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, how))
        time.sleep(10)
    return int(how)


def n_threads() -> int:
    """Whether copies are safe: one thread, and CUDA untouched."""
    import torch

    threads = len(os.listdir("/proc/self/task"))
    return say(
        str("pytorch_lightning" in sys.modules), str(threads), str(torch.cuda.is_initialized())
    )
