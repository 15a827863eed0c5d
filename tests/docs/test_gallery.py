"""The gallery: its code runs on a study, and it has a picture of every figure there is."""

import runpy
from pathlib import Path

import optuna
import plotly.graph_objects as go
import pytest
from kept_studies import complete_study

from optuna_taylorglo import visualization

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = runpy.run_path(str(DOCS / "gallery.py"))["examples"]()


@pytest.fixture(scope="module")
def study() -> optuna.Study:
    return complete_study()


def test_every_figure_is_shown() -> None:
    code = "\n".join(EXAMPLES.values())
    assert [name for name in visualization.__all__ if f"{name}(" not in code] == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_draw_what_the_page_shows(name: str, study: optuna.Study) -> None:
    names = {plot: getattr(visualization, plot) for plot in visualization.__all__}
    names["study"] = study
    exec(EXAMPLES[name], names)
    assert isinstance(names["figure"], go.Figure)
    assert names["figure"].data
    assert names["figure"].layout.title.text in (DOCS / "gallery" / f"{name}.svg").read_text()


def test_pictures_are_small_and_none_is_left_over() -> None:
    pictures = list((DOCS / "gallery").iterdir())
    assert {picture.stem for picture in pictures} == set(EXAMPLES)
    assert sum(picture.stat().st_size for picture in pictures) < 1_500_000
