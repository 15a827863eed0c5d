"""A GLO search from `taylorglo run` to the report, killed on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
import yaml
from optuna.trial import TrialState
from optuna_dashboard import get_note
from searches import ROOT, load, process, results, wait_until

from optuna_taylorglo import TreeLoss, cli, load_loss, visualization, worker
from optuna_taylorglo.attributes import GENERATION, INDEX, TREE
from optuna_taylorglo.process import DONE
from optuna_taylorglo.report import dashboard
from optuna_taylorglo.search.history import read_history
from optuna_taylorglo.verdict.selection import load_selection, selected_loss

RUN = ("optuna_taylorglo.cli", "run", "tiny.yaml", "--workers", "2")


def candidates(study: optuna.Study) -> dict[tuple[int, int, int], tuple[Any, ...]]:
    """What `results` has, and the trees."""
    trees = {
        (t.user_attrs[GENERATION], t.user_attrs[INDEX]): t.user_attrs[TREE] for t in study.trials
    }
    return {place: (trees[place[:2]], *found) for place, found in results(study).items()}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a search was killed with its workers, and run again to its end."""
    directory = tmp_path_factory.mktemp("glo")
    content = yaml.safe_load((ROOT / "studies" / "digits_mlp_glo.yaml").read_text())
    content["budget"] |= {"evaluation": 16, "full": 16}
    content["early_abort"] = {"unit": "steps", "at": 8, "threshold": 0.11, "attempts": 2}
    content["early_stop"] = {"unit": "steps", "at": 12, "keep": 0.5}
    content["search"]["glo"] = {"popsize": 8, "n_generations": 2, "elite": 2}
    content["search"]["glo"]["coefficients"] = {"popsize": 4, "n_generations": 1, "sigma": 0.2}
    content["selection"] = {"candidates": 1}
    (directory / "tiny.yaml").write_text(yaml.safe_dump(content))
    first = process(*RUN, cwd=directory)

    def begun() -> bool:
        assert first.poll() is None, first.communicate()[0]
        try:
            return len(results(tiny(directory))) >= 3
        except KeyError:
            return False

    wait_until(lambda: (directory / "taylorglo.db").exists() and begun())
    first.kill()
    first.communicate()
    second = process(*RUN, cwd=directory)
    output, _ = second.communicate()
    assert second.returncode == cli.DONE, output
    (directory / "output.txt").write_text(output)
    return directory


def tiny(directory: Path) -> optuna.Study:
    return load(f"sqlite:///{directory}/taylorglo.db", "tiny")


@pytest.fixture
def study(directory: Path, monkeypatch: pytest.MonkeyPatch) -> optuna.Study:
    monkeypatch.chdir(directory)
    return tiny(directory)


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
    assert {place[0] for place in candidates(alone)} == {0, 1, 2}
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


def test_status_and_export_show_trees(
    study: optuna.Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["status", "tiny"]) == cli.DONE
    said = " ".join(capsys.readouterr().out.split())
    history = read_history(study)
    assert history.finished
    assert history.n_slots == history.n_filled == 2 * 8 + 4 - history.n_reused
    assert history.n_reused > 0
    assert "Generations: 3 of 3 complete" in said
    assert f"Equal functions: {history.n_reused} trees" in said
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
    # Of the second stage, which begins with the third generation.
    assert list(state.data[-1].x) == [3, 4]


def test_verdict_report_and_dashboard_are_about_the_tree(
    study: optuna.Study, tmp_path: Path
) -> None:
    words = ["evaluate", "tiny", "--seeds", "2", "--against", "ce", "--workers", "1"]
    assert cli.main([*words, "-o", str(tmp_path / "verdict")]) == cli.DONE
    assert cli.main(["report", "tiny", "-o", str(tmp_path / "report.html")]) == cli.DONE
    page = (tmp_path / "report.html").read_text()
    n_reused = read_history(study).n_reused
    assert f"<b>{n_reused}</b><span>trees equal to one of them" in page
    dashboard.refresh(study)
    note = get_note(study)
    assert "3 of 3 generations" in note
    assert selected_loss(study).name in note
