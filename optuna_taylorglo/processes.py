"""Which process it was, and whether it is still there, seen by others on the same machine."""

from __future__ import annotations

import contextlib
import functools
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    """One process.

    A number alone says little: it is used again. Where the system tells when a process was started,
    a number that is free, or has gone to a process that was started at another time, means that it
    is dead.

    Attributes:
        pid: Its number.
        place: Where its number means this process: the machine since its last start, and the
            container; empty where the system does not tell.
        started: When it was started, in the system's own terms.
    """

    pid: int
    place: str
    started: str

    @property
    def has_died(self) -> bool:
        """Whether the process is known to be dead; never so if it is of another machine."""
        if not self.place or self.place != _place():
            return False
        try:
            # Unlike a look into /proc, which may be hidden, this tells of everybody's processes.
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        return start_of(self.pid) not in (self.started, "")


def this_process() -> Process:
    """This process."""
    return _known(os.getpid())


@functools.lru_cache(maxsize=1)
def _known(pid: int) -> Process:
    # By its number, because a copy of this process is another one.
    return Process(pid, _place(), start_of(pid))


def start_of(pid: int) -> str:
    """When a process was started; "dead" for one that is not yet buried, empty if unknown."""
    with contextlib.suppress(OSError):
        # The name of the program, in brackets, may hold anything.
        after_name = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2]
        state, *others = after_name.split()
        return "dead" if state in "ZX" else others[18]
    return ""


@functools.cache
def _place() -> str:
    """The machine since its last start, and the container; empty where the system does not tell."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    return ""
