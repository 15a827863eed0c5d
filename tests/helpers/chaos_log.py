"""What workers under attack did and when, in a file that outlasts them.

Each line is written by one call, so a worker that is killed leaves a whole line or none. Times are
those of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

CLAIMED, RAISED, FINISHED, ACKNOWLEDGED = "claimed", "raised", "finished", "acknowledged"


class Event(NamedTuple):
    """One line.

    Attributes:
        what: CLAIMED when an evaluation begins, RAISED when it ends with an exception, FINISHED the
            moment before its result is handed over, ACKNOWLEDGED when that call has returned.
        when: The time; of a claim the time at which the claim that succeeded began.
        worker: Number of the process.
        evaluation: Number of its evaluation.
        place: What it is of.
        facts: FINISHED has the outcome, ACKNOWLEDGED whether its place has a stored result.
    """

    what: str
    when: float
    worker: int
    evaluation: int
    place: str
    facts: dict[str, Any]


class LogWriter:
    """Adds lines for one worker."""

    def __init__(self, path: Path, worker: int) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._worker = worker

    def write(
        self, what: str, evaluation: int, place: str, when: float | None = None, **facts: Any
    ) -> None:
        when = time.monotonic() if when is None else when
        line = json.dumps([what, when, self._worker, evaluation, place, facts]) + "\n"
        os.write(self._file, line.encode())


class LogReader:
    """Reads what is new."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self.events: list[Event] = []

    def read(self) -> list[Event]:
        """All events so far."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._position)
                lines = file.read()
            lines = lines[: lines.rfind(b"\n") + 1]
            self._position += len(lines)
            self.events += [Event(*json.loads(line)) for line in lines.splitlines()]
        return self.events
