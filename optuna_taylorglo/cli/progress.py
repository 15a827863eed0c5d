"""One live line about a run; plain lines where there is no terminal."""

from __future__ import annotations

import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column

from optuna_taylorglo.search.history import SearchHistory


def live_bar(console: Console) -> tuple[Progress, TaskID]:
    """A bar whose count and remaining time stay readable on a narrow terminal.

    What cannot be spared has its own width; the stage's name and the text share what is left, and
    are cut short where that is too little.

    Returns:
        The bar, and its only task, with the fields ``stage``, ``count`` and ``text``.
    """
    bar = Progress(
        TextColumn("{task.fields[stage]}", markup=False, table_column=_elastic(2)),
        BarColumn(bar_width=None, table_column=Column(min_width=8, max_width=24, ratio=1)),
        TextColumn("{task.fields[count]}", markup=False, table_column=Column(no_wrap=True)),
        TimeRemainingColumn(elapsed_when_finished=True, table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[text]}", markup=False, table_column=_elastic(2)),
        console=console,
        speed_estimate_period=120,
        disable=not console.is_terminal,
        expand=True,
    )
    return bar, bar.add_task("", total=None, stage="starting", count="", text="")


def _elastic(ratio: int) -> Column:
    return Column(no_wrap=True, overflow="ellipsis", ratio=ratio)


class LiveProgress:
    """Shows generation, best, mean, cross-entropy, evaluations per minute and the time left.

    Generations are counted from 1: the one that is named is being evaluated.

    Args:
        console: Where to.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar, self._task = live_bar(console)
        self._begin: tuple[float, int] | None = None
        self._printed_generation = 0
        self._printed_rounds: set[str] = set()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def show(self, history: SearchHistory) -> None:
        """Bring the line up to date."""
        if self._begin is None:
            self._begin = (time.monotonic(), history.n_filled)
        text = self._text(history, *self._begin)
        generations = history.recipe.search.total_generations
        self._bar.update(
            self._task,
            total=history.n_slots,
            completed=history.n_filled,
            stage=f"generation {min(history.n_finished + 1, generations)}/{generations}",
            count=f"{history.n_filled}/{history.n_slots}",
            text=text,
        )
        if not self._console.is_terminal and history.n_finished > self._printed_generation:
            self._printed_generation = history.n_finished
            done = f"generation {history.n_finished}/{generations} complete"
            self._console.print(f"{done}: {text}", soft_wrap=True)

    def show_round(self, stage: str, done: int, total: int) -> None:
        """Bring the line up to date with trainings outside the search."""
        count = f"{done}/{total}"
        self._bar.update(
            self._task, total=total, completed=done, stage=stage, count=count, text="trainings"
        )
        if not self._console.is_terminal and stage not in self._printed_rounds:
            self._printed_rounds.add(stage)
            self._console.print(f"{stage}: {total} trainings", soft_wrap=True)

    def _text(self, history: SearchHistory, begin: float, filled: int) -> str:
        parts = []
        if history.best is not None:
            parts.append(f"best {history.best.values[0]:.4f}")
        if (mean := history.last_mean) is not None:
            parts.append(f"mean {mean:.4f}")
        if history.cross_entropy is not None:
            parts.append(f"cross-entropy {history.cross_entropy.mean:.4f}")
        minutes = (time.monotonic() - begin) / 60
        if minutes > 0.05:
            parts.append(f"{(history.n_filled - filled) / minutes:.0f} evaluations/min")
        return ", ".join(parts) or "starting"
