"""Optuna's journal file as a storage for many workers."""

from __future__ import annotations

from pathlib import Path

from optuna.storages import JournalStorage

from optuna_taylorglo.errors import StorageURLError
from optuna_taylorglo.storage.counted_beats import CountedBeats
from optuna_taylorglo.storage.journal_file import MendingJournalFile
from optuna_taylorglo.storage.urls import DEFAULT_STORAGE


class WatchedJournalStorage(CountedBeats, JournalStorage):
    """A JournalStorage that knows when a running trial has gone silent.

    Args:
        path: The journal file.
        heartbeat: Seconds between two signs of life of a running trial.
        grace: Seconds without one after which a trial is given up.
    """

    def __init__(self, path: str, *, heartbeat: int, grace: int) -> None:
        super().__init__(MendingJournalFile(_checked(path).resolve(), grace=grace))
        self.set_intervals(heartbeat=heartbeat, grace=grace)


def _checked(path: str) -> Path:
    """The path, if a journal can lie there."""
    file = Path(path)
    if not path or file.is_dir() or not file.parent.is_dir():
        raise StorageURLError(
            f"Storage {path!r} is neither a URL such as {DEFAULT_STORAGE} nor a file in an "
            "existing directory (a plain path is an Optuna journal file)."
        )
    if file.is_file() and file.open("rb").read(16) == b"SQLite format 3\0":
        raise StorageURLError(f"{path} is an SQLite database: write sqlite:///{path}.")
    return file
