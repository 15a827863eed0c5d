"""Optuna's journal file, which is mended when a record was cut off."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from optuna.logging import get_logger
from optuna.storages.journal import JournalFileBackend

from optuna_taylorglo.storage.journal_lock import JournalLock
from optuna_taylorglo.storage.retry import noting_standstill

_logger = get_logger(__name__)

# Every record begins like this, and within a string the quotes would be escaped.
_RECORD = b'{"op_code":'


class MendingJournalFile(JournalFileBackend):
    """Optuna's journal file, which a record that was cut off does not make unreadable.

    A process that is killed, or meets a full disk, in the middle of a write leaves a piece of a
    record; whoever writes next would write on in the same line, and nobody could read on from
    there. Such pieces are taken out, under the journal's own lock, and whole records never are.

    Args:
        path: The file, by a path that holds in any directory: Optuna's lock is a symbolic link
            to it.
        grace: Seconds without a sign of life after which a trial is given up.
    """

    def __init__(self, path: Path, *, grace: float) -> None:
        self._grace = grace
        self._journal_lock = JournalLock(str(path))
        super().__init__(str(path), self._journal_lock)

    def read_logs(self, log_number_from: int) -> Generator[dict[str, Any], None, None]:
        number = log_number_from
        try:
            for record in super().read_logs(number):
                number += 1
                yield record
        except ValueError:
            with self._locked():
                self._mend()
            yield from super().read_logs(number)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        if not self._ends_well():
            with self._locked():
                self._mend()
        # A holder of the lock that is suspended keeps everybody from writing for half a minute.
        noting_standstill(lambda: super(MendingJournalFile, self).append_logs(logs), self._grace)

    def _ends_well(self) -> bool:
        with open(self._file_path, "rb") as file:
            if file.seek(0, os.SEEK_END) == 0:
                return True
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self._journal_lock.acquire()
        try:
            yield
        finally:
            self._journal_lock.release()

    def _mend(self) -> None:
        with open(self._file_path, "r+b") as file:
            lines = file.read().splitlines(keepends=True)
            end = 0
            for i, line in enumerate(lines):
                start, end = end, end + len(line)
                if line.endswith(b"\n") and _is_record(line):
                    continue
                is_last = i == len(lines) - 1
                piece = _length_of_piece(line)
                if is_last and not line.endswith(b"\n"):
                    # Only the end of the line is missing of a record that is whole without it.
                    file.seek(end)
                    file.write(b"\n" if piece < len(line) else b"")
                # Everything else keeps its place, since others may be reading: spaces before a
                # record mean nothing, and a line that has none becomes part of the next one.
                file.seek(start)
                if piece < len(line) or not is_last:
                    file.write(b" " * piece)
                else:
                    file.truncate()
                if piece:
                    _logger.warning(
                        f"{self._file_path}: {piece} bytes of a record that was cut off, at "
                        f"{start}, were taken out. All whole records are there."
                    )
            file.flush()
            os.fsync(file.fileno())


def _is_record(text: bytes) -> bool:
    try:
        content = json.loads(text)
    except ValueError:
        return False
    return isinstance(content, dict) and "op_code" in content


def _length_of_piece(line: bytes) -> int:
    """Bytes of a line before the whole record at its end; all of them if there is none."""
    start = line.rfind(_RECORD)
    return start if start >= 0 and _is_record(line[start:]) else len(line)
