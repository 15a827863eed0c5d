"""Pictures: commands and the gallery's code draw them all, and pages show them."""

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import plotly.graph_objects as go
import pytest
from searches import ROOT

from optuna_taylorglo import visualization
from optuna_taylorglo.attributes import WORKER
from optuna_taylorglo.study.open import find_evaluation_study

pytestmark = pytest.mark.pages

DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))

from figures import KINDS  # noqa: E402
from pictures import architecture, gallery, saved_studies  # noqa: E402
from pictures.style import LUMINANCE, luminance, on_any_page  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"
PAGES = [ROOT / "README.md", *DOCS.rglob("*.md")]
PICTURES = sorted(DOCS.rglob("*.svg"))
EXAMPLES = gallery.examples()


def test_the_command_draws_every_picture_and_pages_show_it() -> None:
    figures = [file for kind in KINDS for file in kind.pictures()]
    assert sorted([*figures, *architecture.drawings()]) == PICTURES
    shown = {
        (page.parent / target).resolve()
        for page in PAGES
        for target in re.findall(r"!\[[^\]]+\]\(([^)\s]+)\)", page.read_text("utf-8"))
    }
    assert set(PICTURES) <= shown
    assert sum(picture.stat().st_size for picture in PICTURES) < 2_000_000


def test_diagrams_are_those_that_the_command_draws() -> None:
    for file, draw in architecture.drawings().items():
        assert file.read_text(encoding="utf-8") == draw()


@pytest.mark.parametrize("picture", PICTURES, ids=lambda file: file.stem)
def test_a_picture_stands_alone(picture: Path) -> None:
    for element in ElementTree.parse(picture).iter():
        assert element.tag.removeprefix(SVG) not in {"script", "style", "foreignObject"}
        for attribute, value in element.attrib.items():
            assert not attribute.endswith("href") or value.startswith(("#", "data:"))
            assert re.findall(r"url\((?!#)", value) == []


@pytest.mark.parametrize("color", [(0, 0, 0), (255, 255, 0), (68, 1, 84), (0, 114, 178)])
def test_colors_are_moved_to_where_light_and_dark_pages_show_them(color: tuple[int, ...]) -> None:
    low, high = LUMINANCE
    assert low - 0.005 < luminance(on_any_page(color)) < high + 0.005


@pytest.mark.filterwarnings("error:.*:UserWarning:optuna_taylorglo")
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_of_the_gallery_draw_what_it_shows(name: str) -> None:
    figure = gallery.draw(EXAMPLES[name])
    assert isinstance(figure, go.Figure)
    assert figure.data
    assert figure.layout.title.text in (DOCS / "gallery" / f"{name}.svg").read_text()


def test_the_gallery_shows_every_figure_from_small_finished_studies() -> None:
    code = "\n".join(EXAMPLES.values())
    assert [name for name in visualization.__all__ if f"{name}(" not in code] == []
    assert saved_studies.FILE.stat().st_size < 300_000
    for study in saved_studies.load().values():
        for trial in [*study.trials, *find_evaluation_study(study).trials]:
            assert trial.state.is_finished()
            assert WORKER not in trial.user_attrs
