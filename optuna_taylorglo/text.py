"""Text that leaves the package: files written whole, and nothing that acts on a terminal or path.

Names and messages out of a database, a file or an exception are written by others, and control
characters are commands on a terminal.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from urllib.parse import quote

# All but line feed and tabulator; then what changes the direction of reading, and halves of
# characters, which no terminal can be given.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def visible(text: str) -> str:
    r"""The text with its control characters spelled out, such as ``\x1b``."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class VisibleFormatter(logging.Formatter):
    """Formats log records, including tracebacks, so that nothing in them acts on a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def counted(n: int, things: str) -> str:
    """A number with its noun, which is given in the plural: ``1 worker``, ``2 workers``."""
    return f"{n} {things.removesuffix('s') if n == 1 else things}"


def as_file_name(name: str) -> str:
    """A name as one part of a path, inside the folder it is put in; very long ones are cut."""
    quoted = quote(name, safe="", errors="surrogatepass")[:200]
    return re.sub(r"^\.", "%2E", quoted) or "%"


def write_atomically(path: Path, text: str) -> None:
    """Write a file, with its folders, so that no reader and no crash ever sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """Raise `OSError` if `write_atomically` could not write this file in a folder that is there."""
    temporary = _temporary(path)
    temporary.touch()
    temporary.unlink()


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}-{os.getpid()}")
