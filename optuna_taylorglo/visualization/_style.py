"""The look that all figures share, for the dashboard's page and for print."""

from __future__ import annotations

import html
import warnings
from collections.abc import Iterable

import plotly.graph_objects as go
from plotly.colors import sample_colorscale

# Okabe and Ito's colours, which people with any colour vision can tell apart; yellow, hard to see
# on white, is left out.
CATEGORIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("solid", "dash", "dot")
BLUE, VERMILION = CATEGORIES[:2]
GREY = "#6b6b6b"

NO_SEARCH = "the study has no recipe, no worker has begun on it."
NO_GENERATION = "no generation is finished yet."

# Below the axis, where a legend that breaks into several lines on a narrow page finds its room.
LEGEND_BELOW = {"orientation": "h", "x": 0, "y": -0.18, "yanchor": "top"}

# Viridis from light to dark, without its palest yellow: late generations stand out on white.
GENERATIONS = tuple(
    (place / 8, colour)
    for place, colour in enumerate(
        sample_colorscale("Viridis", [0.95 - 0.95 * step / 8 for step in range(9)])
    )
)

_AXIS = {
    "showgrid": True,
    "gridcolor": "#e6e6e6",
    "zeroline": False,
    "showline": True,
    "linecolor": "#888888",
    "ticks": "outside",
    "tickcolor": "#888888",
    "automargin": True,
    "title": {"standoff": 10},
}

# A template of our own: plotly's default one would add 7 kB to every figure.
_TEMPLATE = go.layout.Template(
    layout={
        "font": {"family": "Helvetica, Arial, sans-serif", "size": 13, "color": "#222222"},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "title": {"x": 0.01, "xanchor": "left", "font": {"size": 17}},
        "margin": {"l": 70, "r": 25, "t": 60, "b": 60},
        "hoverlabel": {"align": "left"},
        "legend": {"bgcolor": "rgba(255,255,255,0.8)"},
        "colorway": list(CATEGORIES),
        "xaxis": _AXIS,
        "yaxis": _AXIS,
    }
)


def new_figure(title: str, *, height: int = 450) -> go.Figure:
    """An empty figure in our style, as wide as its place."""
    return apply(go.Figure(), title, height=height)


def apply(figure: go.Figure, title: str, *, height: int = 450) -> go.Figure:
    """Give a figure our style and a title."""
    return figure.update_layout(template=_TEMPLATE, title={"text": title}, height=height)


def nothing_to_plot(title: str, reason: str) -> go.Figure:
    """An empty figure that says, as the warning does, why it is empty."""
    warnings.warn(f"{title}: {reason}", stacklevel=3)
    figure = new_figure(title)
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    return figure.add_annotation(
        text=f"Nothing to plot: {plain(reason)}",
        showarrow=False,
        x=0.5,
        y=0.5,
        xref="paper",
        yref="paper",
        font={"size": 14, "color": GREY},
    )


def plain(text: str) -> str:
    """Text as it is: plotly would take <b> or <a href> in it for markup."""
    return html.escape(text, quote=False)


def short(values: Iterable[float | None], digits: int = 5) -> list[float | None]:
    """Numbers with so many significant digits: figures travel as JSON, again and again."""
    return [None if value is None else float(f"{value:.{digits}g}") for value in values]


def from_one(generations: Iterable[int]) -> list[int]:
    """Generations as people count them; kept they are from 0."""
    return [generation + 1 for generation in generations]


def on_generation_scale(generations: Iterable[int], last: int) -> list[str]:
    """Colour of each generation, or of any other count, on the scale that ends at `last`."""
    places = [generation / max(last, 1) for generation in generations]
    return list(sample_colorscale([list(stop) for stop in GENERATIONS], places))


def generation_bar(last: int) -> dict[str, object]:
    """Colour axis of generations from 1, for markers and for the key beside lines.

    Args:
        last: The last generation, from 0.
    """
    return {
        "colorscale": [list(stop) for stop in GENERATIONS],
        "cmin": 1,
        "cmax": max(last, 1) + 1,
        "colorbar": {
            "title": {"text": "generation", "side": "right"},
            "thickness": 14,
            "outlinewidth": 0,
            "tickformat": "d",
        },
    }
