"""Writing files so that no reader, and no crash, ever sees half of one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO


def write_atomically(path: Path, content: str | Callable[[IO[bytes]], object]) -> None:
    """Write a file beside its place and move it there when it is whole and on disk.

    Folders on the way to it are made.

    Args:
        path: File to write; replaced if it exists.
        content: Its text, or what writes it into an open file.
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
