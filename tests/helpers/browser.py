"""A real browser for tests: headless Chromium looks at a page and tells what it found."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


_MEASURE = """
addEventListener("load", () => setTimeout(() => {
  const page = document.querySelector("iframe").contentDocument;
  const figures = [...page.querySelectorAll("figure .main-svg:first-child")];
  document.title = JSON.stringify({page: page.documentElement.clientWidth,
    needed: page.documentElement.scrollWidth, height: page.documentElement.scrollHeight,
    figures: figures.map((svg) => svg.clientWidth)});
}, 2000));
"""


def on_telephone(path: Path, *, width: int, picture: Path | None = None) -> dict[str, Any]:
    """How a page fits into a narrow window, in pixels; headless Chromium has none below 500.

    Args:
        path: The page.
        width: Width of the window.
        picture: File for a picture of the whole page.

    Returns:
        Width of the page, the width that it needs, its height, and the width of each figure.
    """
    with tempfile.TemporaryDirectory() as folder:
        frame = Path(folder) / "frame.html"

        def write(height: int) -> None:
            frame.write_text(
                f'<body style="margin:0"><iframe width={width} height={height} style="border:0" '
                f'srcdoc="{html.escape(path.read_text())}"></iframe><script>{_MEASURE}</script>'
            )

        write(900)
        found: dict[str, Any] = json.loads(
            html.unescape(re.search("<title>(.*?)</title>", visit(frame.as_uri()).dom)[1])
        )
        if picture is not None:
            write(found["height"])
            screenshot(frame.as_uri(), picture, size=(max(width, 500), found["height"]))
    return found


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
