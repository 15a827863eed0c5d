"""One live line about a running search; plain lines where there is no terminal."""

from __future__ import annotations

import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from optuna_taylorglo.search.history import Progress


class LiveProgress:
    """Shows generation, best, mean, cross-entropy, evaluations a minute and the time left.

    Args:
        console: Where to.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Bar(
            TextColumn("generation {task.fields[generation]}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[text]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
            speed_estimate_period=120,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("search", total=None, generation="…", text="starting")
        self._begin: tuple[float, int] | None = None
        self._printed_generation = 0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def show(self, progress: Progress) -> None:
        """Bring the line up to date."""
        if self._begin is None:
            self._begin = (time.monotonic(), progress.filled)
        text = self._text(progress)
        generation = f"{progress.generation}/{progress.generations}"
        self._bar.update(
            self._task,
            total=progress.slots,
            completed=progress.filled,
            generation=generation,
            text=text,
        )
        if not self._console.is_terminal and progress.generation > self._printed_generation:
            self._printed_generation = progress.generation
            self._console.print(f"generation {generation}: {text}", soft_wrap=True)

    def _text(self, progress: Progress) -> str:
        assert self._begin is not None
        parts = []
        if progress.best is not None:
            parts.append(f"best {progress.best.value:.4f}")
        means = [mean for mean in progress.generation_mean if mean is not None]
        if means:
            parts.append(f"mean {means[-1]:.4f}")
        if progress.cross_entropy:
            mean = sum(progress.cross_entropy) / len(progress.cross_entropy)
            parts.append(f"cross-entropy {mean:.4f}")
        begin, filled = self._begin
        minutes = (time.monotonic() - begin) / 60
        if minutes > 0.05:
            parts.append(f"{(progress.filled - filled) / minutes:.0f} evaluations/min")
        return ", ".join(parts) or "starting"
