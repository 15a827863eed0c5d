"""What commands print: plain text, and one live line about a run."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from optuna_taylorglo.evolution.history import SearchHistory
from optuna_taylorglo.text import counted, visible


class PlainConsole(Console):
    """Shows every text as it is: no markup, no emoji, no control characters.

    A bar moves on a real terminal only: Jupyter sets FORCE_COLOR for what a cell starts.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        is_terminal = sys.stdout.isatty()
        super().__init__(
            markup=False, emoji=False, highlight=False, force_terminal=is_terminal, quiet=quiet
        )

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)


class LiveProgress(Progress):
    """One live line about a run; plain lines where there is no terminal."""

    def __init__(self, console: Console) -> None:
        # On a narrow terminal the stage and the text are cut short, the count and the time are not.
        elastic = Column(no_wrap=True, overflow="ellipsis", ratio=2)
        super().__init__(
            TextColumn("{task.description}", markup=False, table_column=elastic),
            BarColumn(bar_width=None, table_column=Column(min_width=8, max_width=24, ratio=1)),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TimeRemainingColumn(elapsed_when_finished=True, table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[text]}", markup=False, table_column=elastic.copy()),
            console=console,
            speed_estimate_period=120,
            disable=not console.is_terminal,
            expand=True,
        )
        self._line = self.add_task("starting", total=None, text="")
        self._printed: set[str] = set()

    def show(self, history: SearchHistory) -> None:
        """Show how far a search is; the generation in hand counts from 1."""
        best, mean, reference = history.best, history.last_mean, history.cross_entropy
        parts = [
            f"best {best.values[0]:.4f}" if best else "",
            "" if mean is None else f"mean {mean:.4f}",
            f"cross-entropy {reference.mean:.4f}" if reference else "",
        ]
        n_generations, text = (
            history.recipe.search.total_generations,
            ", ".join(filter(None, parts)),
        )
        stage = f"generation {min(history.n_finished + 1, n_generations)}/{n_generations}"
        self._show(stage, history.n_filled, history.n_slots, text)
        if history.n_finished:
            done = f"generation {history.n_finished}/{n_generations} complete"
            self._print_once(done, f"{done}: {text}")

    def show_round(self, stage: str, done: int, total: int) -> None:
        """Show how far trainings outside the search are."""
        self._show(stage, done, total, "trainings")
        self._print_once(stage, f"{stage}: {counted(total, 'trainings')}")

    def _show(self, stage: str, done: int, total: int, text: str) -> None:
        self.update(self._line, description=stage, completed=done, total=total, text=text)

    def _print_once(self, key: str, line: str) -> None:
        if not self.console.is_terminal and key not in self._printed:
            self._printed.add(key)
            self.console.print(line, soft_wrap=True)
