"""The Optuna dashboard with our figures, notes and artifacts, in a real browser."""

import contextlib
import socket
import urllib.request
from types import SimpleNamespace

import browser
import optuna
import pytest
from drawn_studies import made_verdict, searched_study, verdict_with_curves
from optuna.artifacts import get_all_artifact_meta
from optuna_dashboard import get_note
from optuna_dashboard._custom_plot_data import list_graph_object_ids
from searches import process, small_recipe, wait_until
from torch import nn
from verdicts import Recorder

from optuna_taylorglo import cli, worker
from optuna_taylorglo.losses.load import load_loss
from optuna_taylorglo.process import DONE
from optuna_taylorglo.recipes.load import frozen_recipe
from optuna_taylorglo.report import dashboard
from optuna_taylorglo.search.history import winner
from optuna_taylorglo.study.open import find_evaluation_study, open_study
from optuna_taylorglo.verdict.output import DataSweep, SavedSweep, save_sweep
from optuna_taylorglo.verdict.selection import choose
from optuna_taylorglo.verdict.winner import FINAL_MEAN, selected_loss


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """A directory with a finished search, made by a worker that drew as it went."""
    directory = tmp_path_factory.mktemp("dashboard")
    recipe = small_recipe(directory / "recipe.yaml", early_abort=None)
    url = f"sqlite:///{directory}/taylorglo.db"
    optuna.create_study(study_name="digits", storage=url, direction="maximize")
    words = ["--study-name", "digits", "--storage", url, "--recipe", str(recipe)]
    assert worker.main([*words, "--data-dir", str(directory / "data")]) == DONE
    return directory, url


def graph_ids(study):
    attrs = study._storage.get_study_system_attrs(study._study_id)
    return set(list_graph_object_ids(attrs))


def test_the_worker_drew_all_generations_in_the_end(searched):
    study = open_study("digits", searched[1])
    assert study.user_attrs[dashboard.DRAWN] == 2
    assert {f"taylorglo-{name}" for name in dashboard._figures()} == graph_ids(study)


def test_notes_tell_what_the_winner_does(searched):
    study = open_study("digits", searched[1])
    note = get_note(study)
    best = winner(study)
    assert f"trial {best.number}, val_accuracy {best.value:.4f}" in note
    assert "first gradient" in note
    trial = optuna.trial.Trial(study, best._trial_id)
    assert get_note(trial).startswith("Best of its time.")


def test_the_note_and_the_artifact_are_of_the_chosen_loss(tmp_path):
    study = searched_study(selection={"candidates": 4})
    recorder = Recorder(lambda task: 0.75 if task.loss.label == FINAL_MEAN else 0.5)
    choose(study, frozen_recipe(study), recorder)
    dashboard.refresh(study)
    assert "**Winner**: the mean of the final distribution, val_accuracy 0.7500" in get_note(study)
    for _ in range(2):
        dashboard.save_best_loss(study, tmp_path)
    (artifact,) = tmp_path.iterdir()
    assert load_loss(artifact).theta == selected_loss(study).loss.theta
    assert study.user_attrs[dashboard.SAVED_LOSS] == f"{FINAL_MEAN} of 4 generations"


def test_a_verdict_is_shown_beside_the_search():
    study = searched_study()
    for _ in range(2):
        dashboard.show_verdict(study, made_verdict())
    assert graph_ids(study) == {"taylorglo-comparison"}


def test_curves_and_sweeps_are_shown_beside_the_search():
    study = searched_study()
    dashboard.show_saved(study)
    assert graph_ids(study) == set()
    verdict_with_curves(study)
    data = DataSweep({"evolved loss": {0.5: [0.9]}}, {}, None)
    save_sweep(find_evaluation_study(study), SavedSweep("fraction", "test_accuracy", data))
    dashboard.show_saved(study)
    expected = {"learning-curves", "comparison", "sweep-fraction"}
    assert graph_ids(study) == {f"taylorglo-{name}" for name in expected}


def test_another_worker_does_not_draw_what_is_drawn(searched, monkeypatch):
    study = open_study("digits", searched[1])
    monkeypatch.setattr(dashboard, "refresh", lambda study: pytest.fail("drawn again"))
    dashboard.refresh_once_per_generation(study, 2)


@pytest.fixture
def clock(monkeypatch):
    """Time that passes only when it is told to."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(dashboard, "time", clock)
    return clock


def test_drawing_takes_no_more_than_its_share_of_the_time(clock, monkeypatch):
    drawn = []

    def draw(study, generation):
        clock.now += 3.0
        drawn.append(generation)
        study.set_user_attr(dashboard.DRAWN, generation)

    monkeypatch.setattr(dashboard, "refresh_once_per_generation", draw)
    completed = 1
    refresher = dashboard.DashboardRefresher(optuna.create_study(), lambda: completed)
    refresher.refresh_if_due()
    assert drawn == []
    clock.now += dashboard.FIRST_DRAWING / dashboard.DRAWING_SHARE
    refresher.refresh_if_due()
    assert drawn == [1]
    clock.now += 3.0 / dashboard.DRAWING_SHARE
    refresher.refresh_if_due()
    assert drawn == [1]  # There is nothing new.
    completed = 2
    refresher.refresh_if_due()
    assert drawn == [1, 2]
    completed = 3
    clock.now += 0.9 * 3.0 / dashboard.DRAWING_SHARE
    refresher.refresh_if_due()
    assert drawn == [1, 2]
    refresher.refresh_at_end()
    assert drawn == [1, 2, 3]


def test_a_drawing_that_fails_is_told_and_costs_nothing_else(monkeypatch, caplog):
    def fail(study, generation):
        raise RuntimeError("no ink")

    monkeypatch.setattr(dashboard, "refresh_once_per_generation", fail)
    dashboard.DashboardRefresher(optuna.create_study(), lambda: 1).refresh_at_end()
    assert "could not be drawn: no ink" in caplog.text


def test_a_search_without_a_complete_candidate_has_a_note_that_says_so():
    study = searched_study(0)
    dashboard.refresh(study)
    assert get_note(study) == "No candidate is complete yet."
    assert len(graph_ids(study)) == len(dashboard._figures())


def test_artifacts_are_kept_once(searched, tmp_path):
    study = open_study("digits", searched[1])
    for _ in range(2):
        dashboard.save_best_loss(study, tmp_path)
    (meta,) = get_all_artifact_meta(study)
    assert meta.filename == "best_loss.json"
    assert len(list(tmp_path.iterdir())) == 1
    trial = study.ask()
    dashboard.save_network(trial, nn.Linear(2, 2), tmp_path)
    (network,) = get_all_artifact_meta(trial)
    assert network.filename == "network.pt"
    study.tell(trial, state=optuna.trial.TrialState.FAIL)


@pytest.mark.skipif(browser.CHROMIUM is None, reason="chromium is not installed")
def test_the_study_page_shows_our_figures_in_a_browser(searched, tmp_path):
    directory, _ = searched
    with contextlib.closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = process(
        "optuna_taylorglo.cli", "dashboard", "digits", "--port", str(port), cwd=directory
    )
    try:
        page = f"http://127.0.0.1:{port}/dashboard/studies/1"

        def answers():
            with contextlib.suppress(OSError):
                return urllib.request.urlopen(page, timeout=5).status == 200
            return False

        wait_until(answers)
        seen = browser.visit(page, size=(1400, 3000))
        assert [message for message in seen.console if "rror" in message] == []
        # Our figures, each with its title as plotly draws it.
        for title in ("Evolution of the fitness", "Winner and best losses", "State of the search"):
            assert title.lower() in seen.dom.lower()
        assert seen.count("main-svg") >= len(dashboard._figures())
        browser.screenshot(page, tmp_path / "dashboard.png", size=(1400, 3000))
    finally:
        server.terminate()
        output, _ = server.communicate()
    assert server.returncode == cli.DONE, output
