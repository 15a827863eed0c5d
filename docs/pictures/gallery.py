"""Pictures of the gallery, drawn by the code that its page shows."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path

import optuna
import plotly.graph_objects as go

from optuna_taylorglo import visualization

from . import saved_studies
from .style import WIDTH

PAGE = Path(__file__).parents[1] / "gallery.md"
FOLDER = PAGE.with_suffix("")
PICTURE = re.compile(
    r"```python\n([^`]*?)```\n\n!\[[^\]]*\]\(gallery/(\w+)\.svg\)"  # a block and what it draws
)


def pictures() -> dict[Path, Callable[[], go.Figure]]:
    """How each picture is drawn, by its file."""
    return {
        FOLDER / f"{name}.svg": functools.partial(draw, code) for name, code in examples().items()
    }


def examples() -> dict[str, str]:
    """Code of each picture, by the picture's name."""
    return {name: code for code, name in PICTURE.findall(PAGE.read_text(encoding="utf-8"))}


studies = functools.cache(saved_studies.load)


def draw(code: str) -> go.Figure:
    """The figure that a block of the page comes to."""
    study, glo = studies().values()
    names = {"optuna": optuna, "study": study, "glo": glo}
    names |= {plot: getattr(visualization, plot) for plot in visualization.__all__}
    exec(code, names)
    return names["figure"].update_layout(width=WIDTH)
