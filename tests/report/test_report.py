"""The report: what it says, that it needs nothing else, and how a real browser shows it."""

from __future__ import annotations

import dataclasses
import html
import importlib.resources
import re
from pathlib import Path

import browser
import optuna
import pytest
import yaml
from drawn_studies import (
    GENERATIONS,
    POPULATION,
    made_verdict,
    searched_study,
    verdict_with_curves,
)
from optuna.trial import TrialState
from verdicts import Recorder

from optuna_taylorglo.attributes import GENERATION, INDEX
from optuna_taylorglo.errors import StudyError
from optuna_taylorglo.losses.tree import BAIKAL, BAIKAL_CMA_COEFFICIENTS
from optuna_taylorglo.losses.tree_loss import TreeLoss
from optuna_taylorglo.recipes.load import frozen_recipe
from optuna_taylorglo.recipes.schema import recipe_from_dict
from optuna_taylorglo.report.build import write_report
from optuna_taylorglo.search.history import trial_loss, winner
from optuna_taylorglo.study.open import find_evaluation_study
from optuna_taylorglo.verdict.output import DataSweep, RankAgreement, SavedSweep, save_sweep
from optuna_taylorglo.verdict.selection import choose
from optuna_taylorglo.verdict.winner import FINAL_MEAN, SelectedLoss, load_selection, selected_loss
from optuna_taylorglo.visualization import plot_data_fractions
from optuna_taylorglo.visualization._style import VERMILION

FIGURES = (
    "evolution",
    "loss-functions",
    "loss-shapes",
    "theta-history",
    "search-state",
    "candidates",
)


@pytest.fixture(scope="module")
def study():
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return searched_study()


def text_of(path: Path) -> str:
    """What a person reads: the page without its scripts."""
    return re.sub(r"<script.*?</script>", "", path.read_text(), flags=re.DOTALL)


def test_the_best_candidate_is_no_winner_before_the_choice(study, tmp_path):
    path = tmp_path / "report.html"
    note = "The winner is not chosen yet. This is the candidate with the best evaluation."
    write_report(study, path)
    assert note not in text_of(path)
    undecided = searched_study(selection={"candidates": 2})
    write_report(undecided, path)
    assert note in text_of(path)
    assert "best so far, trial" in path.read_text()
    assert '"winner, trial' not in path.read_text()


def test_report_says_everything_from_recipe_to_commands(study, tmp_path):
    path = tmp_path / "report.html"
    write_report(study, path, verdict=made_verdict())
    text = text_of(path)
    best = winner(study)
    for said in (
        f"{best.values[0]:.4f}",
        f"Trial {best.number} ",
        f"{POPULATION} candidates per generation for {GENERATIONS} generations",
        "0.5000",  # cross-entropy's mean
        "significantly better than cross-entropy",
        "Part of it is scale.",
        "BaikalCMA",
        "load_loss",
        "taylorglo run recipe.yaml --study-name drawn",
        "taylorglo evaluate drawn",
        "taylorglo export drawn -o best_loss.json",
        f"<td>{optuna.__version__}</td>",
        "seed of the search",
        *map(repr, best.params.values()),
        *(f'id="figure-{name}"' for name in (*FIGURES, "comparison")),
    ):
        assert said in text, said


def test_recipe_in_the_report_is_the_recipe(study, tmp_path):
    path = tmp_path / "report.html"
    write_report(study, path)
    (dump,) = re.findall(r"YAML</summary><pre>(.*?)</pre>", path.read_text(), flags=re.DOTALL)
    assert recipe_from_dict(yaml.safe_load(html.unescape(dump))) == frozen_recipe(study)


def test_without_a_verdict_it_says_how_to_get_one(study, tmp_path):
    path = tmp_path / "report.html"
    write_report(study, path, storage="postgresql://me:secret@host/db")
    text = text_of(path)
    assert "No verdict yet" in text
    assert "taylorglo evaluate drawn --seeds 10 --storage" in text
    assert "figure-comparison" not in text
    assert "secret" not in text
    assert path.read_text().count("me:secret") == 0  # some plotly.js has the word in it


def test_the_trial_put_to_the_test_can_be_another_than_the_best(study, tmp_path):
    path = tmp_path / "report.html"
    other = next(t for t in study.trials if t.state == TrialState.COMPLETE and t != winner(study))
    write_report(study, path, winner=SelectedLoss(trial_loss(study, other), other))
    assert f"Trial {other.number} " in text_of(path)
    assert f"--trial {other.number}" in text_of(path)


def test_a_tree_is_reported_with_its_formula_and_every_coefficient(study, tmp_path):
    path, tree = tmp_path / "report.html", TreeLoss(BAIKAL, BAIKAL_CMA_COEFFICIENTS)
    write_report(study, path, winner=SelectedLoss(tree, winner(study)))
    text = html.unescape(text_of(path))
    assert f"L = −(1/n) Σᵢ [ {tree.formula} ]" in text
    assert "Its first gradient is 4.95 times cross-entropy's" in text
    for name, part, value in (("c_0", "log(y) - x / y", "2.7279"), ("c_5", "y", "-0.8411")):
        assert re.search(rf"{name}.*{re.escape(part)}.*{value}", text)
    assert "1/α!" not in text


def test_a_verdict_about_another_loss_is_shown_as_such(study, tmp_path):
    path, best = tmp_path / "report.html", winner(study)
    verdict = dataclasses.replace(made_verdict(), trial=best.number)
    write_report(study, path, verdict=verdict)
    assert "The verdict is about" not in text_of(path)
    other = next(t for t in study.trials if t.state == TrialState.COMPLETE and t != best)
    write_report(study, path, verdict=dataclasses.replace(verdict, trial=other.number))
    text = text_of(path)
    said = f"The verdict is about trial {other.number}, not about the winner, trial {best.number}:"
    assert text.count(said) == 2  # on top and above the table
    assert f"<p>Trial {best.number} " in text
    # The mean of the distribution moves when a search goes on, and keeps its name.
    grown = dataclasses.replace(verdict, loss=trial_loss(study, other).settings())
    write_report(study, path, verdict=grown)
    assert f"trial {best.number} as it was before the search went on" in text_of(path)


def test_generations_are_counted_from_one(study, tmp_path):
    path, best = tmp_path / "report.html", winner(study)
    write_report(study, path)
    place = [best.user_attrs[key] + 1 for key in (GENERATION, INDEX)]
    assert "(generation {}, candidate {}) of study".format(*place) in text_of(path)


@pytest.mark.parametrize(("test", "said"), [("paired", "paired by seed,"), ("welch", "Welch test")])
def test_the_table_says_which_test_it_has(study, tmp_path, test, said):
    verdict = dataclasses.replace(made_verdict(), test=test)
    write_report(study, tmp_path / "report.html", verdict=verdict)
    assert said in text_of(tmp_path / "report.html")


def test_a_chosen_mean_is_reported_with_how_it_was_chosen(tmp_path):
    study = searched_study(selection={"candidates": 5})
    recipe = frozen_recipe(study)
    choose(study, recipe, Recorder(lambda task: 0.75 if task.loss.label == FINAL_MEAN else 0.5))
    path = tmp_path / "report.html"
    write_report(study, path)
    text = " ".join(text_of(path).split())
    assert "<p>The mean of the final distribution" in text
    assert "<b>0.7500</b><span>val_accuracy of the winner, mean of 8 full trainings" in text
    for finalist in load_selection(study).finalists:
        assert f"<td>{finalist.name}</td>" in text
    assert "Rank correlation" in text or "Too few candidates that differ" in text
    assert "--trial" not in text


def test_an_anchored_winner_is_reported_with_its_cross_entropy(tmp_path):
    study = searched_study(
        loss={"base": "cross_entropy"}, search={"space": "canonical", "filter": "steady"}
    )
    write_report(study, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    loss = selected_loss(study).loss
    smoothing = f"CE on labels smoothed by {loss.anchor.smoothing:.3g}"
    assert f"L = {loss.anchor.scale:.3g} × ( {smoothing} − Σᵢ [ " in text
    for value in loss.anchor:
        assert repr(value) in text


def test_a_search_under_way_is_reported_as_far_as_it_is(tmp_path):
    path = tmp_path / "report.html"
    write_report(searched_study(2), path)
    text = text_of(path)
    assert f"0 of {GENERATIONS} generations are complete" in text
    assert "Trial " in text
    assert "figure-evolution" not in text
    nothing = searched_study(0)
    write_report(nothing, path)
    assert "No candidate is complete yet" in text_of(path)


def test_a_study_nobody_has_begun_has_no_report(tmp_path):
    with pytest.raises(StudyError, match="no worker has begun"):
        write_report(optuna.create_study(direction="maximize"), tmp_path / "report.html")


def test_a_search_over_logits_is_reported_without_the_figures_it_cannot_have(tmp_path):
    path = tmp_path / "report.html"
    study = searched_study(12, loss={"variables": ["x", "y", "z"]}, search={"filter": "none"})
    write_report(study, path)
    text = text_of(path)
    assert "figure-theta-history" in text
    assert "figure-loss-functions" not in text
    assert "figure-candidates" in text


def test_curves_stand_on_top_and_sweeps_have_their_part(tmp_path):
    study = searched_study()
    path = tmp_path / "report.html"
    write_report(study, path, verdict=made_verdict())
    assert "figure-learning-curves" not in text_of(path)  # of an earlier version
    assert "One setting varied" not in text_of(path)
    verdict = verdict_with_curves(study)
    evaluation_study = find_evaluation_study(study)
    data = DataSweep({"evolved loss": {0.0: [0.9]}, "cross-entropy": {0.0: [0.8]}}, {}, 0.1)
    save_sweep(evaluation_study, SavedSweep("label_noise", "test_accuracy", data, loss="trial 3"))
    agreements = (RankAgreement(100, 1000, 0.5, 0.1, 8),)
    save_sweep(evaluation_study, SavedSweep("length", "steps", agreements=agreements))
    write_report(study, path, verdict=verdict)
    text = text_of(path)
    assert text.index('id="figure-learning-curves"') < text.index('id="search"')
    assert 'href="#sweeps"' in text
    assert text.index('id="sweeps"') < text.index('id="figure-sweep-label_noise"')
    assert 'id="figure-sweep-length"' in text
    assert "with trial 3, called evolved loss here" in text
    assert "Trainings that diverged count as 0.1000." in text


EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>'\"&"


@pytest.fixture(scope="module")
def evil_report(tmp_path_factory):
    """The report of a study whose every free text is an attack."""
    study = searched_study(
        name=EVIL, fitness={"metric": f"val{EVIL}"}, model={"init_args": {"text": EVIL}}
    )
    verdict = made_verdict()
    evil = tuple(dataclasses.replace(s, label=s.label + EVIL) for s in verdict.samples)
    verdict = dataclasses.replace(verdict, samples=evil, text=EVIL, test_metric=EVIL)
    path = tmp_path_factory.mktemp("evil") / "report.html"
    write_report(
        study,
        path,
        verdict=verdict,
        storage=f"journal{EVIL}",
        figures={f"Less data {EVIL}": plot_data_fractions({EVIL: {1.0: [0.9]}})},
    )
    return path


def test_what_a_database_holds_is_never_markup(evil_report):
    page = evil_report.read_text()
    assert "<script>alert" not in page
    assert "<img" not in text_of(evil_report)
    own = re.findall(r"<script nonce=", page)
    assert len(own) == 2
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in page


def test_figures_cannot_end_the_script_that_holds_them(evil_report):
    scripts = re.findall(r"<script nonce=.*?>(.*?)</script>", evil_report.read_text(), re.DOTALL)
    assert len(scripts) == 2
    assert "<" not in re.search(r"const figures = (.*);\nconst config", scripts[1])[1]
    assert scripts[1].rstrip().endswith('window.addEventListener("afterprint", resizeAll);')


def test_the_template_is_part_of_the_package():
    template = importlib.resources.files("optuna_taylorglo.report") / "page.html.j2"
    assert template.read_text("utf-8").rstrip().endswith("</html>")


def test_nothing_is_fetched_from_anywhere(study, tmp_path):
    path = tmp_path / "report.html"
    write_report(study, path)
    text = text_of(path)
    assert "default-src 'none'" in text
    assert not re.findall(r'(?:src|href)="(?!#)', text)


needs_browser = pytest.mark.skipif(browser.CHROMIUM is None, reason="there is no chromium here")


@needs_browser
def test_a_browser_draws_every_figure_without_a_complaint(study, tmp_path):
    path = tmp_path / "report.html"
    figures = {"Less data.": plot_data_fractions({"a": {0.5: [0.8], 1.0: [0.9]}})}
    write_report(study, path, verdict=made_verdict(), figures=figures)
    seen = browser.visit(path.as_uri())
    assert seen.console == []
    expected = [*FIGURES, "comparison", "further-0"]
    places = re.split(r'<div id="figure-', seen.dom)[1:]
    assert [place.split('"')[0] for place in places] == [
        "loss-functions",
        "loss-shapes",
        "evolution",
        "theta-history",
        "search-state",
        "candidates",
        "comparison",
        "further-0",
    ]
    assert len(places) == len(expected)
    for place in places:
        assert 'class="main-svg"' in place, place[:40]
        # A trace that was drawn, not axes only.
        assert re.search(r'class="(trace|contour|points|bars)', place), place[:40]


@needs_browser
def test_a_telephone_shows_the_page_without_scrolling_sideways(tmp_path):
    study = searched_study(
        name="a_study_with_a_rather_long_name_and_no_space_in_it",
        model={"init_args": {"a_long_name_of_an_argument": "and_a_long_value_of_it" * 3}},
    )
    verdict = verdict_with_curves(study)
    path = tmp_path / "report.html"
    write_report(study, path, verdict=verdict)
    seen = browser.on_telephone(path, width=400)
    assert seen["page"] == 400
    assert seen["needed"] == 400
    # Figures are as wide as the text; a table that is wider scrolls inside its own box.
    assert len(seen["figures"]) == len(FIGURES) + 2
    assert all(330 < width <= 400 for width in seen["figures"])


@needs_browser
def test_a_browser_runs_no_script_of_a_database(evil_report):
    seen = browser.visit(evil_report.as_uri())
    assert seen.console == []
    assert "<img" not in seen.dom
    assert seen.count("main-svg") > 0


@needs_browser
def test_the_browser_helper_hears_the_console(tmp_path):
    page = tmp_path / "page.html"
    page.write_text("<p class='a b'>x</p><script>console.error('cuckoo'); nowhere()</script>")
    seen = browser.visit(page.as_uri())
    assert any("cuckoo" in message for message in seen.console)
    assert any("nowhere is not defined" in message for message in seen.console)
    assert seen.count("b") == 1


@needs_browser
def test_a_picture_of_the_report_has_the_colors_of_its_figures(study, tmp_path):
    path = tmp_path / "report.html"
    write_report(study, path, verdict=made_verdict())
    assert marked_best(path) > 0
    path.write_text(text_of(path))
    assert marked_best(path) == 0


def marked_best(path: Path) -> int:
    """Pixels of a page in the color of new bests, which only figures have."""
    from PIL import Image, ImageColor

    picture = path.with_suffix(".png")
    browser.screenshot(path.as_uri(), picture, size=(1100, 6000))
    with Image.open(picture) as image:
        assert image.size == (1100, 6000)
        colors = image.convert("RGB").getcolors(maxcolors=2**24)
    assert colors is not None
    return {color: count for count, color in colors}.get(ImageColor.getrgb(VERMILION), 0)
