"""The report: what it says, that it needs nothing else, and how a real browser shows it."""

from __future__ import annotations

import dataclasses
import html
import re

import browser
import optuna
import own_functions
import pytest
import yaml
from browser import ask, needs_browser
from drawn_studies import (
    GENERATIONS,
    evaluation_study_of,
    made_verdict,
    save_sweeps,
    searched_study,
    verdict_with_curves,
)
from optuna.trial import TrialState
from own_functions import train
from verdicts import Recorder, verdict_of

from optuna_taylorglo import search, visualization
from optuna_taylorglo.attributes import GENERATION, INDEX, OPTIMIZER
from optuna_taylorglo.errors import StudyError
from optuna_taylorglo.evolution.history import trial_loss
from optuna_taylorglo.evolution.history import winner as best_of
from optuna_taylorglo.losses.tree import BAIKAL, BAIKAL_CMA_COEFFICIENTS
from optuna_taylorglo.losses.tree_loss import TreeLoss
from optuna_taylorglo.recipes.load import frozen_recipe
from optuna_taylorglo.recipes.schema import recipe_from_dict
from optuna_taylorglo.report import build
from optuna_taylorglo.verdict.output import save_verdict
from optuna_taylorglo.verdict.selection import (
    FINAL_MEAN,
    SelectedLoss,
    choose,
    load_selection,
    selected_loss,
)

SEARCH_FIGURES = ("loss-functions", "loss-shapes", "evolution", "search-state", "candidates")
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>'\"&"


@pytest.fixture
def report(tmp_path):
    """Writes the report of a study; returns what a person reads, the page without its scripts."""

    def write(study, **options):
        build.write_report(study, tmp_path / "report.html", **options)
        page = (tmp_path / "report.html").read_text()
        return re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)

    return write


def test_report_says_everything_from_recipe_to_commands(report):
    study = searched_study()
    save_verdict(evaluation_study_of(study), made_verdict())
    text, best = report(study), best_of(study)
    for said in (
        f"<b>{best.value:.4f}</b><span>val_accuracy of the best candidate, one training</span>",
        "<b>0.5000</b><span>val_accuracy of cross-entropy at the same budget, mean of 2 trainings",
        "<b>0.9862</b><span>test_accuracy of evolved loss, mean of 4 full trainings</span>",
        "<b>0.9838</b><span>test_accuracy of cross-entropy, learning rate 0.15 (tuned), mean of 4",
        f"<p>val_accuracy: {best.value:.4f}, one training of the best of",
        "<p>Trial {} (generation {}, candidate {}) of study".format(
            best.number, *(best.user_attrs[key] + 1 for key in (GENERATION, INDEX))
        ),
        f"n_generations: {GENERATIONS}",
        "<p>Part of it is scale.</p>",
        '<td data-head="loss">BaikalCMA</td>',
        "t-test on differences, paired by seed",
        "found with sgd at learning rate",
        "taylorglo run recipe.yaml --study-name drawn",
        "taylorglo evaluate drawn --seeds 4\n",
        "taylorglo export drawn -o best_loss.json</pre>",
        f'<td data-head="version">{optuna.__version__}</td>',
        *map(repr, best.params.values()),
        *(f'id="figure-{name}"' for name in (*SEARCH_FIGURES, "comparison")),
    ):
        assert said in text, said
    (dump,) = re.findall(r"YAML</summary><pre>(.*?)</pre>", text, flags=re.DOTALL)
    assert recipe_from_dict(yaml.safe_load(html.unescape(dump))) == frozen_recipe(study)


@pytest.mark.parametrize(
    ("winner", "standing", "number", "words"),
    [
        (0.97, "better", "+2.0 points", "over tuned cross-entropy, the hardest baseline"),
        (0.95, "level", "+0.0 points", "<strong>level</strong> with tuned cross-entropy, the"),
        (0.93, "worse", "-2.0 points", "<strong>worse</strong> than tuned cross-entropy, the"),
    ],
)
def test_the_first_number_is_the_lead_over_the_hardest_baseline(
    report, winner, standing, number, words
):
    study = searched_study()
    verdict = verdict_of(winner=winner, ce=0.90, ce_tuned=0.95, ce_scaled=0.99)
    verdict = dataclasses.replace(verdict, trial=best_of(study).number)
    verdict = dataclasses.replace(verdict, loss=trial_loss(study, best_of(study)).settings())
    save_verdict(evaluation_study_of(study), verdict)
    text = report(study)
    assert f'<p class="lead">The evolved loss is {standing} ' in text
    tiles = text.split('<ul class="numbers">')[1].split("</ul>")[0].split("<li")[1:]
    assert tiles[0].startswith(f' class="lead-tile {standing}"><b>{number}</b><span>')
    assert words in tiles[0]
    assert f"<b>{winner:.4f}</b><span>test_accuracy of evolved loss" in tiles[1]
    assert "<b>0.9500</b><span>test_accuracy of tuned cross-entropy" in tiles[2]
    assert "val_accuracy" in tiles[3]


def test_where_the_optimizer_undoes_scale_the_report_speaks_of_the_learning_rate(
    report, monkeypatch
):
    study = searched_study()
    claims = ("the scale of a loss acts as", "Scale acts as a learning rate")
    text = report(study)
    assert all(claim in text for claim in claims)
    selected = selected_loss(study)
    selected.loss.lr_factor = 2.0
    monkeypatch.setattr(build, "selected_loss", lambda study: selected)
    text = report(study)
    assert not any(claim in text for claim in claims)
    rate = frozen_recipe(study).optimizer.lr
    assert f"train\nwith {2 * rate:g}, 2 times the recipe's.\n" in text
    assert "and the learning rate was searched along with the loss" in text
    save_verdict(evaluation_study_of(study), dataclasses.replace(made_verdict(), scale_acts=False))
    text = report(study)
    assert "Controls of the learning rate: the evolved loss at" in text
    assert "Controls of scale" not in text
    selected.loss.lr_factor = 1.0  # nothing is searched in the place of scale
    assert "a learning rate instead" not in report(study)


def test_a_search_with_a_function_is_reported_in_words_of_python(report):
    small = {"n_classes": 3, "n_generations": 2, "popsize": 4, "progress": False}
    result = search(train, **small, settings={"selection": {"candidates": 1}})
    result.compare(own_functions.test, n_seeds=2, against=["ce"])
    text = report(result.study)
    assert '<pre>result.save("best_loss.json")</pre>' in text
    assert "<pre>taylorglo" not in text
    assert "<span>validation accuracy of the winner, mean of" in text
    curves = visualization.plot_learning_curves(result.study)
    assert curves.layout.xaxis.title.text == "step"


def test_without_a_verdict_it_says_how_to_get_one(report, tmp_path):
    text = report(searched_study(), storage="postgresql://me:secret@host/db")
    assert "No verdict yet" in text
    assert "taylorglo evaluate drawn --seeds 10 --storage" in text
    assert "figure-comparison" not in text
    assert "me:secret" not in (tmp_path / "report.html").read_text()
    # Nothing is fetched from anywhere.
    assert "default-src 'none'" in text
    assert not re.findall(r'(?:src|href)="(?!#)', text)


def test_a_verdict_about_another_loss_is_shown_as_such(report):
    study = searched_study()
    best, evaluation_study = best_of(study), evaluation_study_of(study)
    other = next(t for t in study.trials if t.state == TrialState.COMPLETE and t != best)
    verdict = dataclasses.replace(made_verdict(), trial=other.number)
    save_verdict(evaluation_study, verdict)
    said = f"The verdict is about trial {other.number}, not about the winner, trial {best.number}:"
    assert report(study).count(said) == 2  # on top and above the table
    # The mean of the distribution moves when a search goes on, and keeps its name.
    loss = trial_loss(study, other).settings()
    save_verdict(evaluation_study, dataclasses.replace(verdict, trial=best.number, loss=loss))
    assert f"trial {best.number} as it was before the search went on" in report(study)


def test_the_winner_is_marked_as_such_only_after_the_selection(report):
    study = searched_study(selection={"candidates": 5})
    assert "The winner is not selected yet." in report(study)
    recorder = Recorder(lambda task: 0.75 if task.loss.label == FINAL_MEAN else 0.5)
    choose(study, frozen_recipe(study), recorder)
    text = report(study)
    assert "The winner is not selected yet." not in text
    assert "<p>The mean of the final distribution" in text
    assert "<b>0.7500</b><span>val_accuracy of the winner, mean of 8 full trainings" in text
    for finalist in load_selection(study).finalists:
        assert f"<td>{finalist.name}</td>" in text
    best = best_of(study).number
    said = f"<p>Optuna's best trial is {best}, by one training; the winner, the mean of the final"
    assert said in html.unescape(text)


def test_a_tree_is_reported_with_its_formula_and_every_coefficient(report, monkeypatch):
    study = searched_study()
    tree = SelectedLoss(TreeLoss(BAIKAL, BAIKAL_CMA_COEFFICIENTS), best_of(study))
    monkeypatch.setattr(build, "selected_loss", lambda study: tree)
    text = html.unescape(report(study))
    assert f"of f = {tree.loss.formula}" in text
    assert "Its first gradient is 4.95 times cross-entropy's" in text
    for name, part, value in (("c_0", "log(y) - x / y", "2.7279"), ("c_5", "y", "-0.8411")):
        assert re.search(rf"{name}.*{re.escape(part)}.*{value}", text)
    assert "1/α!" not in text


def test_an_anchored_winner_and_the_module_s_own_optimizer_are_reported(report):
    search = {"space": "canonical", "filter": "steady"}
    own = {"class_path": "own_nets.Own"}
    study = searched_study(loss={"base": "cross_entropy"}, search=search, model=own)
    text, anchor = report(study), selected_loss(study).loss.anchor
    assert f"L = {anchor.scale:.3g} × (cross-entropy with label smoothing" in text
    assert all(repr(value) in text for value in anchor)
    assert "module's own" not in text
    study.set_user_attr(OPTIMIZER, "module")
    text = report(study)
    assert "The optimizer and its schedule are the module's own." in text
    assert "found with the optimizer of own_nets.Own" in text


def test_a_search_under_way_is_reported_as_far_as_it_is(report):
    text = report(searched_study(2))
    assert f"0 of {GENERATIONS} generations are complete" in text
    assert "figure-evolution" not in text
    assert "No candidate is complete yet" in report(searched_study(0))
    with pytest.raises(StudyError, match="no worker has begun"):
        report(optuna.create_study(direction="maximize"))
    # A search over logits has not every figure.
    logits = searched_study(12, loss={"variables": ["x", "y", "z"]}, search={"filter": "none"})
    text = report(logits)
    assert "figure-search-state" in text
    assert "figure-loss-functions" not in text


def test_text_from_a_database_is_never_markup(tmp_path):
    study = searched_study(
        name=EVIL, fitness={"metric": f"val{EVIL}"}, model={"init_args": {"text": EVIL}}
    )
    evil = tuple(dataclasses.replace(s, label=s.label + EVIL) for s in made_verdict().samples)
    verdict = dataclasses.replace(made_verdict(), samples=evil, text=EVIL, test_metric=EVIL)
    save_verdict(evaluation_study_of(study), verdict)
    build.write_report(study, tmp_path / "report.html", storage=f"journal{EVIL}")
    page = (tmp_path / "report.html").read_text()
    assert "<script>alert" not in page
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in page
    scripts = re.findall(r"<script nonce=.*?>(.*?)</script>", page, re.DOTALL)
    assert len(scripts) == 2
    assert "<img" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    # Figures cannot end the script that holds them.
    assert "<" not in re.search(r"const figures = (.*);\nconst config", scripts[1])[1]


@needs_browser
def test_a_browser_draws_every_figure_without_a_complaint_and_a_phone_too(report, tmp_path):
    study = searched_study(
        name="a_study_with_a_rather_long_name_and_no_space_in_it",
        model={"init_args": {"a_long_name_of_an_argument": "and_a_long_value_of_it" * 3}},
    )
    verdict_with_curves(study)
    save_sweeps(study)
    text, page = report(study), tmp_path / "report.html"
    assert text.index('id="figure-learning-curves"') < text.index('id="search"')
    assert "with trial 3,\ncalled evolved loss here" in text
    assert text.count("Trainings that diverged count as 0.1000.") == 1
    seen = browser.visit(page.as_uri())
    assert seen.console == []
    places = re.split(r'<div id="figure-', seen.dom)[1:]
    sweeps = "sweep-fraction", "sweep-label_noise", "sweep-length"
    expected = {*SEARCH_FIGURES, "learning-curves", "comparison", *sweeps}
    assert {place.split('"')[0] for place in places} == expected
    for place in places:
        assert 'class="main-svg"' in place, place[:40]
        # A trace that was drawn, not axes only.
        assert re.search(r'class="(trace|contour|points|bars)', place), place[:40]

    # A phone shows it without scrolling sideways; figures are as wide as the text.
    table = """[...document.querySelectorAll(".stacked td:not(:empty)")].map(
      cell => [cell.dataset.head, cell.getBoundingClientRect().right])"""
    (cells,) = ask([page.as_uri()], table, width=400)
    assert {"mean", "difference", "95 % interval", "p (Holm)"} <= {head for head, _ in cells}
    assert all(0 < right <= 400 for _, right in cells)
    question = """[document.documentElement.scrollWidth,
      ...[...document.querySelectorAll("figure .main-svg:first-child")].map(s => s.clientWidth)]"""
    ((needed, *figures),) = ask([page.as_uri()], question, width=400)
    assert needed == 400
    assert len(figures) == len(expected)
    assert all(330 < width <= 400 for width in figures)
    # The page's policy forbids a script of a database.
    page.write_text(page.read_text() + "<script>alert(1)</script>")
    assert "Content Security Policy" in "\n".join(browser.visit(page.as_uri()).console)
