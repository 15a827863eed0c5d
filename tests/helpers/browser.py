"""Headless Chromium for tests: opens a page and returns what it became."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass

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


def visit(url: str) -> Visit:
    """Open a page, let its scripts run, and read it."""
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        done = subprocess.run(
            [
                *(CHROMIUM, *_FLAGS, f"--user-data-dir={profile}"),
                *("--window-size=1400,3000", "--dump-dom", url),
            ],
            capture_output=True,
            text=True,
            timeout=180,
            check=True,
            env=os.environ | {"HOME": profile},
        )
    return Visit(done.stdout, _CONSOLE.findall(done.stderr))
