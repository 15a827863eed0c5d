"""The parts of the report's page, and the page around them.

The page needs nothing but itself: plotly.js is inside, nothing is fetched, and it opens from a
file. Its own policy lets no script run but the two that its template holds.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import plotly.graph_objects as go


def page(title: str, body: str, drawn: Mapping[str, go.Figure]) -> str:
    """The whole page.

    Args:
        title: Its title, as text.
        body: What is on it, as HTML.
        drawn: Figures by the ids of their elements, which must be safe to put into HTML.
    """
    from plotly.offline import get_plotlyjs

    template = files("optuna_taylorglo.report").joinpath("page_template.html").read_text("utf-8")
    # Inside a script element a "<" of the data must never begin a tag.
    graphs = ",\n".join(
        f'"{name}": {str(figure.to_json()).replace("<", chr(92) + "u003c")}'
        for name, figure in drawn.items()
    )
    return Template(template).substitute(
        nonce=secrets.token_urlsafe(16),
        title=escape(f"{title}: an evolved loss function"),
        body=body,
        plotly=get_plotlyjs(),
        figures=f"{{{graphs}}}",
    )


def figure_place(drawn: Mapping[str, go.Figure], name: str, caption: str) -> str:
    """The place of a figure with its caption, or nothing if there is no such figure."""
    element = f"figure-{name}"
    if element not in drawn:
        return ""
    return (
        f'<figure><div id="{element}" class="plotly-graph-div"></div>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def paragraphs(texts: Iterable[str]) -> str:
    """Texts as paragraphs, empty ones left out."""
    return "\n".join(f"<p>{escape(text)}</p>" for text in texts if text)


def bullets(items: Iterable[str]) -> str:
    """Texts as a list."""
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"


def table(header: Sequence[str], body: Iterable[Sequence[str]], *, words: bool = False) -> str:
    """Texts as a table; its columns but the first are set as numbers, or all as words."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    lines = ("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in body)
    opening = '<table class="words">' if words else "<table>"
    return (
        f'<div class="wide">{opening}<thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )
