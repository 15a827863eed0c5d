"""Children that end with their parent, however it ends.

A parent that is killed can tell nobody. So it holds one end of a pipe for as long as it lives, and
its children hold the other: when the parent is gone, the system closes its end, and they read an
end of file. It does not matter which thread started a child, nor when.
"""

from __future__ import annotations

import functools
import os
import signal
import stat
import threading
import time

VARIABLE = "TAYLORGLO_LIFELINE"
"""Environment variable that tells a child its end of the pipe."""

LONGEST_END = 60.0
"""Seconds that a child has to put its things in order when its parent is gone."""


def descriptors() -> tuple[int, ...]:
    """What a child has to inherit, as ``pass_fds`` of `subprocess.Popen`."""
    return (_childrens_end(),) if os.name == "posix" else ()


def environment() -> dict[str, str]:
    """What a child has to be told."""
    return {VARIABLE: str(_childrens_end())} if os.name == "posix" else {}


@functools.cache
def _childrens_end() -> int:
    childrens, parents = os.pipe()
    held = [parents]

    def let_go() -> None:
        if held:  # else this is the copy of a copy
            os.close(held.pop())

    # A copy of this process that runs no program of its own, such as one that loads data, would
    # hold the parent's end as well, and outlive it.
    os.register_at_fork(after_in_child=let_go)
    return childrens


def end_with_parent() -> None:
    """Have this process sent SIGTERM when its parent is gone; does nothing for one without."""
    text = os.environ.pop(VARIABLE, None)
    if text is None or not _is_pipe(int(text)):
        return
    watch = threading.Thread(target=_watch, args=(int(text),), daemon=True, name="lifeline")
    watch.start()


def _is_pipe(descriptor: int) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(descriptor).st_mode)
    except OSError:
        return False


def _watch(descriptor: int) -> None:
    os.read(descriptor, 1)  # nobody ever writes
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(LONGEST_END)
    os._exit(1)
