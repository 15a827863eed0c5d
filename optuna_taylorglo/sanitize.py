"""Text that others have written: names and messages out of a database, a file or an exception.

On a terminal control characters are commands. Nobody who can write a study's name should be able to
use them on whoever looks at it.
"""

from __future__ import annotations

import hashlib
import logging
import re
from urllib.parse import quote

# All but line feed and tabulator; then what changes the direction of reading, and halves of
# characters, which no terminal can be given.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)

_LONGEST_NAME = 200
"""Characters of a file's name; most systems allow 255 bytes."""


def visible(text: str) -> str:
    r"""The text with its control characters spelt out, such as ``\x1b``."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class VisibleFormatter(logging.Formatter):
    """Formats log records so that nothing in them acts on a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """The record's line, and its traceback."""
        return visible(super().format(record))


def as_file_name(name: str) -> str:
    """A name as one part of a path, inside the folder it is put in; no two names become the same.

    Letters, digits, ``_``, ``-``, ``~`` and, but for the first place, dots stay as they are.
    """
    quoted = quote(name, safe="", errors="surrogatepass")
    if quoted.startswith("."):
        quoted = "%2E" + quoted[1:]
    if len(quoted) > _LONGEST_NAME:
        digest = hashlib.sha256(quoted.encode()).hexdigest()
        quoted = f"{quoted[: _LONGEST_NAME - 70]}%-{digest}"
    return quoted or "%"
