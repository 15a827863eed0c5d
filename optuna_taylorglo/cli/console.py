"""Where commands print: a console that takes nothing in a text for an instruction."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.text import Text

from optuna_taylorglo.sanitize import visible


class PlainConsole(Console):
    """Shows every text as it is, in messages and tables.

    Rich would take square brackets for markup, and words between colons for pictures. And it would
    move a bar where nothing can move: Jupyter sets FORCE_COLOR for what a cell starts.
    """

    def __init__(self) -> None:
        super().__init__(markup=False, emoji=False, force_terminal=sys.stdout.isatty())

    def render_str(self, text: str, **options: Any) -> Text:
        """As rich does it, for every text that is printed."""
        return super().render_str(visible(text), **options)


def bold(text: object) -> Text:
    """Something in bold letters, to be printed."""
    return Text(visible(str(text)), style="bold")
