"""Draw every picture of README and docs from data in the repository.

    pip install -e '.[docs]' && python docs/figures.py

Needs Chromium or Chrome. The pictures are defined in `docs/pictures`.
"""

from __future__ import annotations

from pathlib import Path

import plotly.io
from pictures import architecture, gallery, glo, results, style

DOCS = Path(__file__).resolve().parent
KINDS = (results, gallery, glo)


def main() -> None:
    """Write every picture, and print its size."""
    drawers = {file: draw for kind in KINDS for file, draw in kind.pictures().items()}
    figures = [style.for_a_page(draw()) for draw in drawers.values()]
    widths, heights = ([figure.layout[side] for figure in figures] for side in ("width", "height"))
    plotly.io.write_images(figures, list(drawers), width=widths, height=heights)
    for file in drawers:
        style.clean(file)
    for file, draw in architecture.drawings().items():
        file.write_text(draw(), encoding="utf-8")
    for file in (*drawers, *architecture.drawings()):
        print(f"{file.relative_to(DOCS)}: {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
