"""Headless Chromium for tests: opens pages, and returns what they became or answer."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import choreographer
import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--enable-logging=stderr", "--v=0", "--virtual-time-budget=20000", "--window-size=1400,3000"),
)
_CONSOLE = re.compile(r":(?:INFO|WARNING|ERROR):CONSOLE[:(]\d+\)?\] (.*)")

Test = TypeVar("Test", bound=Callable[..., None])


def needs_browser(test: Test) -> Test:
    """Mark a test that a browser has to be there for."""
    there = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
    return pytest.mark.pages(there(test))


class Visit(NamedTuple):
    """A page after its scripts have run, and the messages on its console."""

    dom: str
    console: list[str]


def visit(url: str) -> Visit:
    """Open a page, let its scripts run, and read it."""
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        done = subprocess.run(
            [CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", "--dump-dom", url],
            capture_output=True,
            text=True,
            timeout=180,
            check=True,
            env=os.environ | {"HOME": profile},
        )
    return Visit(done.stdout, _CONSOLE.findall(done.stderr))


def ask(urls: Sequence[str], question: str, *, width: int) -> list[Any]:
    """Evaluate JavaScript, or the promise it returns, on pages in a window of a width in pixels."""
    return asyncio.run(_ask(urls, question, width))


async def _ask(urls: Sequence[str], question: str, width: int) -> list[Any]:
    answers = []
    browser = choreographer.Browser(path=CHROMIUM, headless=True, enable_sandbox=False)
    async with browser:
        tab = await browser.create_tab("about:blank")
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": True}
        await tab.send_command("Emulation.setDeviceMetricsOverride", params=size)
        await tab.send_command("Page.enable")
        for url in urls:
            loaded = tab.subscribe_once("Page.loadEventFired")
            await tab.send_command("Page.navigate", params={"url": url})
            await loaded
            asked = {"expression": question, "returnByValue": True, "awaitPromise": True}
            reply = await tab.send_command("Runtime.evaluate", params=asked)
            answers.append(reply["result"]["result"]["value"])
    return answers
