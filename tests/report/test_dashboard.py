"""The Optuna dashboard with our figures, notes and artifacts, in a real browser."""

from types import SimpleNamespace

import browser
import optuna
import pytest
from drawn_studies import searched_study
from kept_studies import keep_complete_study
from optuna.artifacts import get_all_artifact_meta
from optuna_dashboard import get_note
from optuna_dashboard._custom_plot_data import list_graph_object_ids
from searches import answer, free_port, process, wait_until
from torch import nn
from verdicts import Recorder

from optuna_taylorglo import cli
from optuna_taylorglo.recipes.load import frozen_recipe
from optuna_taylorglo.report import dashboard
from optuna_taylorglo.search.history import winner
from optuna_taylorglo.study.open import open_study
from optuna_taylorglo.verdict.selection import FINAL_MEAN, choose

SEARCH = {"taylorglo-evolution", "taylorglo-loss-functions", "taylorglo-search-state"}


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """A directory with a finished search, of which a worker drew the end."""
    directory = tmp_path_factory.mktemp("dashboard")
    keep_complete_study(directory, "digits")
    study = open_study("digits", f"sqlite:///{directory}/taylorglo.db")
    dashboard.DashboardRefresher(study, lambda: 2).refresh_at_end()
    return directory, study


def graph_ids(study):
    return set(list_graph_object_ids(study._storage.get_study_system_attrs(study._study_id)))


def test_a_worker_draws_all_generations_in_the_end(searched, monkeypatch):
    _, study = searched
    names = "learning-curves", "comparison", "sweep-fraction", "sweep-label_noise", "sweep-length"
    assert graph_ids(study) == SEARCH | {f"taylorglo-{name}" for name in names}
    best = winner(study)
    assert f"**Best so far**: trial {best.number}" in get_note(study)
    assert f"val_accuracy: {best.value:.4f}, one training" in get_note(study)
    assert "first gradient" in get_note(study)
    assert get_note(optuna.trial.Trial(study, best._trial_id)).startswith("Best of its time.")
    dashboard.refresh(study)
    assert len(graph_ids(study)) == len(SEARCH) + len(names), "in place of older ones"
    # Another worker does not draw them again.
    monkeypatch.setattr(dashboard, "refresh", lambda study: pytest.fail("drawn again"))
    dashboard.DashboardRefresher(study, lambda: 2).refresh_at_end()


def test_the_note_is_of_the_selected_loss():
    study = searched_study(selection={"candidates": 4})
    recorder = Recorder(lambda task: 0.75 if task.loss.label == FINAL_MEAN else 0.5)
    choose(study, frozen_recipe(study), recorder)
    dashboard.refresh(study)
    assert "**Winner**: the mean of the final distribution" in get_note(study)
    assert "val_accuracy: 0.7500, mean of" in get_note(study)


def test_a_network_is_an_artifact_of_its_trial(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trial = optuna.create_study().ask()
    dashboard.save_network(trial, nn.Linear(2, 2))
    (network,) = get_all_artifact_meta(trial)
    assert network.filename == "network.pt"


def test_drawing_takes_no_more_than_its_share_of_the_time(monkeypatch):
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(dashboard, "time", clock)
    drawn = []

    def draw(study):
        clock.now += 3.0
        drawn.append(clock.completed)

    monkeypatch.setattr(dashboard, "refresh", draw)
    refresher = dashboard.DashboardRefresher(optuna.create_study(), lambda: clock.completed)
    share = 1 / dashboard.DRAWING_SHARE
    for passed, clock.completed in (
        (0, 1),
        (share, 1),
        (0, 2),
        (3 * share, 2),
        (0, 2),
        (2.7 * share, 3),
    ):
        clock.now += passed
        refresher.refresh_if_due()
    assert drawn == [1, 2]
    refresher.refresh_at_end()
    assert drawn == [1, 2, 3]


def test_a_drawing_that_fails_is_only_logged(monkeypatch, caplog):
    monkeypatch.setattr(dashboard, "refresh", lambda study: 1 / 0)
    dashboard.DashboardRefresher(optuna.create_study(), lambda: 1).refresh_at_end()
    assert "could not be drawn: division by zero" in caplog.text


def test_a_search_without_a_complete_candidate_has_a_note_that_says_so():
    study = searched_study(0)
    dashboard.refresh(study)
    assert (get_note(study), graph_ids(study)) == ("No candidate is complete yet.", set())


@browser.needs_browser
def test_the_study_page_shows_our_figures_in_a_browser(searched):
    directory, _ = searched
    port = free_port()
    server = process(
        "optuna_taylorglo.cli", "dashboard", "digits", "--port", str(port), cwd=directory
    )
    try:
        page = f"http://127.0.0.1:{port}/dashboard/studies/1"
        wait_until(lambda: answer(page))
        seen = browser.visit(page)
        assert [message for message in seen.console if "rror" in message] == []
        # Our figures, each with its title as plotly draws it.
        for title in ("Evolution of the fitness", "Winner and best losses", "State of the search"):
            assert title.lower() in seen.dom.lower()
        assert seen.dom.count('class="main-svg"') >= len(SEARCH)
    finally:
        server.terminate()
        output, _ = server.communicate()
    assert server.returncode == cli.DONE, output
