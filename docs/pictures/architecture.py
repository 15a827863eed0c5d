"""The two diagrams of docs/CONTRIBUTING.md: the way of data, and a search in time.

Plain SVG without a background, in colors and a gray that are readable on light and dark pages.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from pathlib import Path

from .style import BLUE, GREEN, ORANGE
from .style import TEXT as GRAY

DIRECTORY = Path(__file__).resolve().parents[1] / "architecture"

WIDTH = 760


class Drawing:
    """An SVG picture that grows shape by shape.

    Args:
        title: What it shows, for screen readers.
        height: In pixels; the width is `WIDTH`.
    """

    def __init__(self, title: str, height: int) -> None:
        self._lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" role="img" font-family="sans-serif" '
            f'font-size="14" fill="{GRAY}">',
            f"<title>{escape(title)}</title>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
            f'markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z" fill="{GRAY}"/></marker>'
            "</defs>",
        ]

    def text(
        self, x: float, y: float, words: str, *, anchor: str = "middle", size: int = 14,
        bold: bool = False, color: str = GRAY,
    ) -> None:  # fmt: skip
        """One line of text."""
        weight = ' font-weight="bold"' if bold else ""
        self._lines.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}"{weight} '
            f'fill="{color}">{escape(words)}</text>'
        )

    def box(
        self, x: float, y: float, width: float, height: float, color: str, *,
        filled: float = 0.1, dashed: bool = False,
    ) -> None:  # fmt: skip
        """A rounded rectangle."""
        dash = ' stroke-dasharray="4 4"' if dashed else ""
        self._lines.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5" '
            f'stroke="{color}" stroke-width="1.5" fill="{color}" '
            f'fill-opacity="{filled:g}"{dash}/>'
        )

    def line(self, *points: tuple[float, float], arrow: bool = True, dashed: bool = False) -> None:
        """A line through points, with a tip at its end."""
        path = "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
        tip = ' marker-end="url(#tip)"' if arrow else ""
        dash = ' stroke-dasharray="4 4"' if dashed else ""
        self._lines.append(
            f'<path d="{path}" stroke="{GRAY}" stroke-width="1.5" fill="none"{tip}{dash}/>'
        )

    def __str__(self) -> str:
        return "\n".join([*self._lines, "</svg>"]) + "\n"


def packages() -> str:
    """The way of data through the packages."""
    picture = Drawing("The way of data through the packages", 202)
    left, width, height, step = 1, 134, 66, 156
    top, below = 8, 124

    def station(column: int, y: float, color: str, title: str, *names: str) -> None:
        x = left + step * column
        picture.box(x, y, width, height, color)
        first = y + (29 if len(names) == 1 else 20)
        picture.text(x + width / 2, first, title, bold=True)
        for number, name in enumerate(names, start=1):
            picture.text(x + width / 2, first + 18 * number, name, size=13)

    station(0, top, BLUE, "recipe", "recipes/")
    station(1, top, GREEN, "study", "study/")
    station(2, top, GREEN, "trial", "worker.py, study/")
    station(3, top, BLUE, "candidate θ", "evolution/")
    station(4, top, BLUE, "loss", "losses/")
    station(4, below, ORANGE, "training", "training/", "lightning_modules/")
    station(3, below, BLUE, "metric", "evolution/")
    station(0, below, ORANGE, "verdict, report", "verdict/, report/", "visualization/")

    middle = top + height / 2
    for column in range(4):
        picture.line((step * column + width + 3, middle), (step * (column + 1) - 2, middle))
    last = left + step * 4 + width / 2
    picture.line((last, top + height + 2), (last, below - 3))
    middle = below + height / 2
    picture.line((step * 4 - 1, middle), (step * 3 + width + 4, middle))
    into = step + width * 0.75
    picture.line((step * 3 - 2, middle), (into, middle), (into, top + height + 3))
    picture.text(into + 12, middle - 9, "result of the trial", anchor="start", size=13)
    out = step + width * 0.25
    picture.line((out, top + height + 2), (out, middle), (width + 4, middle))
    return str(picture)


def generations() -> str:
    """A generation of six candidates, three workers, a kill, an abort, and the next generation."""
    picture = Drawing("Slots, generations and workers over time, and what the study holds", 420)
    left, second = 78, 56.5
    rows = {"A": 58, "B": 112, "C": 166}
    high = 38

    def at(seconds: float) -> float:
        return left + second * seconds

    def trial(
        worker: str, number: int, slot: str, start: float, end: float, color: str = BLUE
    ) -> None:
        x, y, width = at(start) + 2, rows[worker], second * (end - start) - 4
        picture.box(x, y, width, high, color)
        picture.text(x + width / 2, y + 16, f"trial {number}", size=13, bold=True)
        picture.text(x + width / 2, y + 32, f"slot {slot}", size=13)

    def waiting(worker: str, start: float, end: float) -> None:
        x, width = at(start) + 2, second * (end - start) - 4
        picture.box(x, rows[worker], width, high, GRAY, filled=0, dashed=True)
        picture.text(x + width / 2, rows[worker] + 24, "waits", size=13)

    for worker, y in rows.items():
        picture.text(6, y + 24, f"worker {worker}", anchor="start", size=13)
    end = 8.9
    picture.text(at(end / 2), 28, "generation 1: slots 0 to 5", bold=True)
    picture.text(at((end + 12) / 2), 28, "generation 2", bold=True)
    trial("A", 0, "0", 0, 3)
    trial("A", 4, "4, aborted", 3, 5.2, ORANGE)
    trial("A", 7, "4 again, fresh weights", 5.2, end)
    trial("B", 1, "1", 0, 2.6)
    trial("B", 3, "3", 2.6, 5)
    trial("B", 5, "5", 5, 7.6)
    waiting("B", 7.6, end)
    trial("C", 2, "2", 0, 1.9, ORANGE)
    picture.text(at(2.05), rows["C"] + 25, "✕ killed", anchor="start", size=13, color=ORANGE)
    trial("C", 6, "2 again, same seed", 3.6, 6.6)
    waiting("C", 6.6, end)
    for number, worker in enumerate(rows):
        trial(worker, 8 + number, str(6 + number), end + 0.12, 12, GREEN)
    picture.line((at(end) + 3, 36), (at(end) + 3, 218), arrow=False, dashed=True)
    words = "every slot is closed: CMA-ES is told, slots 6 to 11 open"
    picture.text(at(12), 236, words, anchor="end", size=13)
    picture.line((at(0), 262), (at(12), 262))
    picture.text(6, 266, "time", anchor="start", size=13)
    picture.text(6, 302, "Trials that the study holds by then", anchor="start", bold=True)
    _stored(picture, top=316)
    return str(picture)


def _stored(picture: Drawing, top: float) -> None:
    """The trials as the study holds them, one cell each."""
    cells = [
        ("0", "slot 0", "complete", "", BLUE),
        ("1", "slot 1", "complete", "", BLUE),
        ("2", "slot 2", "fail", "stale", ORANGE),
        ("3", "slot 3", "complete", "", BLUE),
        ("4", "slot 4", "pruned", "abort", ORANGE),
        ("5", "slot 5", "complete", "", BLUE),
        ("6", "slot 2", "complete", "retry of 2", BLUE),
        ("7", "slot 4", "complete", "retry of 4", BLUE),
        ("8–10", "slots 6–8", "running", "", GREEN),
        ("11–13", "slots 9–11", "waiting", "", GREEN),
    ]
    width = 75.2
    for place, (number, *words, color) in enumerate(cells):
        x = 4 + width * place
        picture.box(x + 1.5, top, width - 3, 96, color)
        picture.text(x + width / 2, top + 20, number, bold=True)
        for row, word in enumerate(words):
            picture.text(x + width / 2, top + 42 + 21 * row, word, size=13)


def drawings() -> dict[Path, Callable[[], str]]:
    """How each diagram is drawn, by its file."""
    return {DIRECTORY / "packages.svg": packages, DIRECTORY / "generations.svg": generations}
