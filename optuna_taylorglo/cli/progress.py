"""One live line about a run; plain lines where there is no terminal."""

from __future__ import annotations

import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from optuna_taylorglo.search.history import SearchHistory


class LiveProgress:
    """Shows generation, best, mean, cross-entropy, evaluations per minute and the time left.

    Args:
        console: Where to.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("{task.fields[stage]}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[text]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
            speed_estimate_period=120,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("search", total=None, stage="search", text="starting")
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
        stage = f"generation {history.n_finished}/{history.recipe.search.generations}"
        self._bar.update(
            self._task,
            total=history.n_slots,
            completed=history.n_filled,
            stage=stage,
            text=text,
        )
        if not self._console.is_terminal and history.n_finished > self._printed_generation:
            self._printed_generation = history.n_finished
            self._console.print(f"{stage}: {text}", soft_wrap=True)

    def tell(self, text: str) -> None:
        """Say something above the line."""
        self._console.print(text, highlight=False)

    def show_round(self, stage: str, done: int, total: int) -> None:
        """Bring the line up to date with trainings outside the search."""
        text = f"{done} of {total} trainings"
        self._bar.update(self._task, total=total, completed=done, stage=stage, text=text)
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
