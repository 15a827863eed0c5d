"""Draw the pictures of the gallery, with the code that the page itself shows.

    pip install -e '.[docs]' && python docs/gallery.py STUDY STORAGE

Needs a Chromium or Chrome, which kaleido drives, and a study with a verdict and sweeps; the page
says how to make it.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import optuna

from optuna_taylorglo import visualization
from optuna_taylorglo.storage.open_study import open_study

PAGE = Path(__file__).with_suffix(".md")
FOLDER = Path(__file__).with_suffix("")
PICTURE = re.compile(r"```python\n([^`]*?)```\n\n!\[[^\]]*\]\(gallery/(\w+)\.svg\)")

WIDTH = 760


def examples() -> dict[str, str]:
    """Code of each picture, by the picture's name."""
    return {name: code for code, name in PICTURE.findall(PAGE.read_text(encoding="utf-8"))}


def main() -> None:
    """Write every picture, and say how large it is."""
    parser = argparse.ArgumentParser(description="Draw the pictures of the gallery.")
    parser.add_argument("study")
    parser.add_argument("storage")
    arguments = parser.parse_args()
    study = open_study(arguments.study, arguments.storage)
    FOLDER.mkdir(exist_ok=True)
    for name, code in examples().items():
        names = {"optuna": optuna, "study": study}
        names |= {plot: getattr(visualization, plot) for plot in visualization.__all__}
        exec(code, names)  # of the page beside this file
        figure, file = names["figure"], FOLDER / f"{name}.svg"
        figure.write_image(file, width=WIDTH, height=figure.layout.height)
        print(f"{file.name}: {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
