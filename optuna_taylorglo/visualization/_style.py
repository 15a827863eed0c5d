"""The look that all figures share, for the dashboard's page and for print."""

from __future__ import annotations

import html
import itertools
import math
import textwrap
import warnings
from collections.abc import Iterable

import plotly.graph_objects as go
from plotly.colors import hex_to_rgb, sample_colorscale

# Okabe and Ito's colors, which people with any color vision can tell apart; yellow, hard to see
# on white, is left out.
CATEGORIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("solid", "dash", "dot")
BLUE, VERMILION = CATEGORIES[:2]
GRAY = "#6b6b6b"

NO_SEARCH = "the study has no recipe, no worker has begun on it."
NO_GENERATION = "no generation is finished yet."
NO_COEFFICIENTS = "GLO's second stage, the search for coefficients, has not begun."

# Below the axis, where a legend that breaks into several lines on a narrow page finds its room.
LEGEND_BELOW = {"orientation": "h", "x": 0, "y": -0.2, "yanchor": "top"}

# Viridis from light to dark, without its palest yellow: late generations stand out on white.
GENERATIONS = tuple(
    (place / 8, color)
    for place, color in enumerate(
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
    "title": {"standoff": 7},
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


def titles_to_the_left(figure: go.Figure) -> go.Figure:
    """Let the titles of a figure's parts stand above their axes, like its own."""
    for title, axis in zip(figure.layout.annotations, figure.select_xaxes(), strict=False):
        title.update(x=axis.domain[0], xanchor="left", font={"size": 13})
    return figure


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
        font={"size": 14, "color": GRAY},
    )


def plain(text: str) -> str:
    """Text as it is: plotly would take <b> or <a href> in it for markup."""
    return html.escape(text, quote=False)


def wrapped(text: str, width: int = 40) -> str:
    """Text in lines of so many characters, which fit on a telephone, as it is."""
    return "<br>".join(plain(line) for line in textwrap.wrap(text, width, break_on_hyphens=False))


def translucent(color: str, opacity: float) -> str:
    """A color such as "#0072B2" with an opacity."""
    return f"rgba({', '.join(map(str, hex_to_rgb(color)))}, {opacity:g})"


def log_axis(values: Iterable[float], *, most: int = 6) -> dict[str, object]:
    """A logarithmic axis around some positive values, with round ticks that keep apart.

    Left to itself, plotly puts ticks at 2, 3, 4 … 9 times every power of ten, one over the other.

    Args:
        values: The values.
        most: Ticks there may be.
    """
    low, high = min(values := [value for value in values if value > 0]), max(values)
    margin = max(0.05 * math.log10(high / low), 0.02)
    ends = [math.log10(low) - margin, math.log10(high) + margin]
    ticks = _log_ticks(10 ** ends[0], 10 ** ends[1], most)
    return {
        "type": "log",
        "range": ends,
        "tickvals": ticks,
        "ticktext": [_power_or_number(tick) for tick in ticks],
    }


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    """As many round numbers as keep apart."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    powers = range(first, last + 1)
    tried = [
        [m * 10.0**power for power in powers if power % every == 0 for m in mantissas]
        for every in range(1, len(powers) + 1)
        for mantissas in ((1, 2, 5), (1, 3), (1,))
    ]
    if high < 10 * low:  # as on a linear axis
        size = 10.0 ** math.floor(math.log10(high - low))
        steps = [part * size for part in (0.1, 0.2, 0.5, 1.0, 2.0, 2.5, 5.0)]
        tried += [
            [float(f"{n * step:.9g}") for n in range(*_multiples(low, high, step))]
            for step in steps
        ]
    shortest = math.log10(high / low) * 0.6 / most
    found: list[float] = []
    for ticks in ([tick for tick in ticks if low <= tick <= high] for ticks in tried):
        gaps = [math.log10(b / a) for a, b in itertools.pairwise(ticks)]
        if len(found) < len(ticks) <= most and min(gaps, default=math.inf) >= shortest:
            found = ticks
    return found


def _multiples(low: float, high: float, step: float) -> tuple[int, int]:
    return math.ceil(low / step), math.floor(high / step) + 1


def _power_or_number(value: float) -> str:
    power = math.floor(math.log10(value) + 1e-9)
    if -4 < power < 5:
        return f"{value:.4g}" if power < 4 else f"{value:,.0f}"
    mantissa = f"{value / 10.0**power:.4g}"
    return f"{'' if mantissa == '1' else f'{mantissa}·'}10<sup>{power}</sup>"


def short(values: Iterable[float | None], digits: int = 5) -> list[float | None]:
    """Numbers with so many significant digits: figures travel as JSON, again and again."""
    return [None if value is None else float(f"{value:.{digits}g}") for value in values]


def from_one(generations: Iterable[int]) -> list[int]:
    """Generations as people count them; kept they are from 0."""
    return [generation + 1 for generation in generations]


def on_generation_scale(generations: Iterable[int], last: int) -> list[str]:
    """Color of each generation, or of any other count, on the scale that ends at `last`."""
    places = [generation / max(last, 1) for generation in generations]
    return list(sample_colorscale([list(stop) for stop in GENERATIONS], places))


def color_bar(title: str) -> dict[str, object]:
    """The look of a color axis's key."""
    return {"title": {"text": title, "side": "right"}, "thickness": 12, "outlinewidth": 0}


def generation_bar(last: int) -> dict[str, object]:
    """Color axis of generations from 1, for markers and for the key beside lines.

    Args:
        last: The last generation, from 0.
    """
    return {
        "colorscale": [list(stop) for stop in GENERATIONS],
        "cmin": 1,
        "cmax": max(last, 1) + 1,
        "colorbar": color_bar("generation") | {"tickformat": "d"},
    }
