"""The gallery: its code draws what it shows, from the studies that are kept for it."""

import sys

import optuna
import plotly.graph_objects as go
import pytest
from searches import ROOT

from optuna_taylorglo import visualization
from optuna_taylorglo.attributes import WORKER
from optuna_taylorglo.study.open import find_evaluation_study

DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))

from pictures import gallery, kept_studies  # noqa: E402

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


def test_the_evolution_of_glo_tells_its_stages_apart() -> None:
    study, glo = kept_studies.load().values()
    names = [note.text.strip() for note in visualization.plot_evolution(glo).layout.annotations]
    assert names == ["trees", "coefficients"]
    assert not visualization.plot_evolution(study).layout.annotations


def test_kept_studies_are_small_whole_and_tell_nothing_of_machines() -> None:
    assert kept_studies.FILE.stat().st_size < 300_000
    for study in kept_studies.load().values():
        evaluation_study = find_evaluation_study(study)
        assert evaluation_study is not None
        for trial in [*study.trials, *evaluation_study.trials]:
            assert trial.state.is_finished()
            assert WORKER not in trial.user_attrs


def test_kept_studies_are_only_read() -> None:
    study = next(iter(kept_studies.load().values()))
    with pytest.raises(PermissionError, match=r"only read, 1 logs"):
        study.set_user_attr("another", 1)


def test_studies_are_kept_as_they_are_but_for_their_workers(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/made.db"
    for name in kept_studies.NAMES:
        for made in (name, f"{name}-verdict"):
            study = optuna.create_study(study_name=made, storage=url, direction="maximize")
            study.set_user_attr("kept", made)
            trial = study.ask({"theta_0": optuna.distributions.FloatDistribution(-1, 1)})
            trial.set_user_attr(WORKER, {"host": "somewhere"})
            trial.set_user_attr("other", 1)
            study.tell(trial, 0.5)
    monkeypatch.setattr(kept_studies, "FILE", tmp_path / "kept.gz")
    kept_studies.keep(url)
    for name, study in kept_studies.load().items():
        (trial,) = study.trials
        assert study.user_attrs == {"kept": name}
        assert trial.user_attrs == {"other": 1}
        assert (trial.value, list(trial.params)) == (0.5, ["theta_0"])
        assert find_evaluation_study(study) is not None
