"""The lock of a journal file, which no process keeps beyond its death."""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from dataclasses import asdict
from pathlib import Path

from optuna.storages.journal import JournalFileSymlinkLock

from optuna_taylorglo.processes import Process, this_process

# Seconds between two tries, at first and at most: a record is written in some milliseconds.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.05

_Link = tuple[int, int]
"""By which one link can be told from the next: its inode, and when it was made."""


class JournalLock(JournalFileSymlinkLock):
    """Optuna's lock, taken back at once from a process of this machine that died with it.

    It is the same symbolic link, so that processes of Optuna's own, such as the dashboard, and ours
    keep each other out. Those wait half a minute for a holder that is dead. A holder of ours signs
    a note beside the link, by which others see that it died. Of one that is suspended, or on
    another machine, they lose patience after half a minute too. If it comes back after that, it
    leaves the lock to whoever has it then.

    Args:
        filepath: The journal file.
    """

    def __init__(self, filepath: str) -> None:
        super().__init__(filepath)
        self._note = Path(f"{self._lock_file}-note")
        self._mine: _Link | None = None

    def acquire(self) -> bool:
        pause, waited_for, since = _FIRST_PAUSE, None, time.monotonic()
        while not self._make():
            link = _identity(self._lock_file)
            if link is None or link != waited_for:
                waited_for, since = link, time.monotonic()
            assert self.grace_period is not None
            too_long = time.monotonic() - since > self.grace_period
            if link is not None and (too_long or self._died_with(link)):
                self._take_away(link)
                continue
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        return True

    def release(self) -> None:
        mine, self._mine = self._mine, None
        if mine is not None and _identity(self._lock_file) == mine:
            # In this order: the next link may look like this one, and the note would speak of it.
            self._note.unlink(missing_ok=True)
            self._take_away(mine)

    def _make(self) -> bool:
        """Make the link, and sign it; False if there is one."""
        # Known beforehand, because of who dies before it has signed nobody knows that it did.
        signature = json.dumps(asdict(this_process()))
        try:
            os.symlink(self._lock_target_file, self._lock_file)
        except FileExistsError:
            return False
        self._mine = _identity(self._lock_file)
        # What cannot be signed is a lock like Optuna's.
        with contextlib.suppress(OSError):
            self._note.write_text(f"[{json.dumps(self._mine)}, {signature}]")
        return True

    def _died_with(self, link: _Link) -> bool:
        """Whether the link was made by a process that is dead."""
        # A note that is not there, or only half, says nothing.
        with contextlib.suppress(OSError, ValueError, TypeError):
            signed, by = json.loads(self._note.read_text())
            return bool(signed == list(link) and Process(**by).has_died)
        return False

    def _take_away(self, link: _Link) -> None:
        """Remove the link, if it is still this one."""
        aside = f"{self._lock_file}-{uuid.uuid4()}"
        with contextlib.suppress(FileNotFoundError):
            os.rename(self._lock_file, aside)
            if _identity(aside) != link:
                # Another was quicker, and this is the link of the next one. If it cannot be put
                # back, two write at once, each record in one piece.
                with contextlib.suppress(OSError, NotImplementedError):
                    os.link(aside, self._lock_file, follow_symlinks=False)
            os.unlink(aside)


def _identity(link: str) -> _Link | None:
    try:
        status = os.lstat(link)
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns
