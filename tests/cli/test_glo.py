"""A GLO search from `taylorglo run` to the report, killed on the way."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest
import torch
from glo_searches import candidates, small_glo_recipe
from optuna.trial import TrialState
from optuna_dashboard import get_note
from searches import load, process, wait_until

from optuna_taylorglo import TreeLoss, cli, load_loss, visualization, worker
from optuna_taylorglo.attributes import TREE
from optuna_taylorglo.process import DONE
from optuna_taylorglo.report import dashboard
from optuna_taylorglo.search.history import SearchHistory, attach_recipe
from optuna_taylorglo.verdict.selection import load_selection, selected_loss

URL = "sqlite:///taylorglo.db"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a search was killed with its workers, and run again to its end."""
    directory = tmp_path_factory.mktemp("glo")
    small_glo_recipe(directory / "tiny.yaml")
    words = ("optuna_taylorglo.cli", "run", "tiny.yaml", "--workers", "2")
    first = process(*words, cwd=directory)
    url = URL.replace("///", f"///{directory}/")

    def begun() -> bool:
        assert first.poll() is None, first.communicate()[0]
        try:
            study = load(url, "tiny")
            return len(study.get_trials(states=(TrialState.COMPLETE, TrialState.PRUNED))) >= 3
        except KeyError:
            return False

    wait_until(lambda: (directory / "taylorglo.db").exists() and begun())
    first.kill()
    first.communicate()
    second = process(*words, cwd=directory)
    output, _ = second.communicate()
    assert second.returncode == cli.DONE, output
    (directory / "output.txt").write_text(output)
    return directory


@pytest.fixture
def study(directory: Path, monkeypatch: pytest.MonkeyPatch) -> optuna.Study:
    monkeypatch.chdir(directory)
    return load(URL.replace("///", f"///{directory}/"), "tiny")


def test_killed_and_resumed_it_is_the_serial_search(study: optuna.Study, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'serial.db'}"
    optuna.create_study(study_name="serial", storage=url, direction="maximize")
    words = ["--study-name", "serial", "--storage", url, "--recipe", "tiny.yaml"]
    assert worker.main(words) == DONE
    alone = load(url, "serial")
    assert candidates(study) == candidates(alone)
    ours, theirs = (
        [(c.parameters, c.evaluation, c.values) for c in load_selection(each).finalists]
        for each in (study, alone)
    )
    assert ours == theirs
    # All that can become of a candidate is in it.
    generations = {place[0] for place in candidates(alone)}
    assert generations == {0, 1, 2, 3, 4}
    assert {t.state for t in alone.trials} >= {TrialState.COMPLETE, TrialState.PRUNED}


def test_the_winner_is_a_tree_that_trains(directory: Path, study: optuna.Study) -> None:
    loss = load_loss(directory / "best_loss.json")
    assert isinstance(loss, TreeLoss)
    selection = load_selection(study)
    assert selection is not None
    assert tuple(loss.tree.to_prefix()) == selection.winner.parameters.prefix
    assert loss.origin is not None
    assert loss.origin.study == "tiny"
    logits = torch.randn(4, 10, requires_grad=True)
    loss(logits, torch.arange(4)).backward()
    assert logits.grad is not None
    assert logits.grad.abs().sum() > 0
    output = (directory / "output.txt").read_text()
    assert "Winner" in output
    assert "Traceback" not in output


def test_status_counts_the_functions_that_were_not_evaluated_again(
    study: optuna.Study, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["status", "tiny"]) == cli.DONE
    said = " ".join(capsys.readouterr().out.split())
    history = SearchHistory(study, attach_recipe(study, None))
    assert history.finished
    assert history.n_slots == history.n_filled == 3 * 8 + 2 * 4 - history.n_reused
    assert history.n_reused > 0
    assert "Generations: 5 of 5 complete" in said
    assert f"Equal functions: {history.n_reused} trees" in said


def test_a_trial_s_tree_can_be_exported(study: optuna.Study, tmp_path: Path) -> None:
    path = tmp_path / "loss.json"
    assert cli.main(["export", "tiny", "--trial", "0", "-o", str(path)]) == cli.DONE
    loss = load_loss(path)
    assert isinstance(loss, TreeLoss)
    assert loss.tree.to_prefix() == study.trials[0].user_attrs[TREE]


def test_the_figures_show_trees(study: optuna.Study) -> None:
    for plot in (
        visualization.plot_evolution,
        visualization.plot_loss_functions,
        visualization.plot_search_state,
        visualization.plot_candidates,
    ):
        assert plot(study).data, plot.__name__
    state = visualization.plot_search_state(study)
    # Of the second stage, which begins with the fourth generation.
    assert list(state.data[-1].x) == [4, 5, 6]


def test_verdict_report_and_dashboard_are_about_the_tree(
    study: optuna.Study, directory: Path, tmp_path: Path
) -> None:
    words = ["evaluate", "tiny", "--seeds", "2", "--against", "ce", "--workers", "1"]
    assert cli.main([*words, "-o", str(tmp_path / "verdict")]) == cli.DONE
    assert cli.main(["report", "tiny", "-o", str(tmp_path / "report.html")]) == cli.DONE
    page = (tmp_path / "report.html").read_text()
    history = SearchHistory(study, attach_recipe(study, None))
    assert f"<b>{history.n_reused}</b><span>trees equal to one of them" in page
    dashboard.refresh(study)
    note = get_note(study)
    assert "5 of 5 generations" in note
    assert selected_loss(study).name in note
