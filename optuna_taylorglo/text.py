"""Text that leaves the package: files written whole, and nothing that acts on a terminal or path.

Names and messages out of a database, a file or an exception are written by others, and control
characters are commands on a terminal.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO
from urllib.parse import quote

# All but line feed and tabulator; then what changes the direction of reading, and halves of
# characters, which no terminal can be given.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_LONGEST_NAME = 200  # characters of a file's name; most systems allow 255 bytes


def visible(text: str) -> str:
    r"""The text with its control characters spelled out, such as ``\x1b``."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class VisibleFormatter(logging.Formatter):
    """Formats log records, including tracebacks, so that nothing in them acts on a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def as_file_name(name: str) -> str:
    """A name as one part of a path, inside the folder it is put in; no two names become the same.

    Letters, digits, ``_``, ``-``, ``~`` and, except in the first place, dots stay as they are.
    """
    quoted = quote(name, safe="", errors="surrogatepass")
    if quoted.startswith("."):
        quoted = "%2E" + quoted[1:]
    if len(quoted) > _LONGEST_NAME:
        digest = hashlib.sha256(quoted.encode()).hexdigest()
        quoted = f"{quoted[: _LONGEST_NAME - 70]}%-{digest}"
    return quoted or "%"


def write_atomically(path: Path, content: str | Callable[[IO[bytes]], object]) -> None:
    """Write a file so that no reader, and no crash, ever sees half of it.

    Args:
        path: File to write, with its folders; replaced if it exists.
        content: Its text, or a function that writes it into an open file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        dir=path.parent, prefix=f".{path.name}-", delete=False
    ) as file:
        try:
            if isinstance(content, str):
                file.write(content.encode())
            else:
                content(file)
            file.flush()
            os.fsync(file.fileno())
            os.chmod(file.name, 0o644)
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise
