"""The gallery: its code runs on a study, and it has a picture of every figure there is."""

import runpy
from pathlib import Path

import optuna
import plotly.graph_objects as go
import pytest
from drawn_studies import searched_study, verdict_with_curves

from optuna_taylorglo import visualization
from optuna_taylorglo.storage.open_study import find_companion
from optuna_taylorglo.verdict.kept_sweeps import DataSweep, KeptSweep, RankAgreement, keep_sweep

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = runpy.run_path(str(DOCS / "gallery.py"))["examples"]()


@pytest.fixture(scope="module")
def study() -> optuna.Study:
    study = searched_study()
    verdict_with_curves(study)
    companion = find_companion(study)
    assert companion is not None
    data = DataSweep({"evolved loss": {0.5: [0.9], 1.0: [0.95]}}, {}, None)
    for over in ("fraction", "label_noise"):
        keep_sweep(companion, KeptSweep(over, "test_accuracy", data))
    agreements = (RankAgreement(100, 1000, 0.5, 0.1, 8),)
    keep_sweep(companion, KeptSweep("length", "steps", agreements=agreements))
    return study


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
