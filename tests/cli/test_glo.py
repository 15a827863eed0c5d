"""A GLO search with real trainings, from its worker to the report of its verdict."""

from __future__ import annotations

import optuna
import pytest
import torch
import yaml
from optuna.trial import TrialState
from optuna_dashboard import get_note
from searches import ROOT, load

from optuna_taylorglo import TreeLoss, cli, load_loss, visualization
from optuna_taylorglo.attributes import CROSS_ENTROPY, GENERATION, TREE
from optuna_taylorglo.cli import worker
from optuna_taylorglo.evolution.history import SearchHistory, attach_recipe
from optuna_taylorglo.training.training import Training
from optuna_taylorglo.verdict.selection import load_selection, selected_loss

GLO = {"popsize": 8, "n_generations": 3, "elite": 2}
GLO["coefficients"] = {"popsize": 4, "n_generations": 2, "sigma": 0.2}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Where a search has run to its end."""
    directory = tmp_path_factory.mktemp("glo")
    content = yaml.safe_load((ROOT / "studies" / "digits_mlp_glo.yaml").read_text())
    content["budget"] |= {"evaluation": 60, "full": 60}
    content["early_abort"] = {"unit": "steps", "at": 20, "threshold": 0.11, "attempts": 2}
    content["early_stop"] = {"unit": "steps", "at": 40, "keep": 0.5}
    content["search"]["glo"] = GLO
    content["selection"] = {"candidates": 1}
    recipe = directory / "tiny.yaml"
    recipe.write_text(yaml.safe_dump(content))
    url = f"sqlite:///{directory}/taylorglo.db"
    optuna.create_study(study_name="tiny", storage=url, direction="maximize")
    words = ["--study-name", "tiny", "--storage", url, "--recipe", str(recipe)]
    assert worker.main([*words, "--data-dir", str(directory / "data")]) == cli.DONE
    return directory


@pytest.fixture
def study(directory, monkeypatch):
    monkeypatch.chdir(directory)
    return load(f"sqlite:///{directory}/taylorglo.db", "tiny")


def test_the_winner_is_a_tree_that_trains(directory, study, capsys):
    assert "5 of 5 generations" in get_note(study), "the worker drew nothing"
    # All that can become of a candidate is in it.
    assert {trial.user_attrs[GENERATION] for trial in study.trials} == {0, 1, 2, 3, 4}
    assert {t.state for t in study.trials} >= {TrialState.COMPLETE, TrialState.PRUNED}
    assert cli.main(["run", "tiny.yaml"]) == cli.DONE  # there is nothing left to run
    assert "Winner" in capsys.readouterr().out
    loss = load_loss(directory / "tiny_loss.json")
    assert isinstance(loss, TreeLoss)
    assert tuple(loss.tree.to_prefix()) == load_selection(study).winner.parameters.prefix
    assert loss.origin.study == "tiny"
    logits = torch.randn(4, 10, requires_grad=True)
    loss(logits, torch.arange(4)).backward()
    assert logits.grad.abs().sum() > 0


def test_commands_and_figures_show_trees(study, tmp_path, capsys):
    assert cli.main(["status", "tiny"]) == cli.DONE
    said = " ".join(capsys.readouterr().out.split())
    history = SearchHistory(study, attach_recipe(study))
    assert history.finished
    assert history.n_slots == history.n_filled == 3 * 8 + 2 * 4 - history.n_reused
    assert history.n_reused > 0
    assert "Generations: 5 of 5 complete" in said
    assert f"Equal functions: {history.n_reused} trees" in said

    path = tmp_path / "loss.json"
    assert cli.main(["export", "tiny", "--trial", "0", "-o", str(path)]) == cli.DONE
    assert load_loss(path).tree.to_prefix() == study.trials[0].user_attrs[TREE]

    for plot in ("plot_evolution", "plot_loss_functions", "plot_candidates"):
        assert getattr(visualization, plot)(study).data
    # Of the second stage, which begins with the fourth generation.
    assert list(visualization.plot_search_state(study).data[-1].x) == [4, 5, 6]


def test_verdict_report_and_dashboard_are_about_the_tree(study, tmp_path):
    words = ["evaluate", "tiny", "--seeds", "2", "--against", "ce", "--workers", "1"]
    assert cli.main([*words, "-o", str(tmp_path / "verdict")]) == cli.DONE
    assert cli.main(["report", "tiny", "-o", str(tmp_path / "report.html")]) == cli.DONE
    page = (tmp_path / "report.html").read_text()
    history = SearchHistory(study, attach_recipe(study))
    assert f"{history.n_reused} trees had the result of an equal one." in page
    assert selected_loss(study).name in get_note(study)


def test_the_baseline_is_not_trained_twice(study, monkeypatch, capsys):
    words = ["baseline", "tiny", "--seeds", "2"]
    assert cli.main(words) == cli.DONE
    values = study.user_attrs[CROSS_ENTROPY]
    assert len(values) == 2
    assert "budget: " in capsys.readouterr().out
    monkeypatch.setattr(Training, "run", lambda *_, **__: pytest.fail("trained again"))
    assert cli.main(words) == cli.DONE
    assert study.user_attrs[CROSS_ENTROPY] == values
