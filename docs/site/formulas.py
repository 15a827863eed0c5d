r"""Formulas drawn when the site is built: LaTeX to SVG, so that no script and no font is needed.

Pages have GitHub's notation, ``$…$`` in a line and ``$$`` on lines of their own;
pymdownx.arithmatex marks them, and leaves code alone.
"""

from __future__ import annotations

import html
import re

import ziamath
from mkdocs.exceptions import PluginError

SIZE = 16.0
"""Size in which a formula is drawn; all lengths are then given in units of it (em)."""

TALLEST = 30.0
"""No formula is taller, in em. ziamath draws a fence that stretches around a sum without upper
limit thousands high; such a fence gets a fixed size."""

_MARKED = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\(?P<kind>[(\[])(?P<latex>.*?)\\[)\]]</(?P=tag)>',
    re.DOTALL,
)
_SIZE = re.compile(r' width="([\d.]+)" height="([\d.]+)"')
_STRETCHING = re.compile(r"\\(?:left|right)(?![a-zA-Z])")

ziamath.config.svg2 = False  # symbols would have the same ids in every formula of a page
ziamath.config.precision = 2
ziamath.config.math.color = "currentColor"


def on_page_content(content: str, **_: object) -> str:
    """Draw the formulas of a page."""
    return _MARKED.sub(_drawn, content)


def _drawn(match: re.Match[str]) -> str:
    """A formula as a picture that is read aloud as its LaTeX."""
    latex = html.unescape(match["latex"]).strip()
    inline = match["kind"] == "("
    svg, depth = _svg(latex, inline)
    label = html.escape(" ".join(latex.split()), quote=True)
    style = f' style="vertical-align:{depth:.3f}em"' if inline else ""
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{label}"{style} ', 1)
    return f'<{match["tag"]} class="formula">{svg}</{match["tag"]}>'


def _svg(latex: str, inline: bool) -> tuple[str, float]:
    """A drawing with lengths in em, and how deep it reaches below the line, in em."""
    for text in (latex, _STRETCHING.sub(r"\\Big", latex)):
        try:
            formula = ziamath.Latex(text, size=SIZE, inline=inline)
            svg = formula.svg()
        except Exception as error:  # its parser raises many kinds
            raise PluginError(f"The formula {latex!r} cannot be drawn: {error}") from error
        width, height = (float(length) / SIZE for length in _SIZE.search(svg).groups())
        if height < TALLEST:
            sized = f' width="{width:.3f}em" height="{height:.3f}em"'
            return _SIZE.sub(sized, svg, count=1), formula.getyofst() / SIZE
    raise PluginError(f"The formula {latex!r} cannot be drawn: give its fences a size, as \\Big[")
