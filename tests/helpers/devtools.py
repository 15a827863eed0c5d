"""A real browser that is asked questions about pages, in a window of any width."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import choreographer
from browser import CHROMIUM


def ask(urls: Sequence[str], question: str, *, width: int) -> list[Any]:
    """Open pages one after the other, and ask each the same.

    Args:
        urls: Addresses of the pages.
        question: JavaScript, whose value is waited for if it is a promise.
        width: Width of the window, in pixels.

    Returns:
        The answer of each page, as plain values.
    """
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
