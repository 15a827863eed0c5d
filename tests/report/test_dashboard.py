"""The Optuna dashboard with our figures, notes and artifacts, in a real browser."""

import json
import re
from types import SimpleNamespace

import browser
import optuna
import pytest
import yaml
from drawn_studies import evaluation_study_of, searched_study
from kept_studies import keep_complete_study
from optuna.artifacts import get_all_artifact_meta
from optuna_dashboard import get_note
from optuna_dashboard._custom_plot_data import get_plotly_graph_objects, list_graph_object_ids
from searches import ROOT, answer, free_port, process, wait_until
from torch import nn
from verdicts import Recorder, verdict_of

from optuna_taylorglo import cli
from optuna_taylorglo.attributes import N_CLASSES
from optuna_taylorglo.evolution.candidates import resolve_start
from optuna_taylorglo.evolution.history import read_history, winner
from optuna_taylorglo.evolution.sampler import ANCHORED_NAMES, UNSCALED_NAMES, TaylorGLOSampler
from optuna_taylorglo.evolution.scheduler import GenerationScheduler
from optuna_taylorglo.recipes.load import frozen_recipe, replace_recipe
from optuna_taylorglo.recipes.schema import FunctionRecipe, recipe_from_dict
from optuna_taylorglo.report import dashboard
from optuna_taylorglo.study.open import open_study
from optuna_taylorglo.verdict.output import save_verdict
from optuna_taylorglo.verdict.selection import FINAL_MEAN, choose

SEARCH = {"taylorglo-3-evolution", "taylorglo-4-loss-functions", "taylorglo-5-search-state"}
VERDICT = {"taylorglo-1-comparison", "taylorglo-2-learning-curves"}
SWEEPS = {"taylorglo-6-sweep-fraction", "taylorglo-7-sweep-label_noise", "taylorglo-8-sweep-length"}


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
    assert graph_ids(study) == SEARCH | VERDICT | SWEEPS
    best = winner(study)
    assert f"**Best so far**: trial {best.number}" in get_note(study)
    assert f"val_accuracy: {best.value:.4f}, one training" in get_note(study)
    assert "first gradient" in get_note(study)
    assert "**Verdict**: The evolved loss is level with" in get_note(study)
    assert get_note(optuna.trial.Trial(study, best._trial_id)).startswith("Best of its time.")
    dashboard.refresh(study)
    assert graph_ids(study) == SEARCH | VERDICT | SWEEPS, "in place of older ones"
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
    best = winner(study).number
    said = f"Optuna's best trial is {best}, by one training; the winner, the mean of the final"
    assert said in get_note(study)


def test_a_fitness_over_repeats_is_not_called_one_training():
    study = searched_study(search={"repeats": 3})
    dashboard.refresh(study)
    assert "the mean of 3 trainings of the best of" in get_note(study)
    assert "one training" not in get_note(study)


@pytest.mark.parametrize(
    ("scale", "said"),
    [
        ("free", "Best known loss: wrong-labels at scale × 0.223."),
        ("learning_rate", "Best known loss: wrong-labels at learning rate × 0.223."),
        ("fixed", "Best known loss: wrong-labels."),
    ],
)
def test_the_known_loss_that_a_search_starts_at_is_named(scale, said):
    def best(start):
        names = ANCHORED_NAMES if scale != "fixed" else UNSCALED_NAMES
        sampler = TaylorGLOSampler(names=names, popsize=4, known=[start])
        study = optuna.create_study(direction="maximize", sampler=sampler)
        scheduler = GenerationScheduler(study, n_generations=2)
        while (trial := scheduler.claim()) is not None:
            *shape, smoothing = sampler.suggest(trial)
            log_scale = shape[4] if scale != "fixed" else -1.5
            value = ((*shape[:4], smoothing) == start) - abs(log_scale + 1.5)
            scheduler.finish(trial, value)
        return study

    content = yaml.safe_load((ROOT / "studies" / "digits_mlp.yaml").read_text())
    recipe = resolve_start(recipe_from_dict(content | {"search": {"scale": scale}}))
    study = best(recipe.search.start.shapes[0])
    replace_recipe(study, recipe)
    study.set_user_attr(N_CLASSES, 10)
    assert dashboard.start_note(study, read_history(study)) == said
    cold = searched_study()
    assert dashboard.start_note(cold, read_history(cold)) == ""


def test_a_search_that_still_widens_at_its_end_is_said_not_to_have_settled(monkeypatch):
    study = searched_study()
    history = read_history(study)

    def note(*sigmas):
        states = [SimpleNamespace(sigma=sigma) for sigma in sigmas]
        sampler = SimpleNamespace(search_state=lambda study: states)
        monkeypatch.setattr(dashboard, "make_sampler", lambda *_: sampler)
        return dashboard.unsettled_note(study, history)

    said = note(1.0, 0.9, 1.0, 1.5, 1.4, 1.7, 1.9)
    assert "grew in the last third of its generations, from 1.4 to 1.9" in said
    assert "--n-generations" in said
    dashboard.refresh(study)
    assert said in get_note(study)
    assert note(1.0, 1.9, 1.5, 1.5, 1.4, 1.3, 1.2) == "", "it had widened, and settled"
    assert note(1.0, 0.5, 0.3, 0.2, 0.1, 0.2, 0.3) == "", "it is narrower than at the start"
    assert note(1.0, 1.1, 1.2, 1.3) == "", "three generations are too few"
    monkeypatch.setattr(history, "recipe", FunctionRecipe.model_construct())
    assert "call search with a greater n_generations" in note(1.0, 1.1, 1.2, 1.3, 1.4)
    monkeypatch.setattr(history, "finished", False)
    assert note(1.0, 1.1, 1.2, 1.3, 1.4) == ""


def test_figures_are_as_high_as_the_dashboard_s_cells():
    verdict = verdict_of(winner=0.9, ce=0.8, a=0.7, b=0.6, c=0.85, d=0.75, ce_scaled=0.82)
    study = searched_study()
    save_verdict(evaluation_study_of(study), verdict)
    dashboard.refresh(study)
    attributes = study._storage.get_study_system_attrs(study._study_id)
    figures = {k: json.loads(v) for k, v in get_plotly_graph_objects(attributes).items()}
    assert figures.keys() == SEARCH | {"taylorglo-1-comparison"}
    assert {figure["layout"]["height"] for figure in figures.values()} == {450}
    labels = figures["taylorglo-1-comparison"]["layout"]["annotations"]
    names = [re.search("<b>(.*?)</b>", label["text"])[1] for label in labels]
    assert names == ["cross-entropy", "a", "c", "d", "ce-scaled"], "without the easiest baseline"


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


# By how many pixels the text of each of our figures reaches below its cell, and its title into the
# buttons above, once all are drawn.
OVERLAPS = """(async () => {
  const box = (element) => element.getBoundingClientRect();
  for (;;) {
    const cells = [...document.querySelectorAll('[id^="user-defined-plot:"]')];
    const texts = cells.map((cell) => [...cell.querySelectorAll("text")]);
    if (cells.length && texts.every((drawn) => drawn.length))
      return cells.flatMap((cell, i) => [
        Math.max(...texts[i].map((text) => box(text).bottom)) - box(cell).bottom,
        box(cell.querySelector(".modebar")).bottom - box(cell.querySelector(".gtitle")).top]);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
})()"""


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
        # Our figures in their order, each with its title as plotly draws it.
        titles = (
            *("Evolved loss against the others", "Learning curves", "Evolution of the fitness"),
            *("Winner and best losses", "State of the search", "Less training data"),
        )
        places = [seen.dom.find(f">{title}<") for title in titles]
        assert places[0] > -1
        assert places == sorted(places)
        # Nothing of them is below the cell, which the next one would cover, or under the buttons.
        for width in (1400, 400):
            (overlaps,) = browser.ask([page], OVERLAPS, width=width)
            assert len(overlaps) == 2 * len(SEARCH | VERDICT | SWEEPS)
            assert max(overlaps) <= 0
    finally:
        server.terminate()
        output, _ = server.communicate()
    assert server.returncode == cli.DONE, output
