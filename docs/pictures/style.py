"""The look of pictures: readable on light and dark pages, on desktops and phones."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import plotly.graph_objects as go

WIDTH = 520
"""Pixels. A phone shows a picture about 380 wide, with letters of 13 pixels as 9.5."""

TEXT, BLUE, ORANGE, GREEN = "#7c828b", "#2f80c8", "#d9681a", "#35945a"
GRID = "rgba(128,133,141,0.25)"

LUMINANCE = (0.16, 0.29)
"""Between these, the contrast with white and with #1e2129 is at least 3 (WCAG's formula)."""

_SVG = "http://www.w3.org/2000/svg"
_COLOR = re.compile(r"rgb\((\d+), (\d+), (\d+)\)")


def for_a_page(figure: go.Figure) -> go.Figure:
    """The figure for a page of any color: without a background, its text gray."""
    figure.update_layout(
        font={"color": TEXT, "family": "Helvetica, Arial, sans-serif"},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        legend_bgcolor="rgba(0,0,0,0)",
    )
    axis = {"gridcolor": GRID, "linecolor": TEXT, "tickcolor": TEXT, "zerolinecolor": GRID}
    figure.update_xaxes(**axis)
    figure.update_yaxes(**axis)
    return figure


def clean(file: Path) -> None:
    """Bring the colors of an SVG into our range, and remove what differs from run to run."""
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    tree = ElementTree.parse(file)
    # A heat map is its own background, and the gradient beside it is its key.
    kept = {f"{{{_SVG}}}stop"} if tree.find(f".//{{{_SVG}}}image") is not None else set()
    names: dict[str, str] = {}
    for element in tree.iter():
        for attribute in [a for a in element.attrib if a == "class" or a.startswith("data-")]:
            del element.attrib[attribute]
        if "id" in element.attrib:
            names[element.attrib["id"]] = element.attrib["id"] = f"i{len(names)}"
    for element in tree.iter():
        for attribute, value in element.attrib.items():
            for name, short in names.items():
                value = re.sub(rf"url\((['\"]?)#{re.escape(name)}\1\)", f"url(#{short})", value)
            if element.tag not in kept:
                value = _COLOR.sub(_in_range, value)
            element.attrib[attribute] = value
    tree.write(file, encoding="utf-8")


def _in_range(color: re.Match[str]) -> str:
    if set(color.groups()) == {"255"}:  # an outline in the color of the page
        return "none"
    red, green, blue = on_any_page(tuple(int(part) for part in color.groups()))
    return f"rgb({red}, {green}, {blue})"


def on_any_page(color: tuple[int, ...]) -> tuple[int, ...]:
    """The color of the same hue whose luminance lies in our range."""
    linear = [_linear(part / 255) for part in color]
    low, high = LUMINANCE
    bright = luminance(color)
    if bright > 0:
        # Scale the color, as far as its strongest part allows …
        factor = min(max(low, min(bright, high)) / bright, 1 / max(linear))
        linear, bright = [part * factor for part in linear], bright * factor
    if bright < low:
        # … and add white for the rest.
        white = (low - bright) / (1 - bright)
        linear = [part + white * (1 - part) for part in linear]
    return tuple(round(255 * _encoded(part)) for part in linear)


def luminance(color: tuple[int, ...]) -> float:
    """Relative luminance of red, green and blue up to 255 (WCAG 2)."""
    red, green, blue = (_linear(part / 255) for part in color)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(part: float) -> float:
    return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4


def _encoded(part: float) -> float:
    return 12.92 * part if part <= 0.0031308 else 1.055 * part ** (1 / 2.4) - 0.055
