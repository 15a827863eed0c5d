"""The look that all figures share, and text from a database made safe for plotly."""

from __future__ import annotations

import html
import math
import textwrap
import warnings
from typing import Any

import numpy as np
import plotly.graph_objects as go
import plotly.io as pio
from numpy.typing import ArrayLike
from plotly.colors import sample_colorscale

from optuna_taylorglo.recipes.schema import FitnessSettings

# Okabe and Ito's palette, which people with any color vision can tell apart, without yellow, which
# is hard to see on white.
CATEGORIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
BLUE, VERMILION = CATEGORIES[:2]
GRAY = "#6b6b6b"

# Viridis from light to dark, without its palest yellow.
LIGHT_TO_DARK = [
    [step / 8, color]
    for step, color in enumerate(
        sample_colorscale("Viridis", [0.95 * (1 - s / 8) for s in range(9)])
    )
]

NO_SEARCH = "the study has no recipe, no worker has begun on it."
NO_GENERATION = "no generation is finished yet."

_COLORBAR = {"thickness": 12, "outlinewidth": 0, "title": {"side": "right"}}
_AXIS = {"showline": True, "linecolor": "#888888", "zeroline": False, "title": {"standoff": 7}}
pio.templates["taylorglo"] = go.layout.Template(
    layout={
        "colorway": CATEGORIES,
        "coloraxis": {"colorbar": _COLORBAR},
        "font": {"family": "Helvetica, Arial, sans-serif", "color": "#222222"},
        "title": {"x": 0.01, "font": {"size": 17}},
        "margin": {"l": 60, "r": 25, "t": 70, "b": 60},
        # Below the axis, where long names have room on a narrow page.
        "legend": {"orientation": "h", "x": 0, "y": -0.2, "yanchor": "top"},
        "xaxis": _AXIS,
        "yaxis": _AXIS,
    }
)


def apply(figure: go.Figure, title: str, *, height: int = 450) -> go.Figure:
    """Give a figure our style and a title."""
    return figure.update_layout(template="plotly_white+taylorglo", title_text=title, height=height)


def nothing_to_plot(title: str, reason: str) -> go.Figure:
    """Warn, and return an empty figure that says why it is empty."""
    warnings.warn(f"{title}: {reason}", stacklevel=3)
    figure = apply(go.Figure(), title)
    figure.update_xaxes(visible=False).update_yaxes(visible=False)
    text = f"Nothing to plot: {plain(reason)}"
    return figure.add_annotation(
        text=text, x=0.5, y=0.5, xref="paper", yref="paper", showarrow=False
    )


def plain(text: str) -> str:
    """Escape text, in which plotly would interpret <b> or <a href>."""
    return html.escape(text, quote=False)


def metric(fitness: FitnessSettings) -> str:
    """The fitness's metric, and that smaller values are better where they are."""
    return plain(fitness.metric) + (", smaller is better" if fitness.mode == "min" else "")


def wrapped(text: str, width: int = 40) -> str:
    """Escape text and break it into lines that fit on a phone."""
    return "<br>".join(plain(line) for line in textwrap.wrap(text, width, break_on_hyphens=False))


def whole_ticks(last: int, most: int = 10) -> dict[str, int]:
    """Ticks of an axis up to `last` at whole numbers only, not at half a generation."""
    return {"tick0": 0, "dtick": math.ceil(last / most)}


def add_band(
    figure: go.Figure, x: ArrayLike, low: ArrayLike, high: ArrayLike, color: str, **place: Any
) -> None:
    """Fill the area between two lines; `place` is the row and column of a subplot."""
    figure.add_scatter(
        x=np.append(x, np.flip(x)).tolist(),
        y=np.append(low, np.flip(high)).tolist(),
        mode="lines",
        fill="toself",
        fillcolor=color,
        opacity=0.15,
        line={"width": 0},
        hoverinfo="skip",
        showlegend=False,
        **place,
    )
