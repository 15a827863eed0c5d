"""What commands print: plain text, one live line about a run, and the line about its result."""

from __future__ import annotations

import sys
import time
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from optuna_taylorglo.search.history import SearchHistory
from optuna_taylorglo.text import visible
from optuna_taylorglo.verdict.selection import Selection


class PlainConsole(Console):
    """Shows every text as it is, in messages and tables.

    Rich would take square brackets for markup and words between colons for emoji. It would also
    move a bar where nothing can move: Jupyter sets FORCE_COLOR for what a cell starts.
    """

    def __init__(self) -> None:
        super().__init__(markup=False, emoji=False, force_terminal=sys.stdout.isatty())

    def render_str(self, text: str, **options: Any) -> Text:
        """Render a text as rich does, without control characters."""
        return super().render_str(visible(text), **options)


def bold(text: object) -> Text:
    """A text to be printed in bold letters."""
    return Text(visible(str(text)), style="bold")


def _elastic(ratio: int) -> Column:
    return Column(no_wrap=True, overflow="ellipsis", ratio=ratio)


class LiveProgress:
    """One live line about a run; plain lines where there is no terminal.

    On a narrow terminal the stage and the text are cut short, the count and the time are not.
    Generations are counted from 1: the one that is shown is being evaluated.

    Args:
        console: Where to.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
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
        self._task = self._bar.add_task("", total=None, stage="starting", count="", text="")
        self._begin: tuple[float, int] | None = None
        self._printed: set[str] = set()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def show(self, history: SearchHistory) -> None:
        """Show how far a search is."""
        generations = history.recipe.search.total_generations
        text = self._search_text(history)
        stage = f"generation {min(history.n_finished + 1, generations)}/{generations}"
        self._update(stage, history.n_filled, history.n_slots, text)
        if history.n_finished:
            done = f"generation {history.n_finished}/{generations} complete"
            self._print_once(done, f"{done}: {text}")

    def show_round(self, stage: str, done: int, total: int) -> None:
        """Show how far trainings outside the search are."""
        self._update(stage, done, total, "trainings")
        self._print_once(stage, f"{stage}: {total} trainings")

    def _update(self, stage: str, done: int, total: int, text: str) -> None:
        count = f"{done}/{total}"
        self._bar.update(
            self._task, total=total, completed=done, stage=stage, count=count, text=text
        )

    def _print_once(self, key: str, line: str) -> None:
        if not self._console.is_terminal and key not in self._printed:
            self._printed.add(key)
            self._console.print(line, soft_wrap=True)

    def _search_text(self, history: SearchHistory) -> str:
        """Best, mean, cross-entropy, and evaluations per minute since the first call."""
        self._begin = self._begin or (time.monotonic(), history.n_filled)
        since, filled = self._begin
        minutes = (time.monotonic() - since) / 60
        parts = []
        if history.best is not None:
            parts.append(f"best {history.best.values[0]:.4f}")
        if (mean := history.last_mean) is not None:
            parts.append(f"mean {mean:.4f}")
        if history.cross_entropy is not None:
            parts.append(f"cross-entropy {history.cross_entropy.mean:.4f}")
        if minutes > 0.05:
            parts.append(f"{(history.n_filled - filled) / minutes:.0f} evaluations/min")
        return ", ".join(parts) or "starting"


def fitness_line(history: SearchHistory, selection: Selection | None = None) -> str:
    """Best candidate and cross-entropy, each with how its number was measured."""
    recipe, parts, winner = history.recipe, [], None
    if selection is not None:
        winner = selection.winner
        parts.append(
            f"{recipe.fitness.metric}: {winner.mean:.4f}, mean of {len(winner.values)} "
            f"full trainings of {winner.name}, the best of {len(selection.finalists)} losses"
        )
    elif history.best is not None:
        parts.append(
            f"{recipe.fitness.metric}: {history.best.values[0]:.4f}, one training of the "
            f"best of {len(history.ranked)} candidates (expect worse on other seeds)"
        )
    if (reference := history.cross_entropy) is not None:
        budget = "same" if winner is None else "evaluations'"
        parts.append(f"cross-entropy at the {budget} budget: {reference}")
        comparable = recipe.budget.evaluation == recipe.budget.full
        mean = None if winner is None or not comparable else winner.mean
        if mean is not None and recipe.fitness.sign * (mean - reference.mean) <= 0:
            parts.append(
                "On validation the winner is not better than cross-entropy: this search found no "
                "loss to use instead."
            )
    return "\n".join(parts) or "No candidate is complete yet."
