"""Processes that end with the command that started them, however it ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from multiprocessing import connection

LONGEST_END = 60.0
"""Seconds that a process has to put its things in order when its command is gone."""


def end_with_parent() -> None:
    """Have this process sent SIGTERM when the one that started it is gone, if one of ours did."""
    if multiprocessing.parent_process() is not None:
        threading.Thread(target=_watch, daemon=True, name="lifeline").start()


def _watch() -> None:
    parent, forker = multiprocessing.parent_process(), os.getppid()
    assert parent is not None
    # Without the fork server nobody hears how this process ends; another will take its place.
    while not connection.wait([parent.sentinel], timeout=1.0) and os.getppid() == forker:
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(LONGEST_END)
    os._exit(1)
