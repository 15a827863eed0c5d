"""A real browser for tests: headless Chromium looks at a page and tells what it found."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--enable-logging=stderr",
    "--v=0",
    "--virtual-time-budget=20000",
)
_CONSOLE = re.compile(r":(?:INFO|WARNING|ERROR):CONSOLE[:(]\d+\)?\] (.*)")


@dataclass(frozen=True)
class Visit:
    """What the browser saw.

    Attributes:
        dom: The page after its scripts have run.
        console: Messages on its console, errors among them.
    """

    dom: str
    console: list[str]

    def count(self, css_class: str) -> int:
        """Number of elements with a class."""
        return len(re.findall(rf'class="(?:[^"]*\s)?{re.escape(css_class)}(?:\s[^"]*)?"', self.dom))


def visit(url: str, *, size: tuple[int, int] = (1200, 900)) -> Visit:
    """Open a page, let its scripts run, and read it."""
    done = _run(url, size, "--dump-dom")
    return Visit(done.stdout, _CONSOLE.findall(done.stderr))


def screenshot(url: str, path: Path, *, size: tuple[int, int] = (1200, 900)) -> None:
    """Take a picture of a page."""
    _run(url, size, f"--screenshot={path}")
    assert path.stat().st_size > 0


def _run(url: str, size: tuple[int, int], *flags: str) -> subprocess.CompletedProcess[str]:
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        return subprocess.run(
            [
                CHROMIUM,
                *_FLAGS,
                f"--user-data-dir={profile}",
                f"--window-size={size[0]},{size[1]}",
                *flags,
                url,
            ],
            capture_output=True,
            text=True,
            timeout=180,
            check=True,
            env=os.environ | {"HOME": profile},
        )
