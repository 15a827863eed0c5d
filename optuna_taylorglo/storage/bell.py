"""A bell that all processes on one machine hear, without asking a database."""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import os
import re
import tempfile
import time
from pathlib import Path

from filelock import FileLock, Timeout

# Nanoseconds within which nobody need have heard a ring yet.
_MOMENT = 1_000_000_000


class Bell:
    """A file whose time is that of the last ring; to look at it costs microseconds.

    Of those who hear it, one keeps watch for all: it listens to a server, say, and rings. Where no
    file can be made, the bell is never heard and everybody keeps watch.

    Args:
        name: What it is for; processes of one user share the bell of a name.
    """

    def __init__(self, name: str) -> None:
        self._file = _file_of(name)
        self._watch = None
        if self._file is not None:
            self._watch = FileLock(self._file.with_suffix(".watch"), thread_local=False)

    def ring(self, tickets: int | None = None) -> None:
        """Let all others know.

        Args:
            tickets: How many of them have something to do then, as `take_ticket` tells; None for
                all. Those of a ring a moment ago that nobody has taken stay.
        """
        if self._file is None:
            return
        with contextlib.suppress(OSError, Timeout), self._alone():
            now = time.time_ns()
            if tickets is None:
                self._write("", now)
                return
            if now - self.last_ring < _MOMENT:
                tickets += self._tickets()[0]
            self._write(f"{tickets}/{tickets}", now)

    @property
    def tickets(self) -> int | None:
        """How many there were after the last ring; None if nobody needs one."""
        with contextlib.suppress(OSError):
            if self._file is not None:
                return self._tickets()[1] or None
        return None

    def take_ticket(self) -> bool:
        """Find out whether the last ring is for this process too; to be asked once a ring."""
        if self._file is None:
            return True
        try:
            with self._alone():
                left, all_ = self._tickets()
                if left > 0:
                    self._write(f"{left - 1}/{all_}", self.last_ring)
                return left > 0 or all_ == 0
        except (OSError, Timeout):
            return True

    def _tickets(self) -> tuple[int, int]:
        """How many tickets are left, and how many there were; none for a ring to all."""
        assert self._file is not None
        found = re.fullmatch(r"(\d+)/(\d+)", self._file.read_text(encoding="utf-8"))
        return (int(found[1]), int(found[2])) if found else (0, 0)

    def _alone(self) -> FileLock:
        assert self._file is not None
        return FileLock(self._file.with_suffix(".lock"), timeout=1.0, poll_interval=0.005)

    def _write(self, content: str, ring: int) -> None:
        assert self._file is not None
        new = self._file.with_suffix(".new")
        new.write_text(content, encoding="utf-8")
        # A file system's own idea of now is a few milliseconds wide.
        os.utime(new, ns=(ring, ring))
        new.replace(self._file)

    @property
    def last_ring(self) -> int:
        """What is different after every ring."""
        with contextlib.suppress(OSError):
            if self._file is not None:
                return self._file.stat().st_mtime_ns
        return 0

    def keep_watch(self) -> bool:
        """Become the one who keeps watch, until `end_watch` or death; False if another does."""
        if self._watch is None or self._watch.is_locked:
            return True
        try:
            self._watch.acquire(blocking=False)
        except Timeout:
            return False
        except OSError:
            return True
        return True

    def end_watch(self) -> None:
        """Leave the watch to others."""
        if self._watch is not None:
            with contextlib.suppress(OSError):
                self._watch.release()


def _file_of(name: str) -> Path | None:
    """A place that only this user can write to; None if there is none."""
    # By number: in containers many users have no name.
    user = os.getuid() if hasattr(os, "getuid") else getpass.getuser()
    directory = Path(tempfile.gettempdir()) / f"taylorglo-{user}"
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        status = directory.lstat()
    except OSError:
        return None
    # Somebody else may have made it first, where all can write.
    if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o022):
        return None
    return directory / hashlib.sha256(name.encode()).hexdigest()[:32]
