"""The gallery: its code draws what it shows, from the studies saved for it."""

import sys

import plotly.graph_objects as go
import pytest
from searches import ROOT

from optuna_taylorglo import visualization
from optuna_taylorglo.attributes import WORKER
from optuna_taylorglo.study.open import find_evaluation_study

pytestmark = pytest.mark.pages

DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))

from pictures import gallery, saved_studies  # noqa: E402

EXAMPLES = gallery.examples()


def test_every_figure_is_shown() -> None:
    code = "\n".join(EXAMPLES.values())
    assert [name for name in visualization.__all__ if f"{name}(" not in code] == []


@pytest.mark.filterwarnings("error:.*:UserWarning:optuna_taylorglo")
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_draw_what_the_page_shows(name: str) -> None:
    figure = gallery.draw(EXAMPLES[name])
    assert isinstance(figure, go.Figure)
    assert figure.data
    assert figure.layout.title.text in (DOCS / "gallery" / f"{name}.svg").read_text()


def test_saved_studies_are_small_and_finished_and_name_no_machine() -> None:
    assert saved_studies.FILE.stat().st_size < 300_000
    for study in saved_studies.load().values():
        evaluation_study = find_evaluation_study(study)
        assert evaluation_study is not None
        for trial in [*study.trials, *evaluation_study.trials]:
            assert trial.state.is_finished()
            assert WORKER not in trial.user_attrs
