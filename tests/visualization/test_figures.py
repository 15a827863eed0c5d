"""Figures: what they draw, compared with the study itself."""

from __future__ import annotations

import dataclasses
import html
import re
import statistics

import numpy as np
import optuna
import pytest
import torch
from drawn_studies import (
    GENERATIONS,
    POPULATION,
    made_verdict,
    save_sweeps,
    searched_study,
    verdict_with_curves,
)
from optuna.trial import TrialState
from torch import nn
from verdicts import Recorder

from optuna_taylorglo import visualization
from optuna_taylorglo.attributes import GENERATION
from optuna_taylorglo.evolution import candidates
from optuna_taylorglo.evolution.history import read_history, trial_loss, winner
from optuna_taylorglo.losses.canonical import to_canonical
from optuna_taylorglo.losses.describe import TargetCurve
from optuna_taylorglo.losses.tree import BAIKAL, tree_from_prefix
from optuna_taylorglo.losses.tree_loss import TreeLoss
from optuna_taylorglo.recipes.load import frozen_recipe
from optuna_taylorglo.verdict.selection import FINAL_MEAN, choose
from optuna_taylorglo.verdict.statistics import Role
from optuna_taylorglo.visualization import _style as style
from optuna_taylorglo.visualization._basin import _basin
from optuna_taylorglo.visualization._candidates import _color_axis, _coordinates
from optuna_taylorglo.visualization._loss_functions import _best_curves, _probabilities
from optuna_taylorglo.visualization._verdict import _mean_curve

OF_A_STUDY = (
    visualization.plot_evolution,
    visualization.plot_loss_functions,
    visualization.plot_candidates,
    visualization.plot_search_state,
)


@pytest.fixture(scope="module")
def study():
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return searched_study()


@pytest.fixture(scope="module")
def history(study):
    return read_history(study)


def traces(figure):
    return {trace.name: trace for trace in figure.data if trace.name}


@pytest.mark.parametrize("plot", OF_A_STUDY)
def test_a_figure_is_small_and_titled_or_empty_with_a_warning(plot, study):
    figure = plot(study)
    assert figure.data
    assert figure.layout.title.text
    text = figure.to_json()
    assert len(text) < 100_000
    # Older plotly.js, as in dashboards, does not read typed arrays.
    assert '"bdata"' not in text
    with pytest.warns(UserWarning, match="no worker has begun"):
        figure = plot(optuna.create_study(direction="maximize"))
    assert not figure.data
    assert "no worker has begun" in figure.layout.annotations[0].text
    with pytest.warns(UserWarning, match="yet"):
        assert not plot(searched_study(3)).data


def test_evolution_is_that_of_the_study(study):
    drawn = traces(visualization.plot_evolution(study))
    best = drawn["best"].y
    assert list(drawn["best"].x) == list(drawn["mean"].x) == list(range(1, GENERATIONS + 1))
    for generation in range(GENERATIONS):
        trials = [t for t in study.trials if t.user_attrs[GENERATION] == generation]
        values = {t.number: t.value for t in trials if t.state == TrialState.COMPLETE}
        assert best[generation] == max(values.values())
        assert values[drawn["best"].customdata[generation]] == max(values.values())
        assert drawn["mean"].y[generation] == pytest.approx(statistics.fmean(values.values()))
        assert drawn["mean"].customdata[generation] == len(trials) - len(values)
        points = zip(drawn["candidates"].x, drawn["candidates"].y, strict=True)
        assert sorted(y for x, y in points if x == generation + 1) == sorted(values.values())
    assert sum(drawn["mean"].customdata) > 0
    assert list(drawn["cross-entropy"].y) == [0.5, 0.5]
    assert "0.5000, mean of 2 seeds (0.4000 to 0.6000)" in drawn["cross-entropy"].hovertemplate
    records = [i for i in range(len(best)) if best[i] > max([-1, *best[:i]])]
    assert 0 < len(records) < len(best)
    assert list(drawn["new best"].x) == [i + 1 for i in records]


def test_generations_are_marked_at_whole_numbers(study):
    curves, state = visualization.plot_loss_functions(study), visualization.plot_search_state(study)
    evolution = visualization.plot_evolution(study).layout.xaxis
    for axis in (evolution, curves.layout.coloraxis.colorbar, state.layout.xaxis):
        assert (axis.tick0, axis.dtick) == (0, 1)
    assert [style.whole_ticks(last)["dtick"] for last in (1, 10, 11, 40)] == [1, 1, 2, 4]


def test_candidates_of_an_unfinished_generation_are_points_only():
    unfinished = searched_study(POPULATION + 2)
    drawn = traces(visualization.plot_evolution(unfinished))
    assert list(drawn["best"].x) == [1]
    assert set(drawn["candidates"].x) == {1, 2}
    assert "candidates" not in traces(visualization.plot_evolution(unfinished, candidates=False))
    best = f"best so far, trial {winner(unfinished).number}"
    assert best in traces(visualization.plot_loss_functions(unfinished))


def test_loss_functions_are_the_losses_shifted_to_zero(study, history):
    y = _probabilities()
    curves = _best_curves(history, None, 0.0)
    assert [candidate.generation for candidate, _ in curves] == list(range(GENERATIONS))
    for candidate, curve in curves:
        whole = TargetCurve(trial_loss(study, study.trials[candidate.trial]), 2)
        np.testing.assert_allclose(curve, whole(y) - whole(y[-1]), atol=1e-12)
    drawn = traces(visualization.plot_loss_functions(study))
    # The recipe sums over classes, so cross-entropy is -log y.
    np.testing.assert_allclose(drawn["cross-entropy"].y, np.log(y[-1] / y), atol=1e-4)
    best = winner(study)
    marked = drawn[f"winner, trial {best.number}"]
    whole = TargetCurve(trial_loss(study, best), 2)
    np.testing.assert_allclose(marked.y, whole(y) - whole(y[-1]), atol=1e-4)


@pytest.mark.parametrize(("reduction", "expected"), [("mean", -1), ("sum", -2)])
def test_normalized_loss_functions_have_the_slope_of_cross_entropy(reduction, expected):
    study = searched_study(loss={"class_reduction": reduction})
    figure = visualization.plot_loss_functions(study, normalize=True)
    curves = [trace for trace in figure.data if trace.line.width == 1.5]
    assert curves
    for curve in curves:
        # In binary mode a third-order loss is a parabola, whose central difference is exact.
        middle = len(curve.x) // 2
        (x0, x1), (y0, y1) = (side[middle - 1 : middle + 2 : 2] for side in (curve.x, curve.y))
        assert (y1 - y0) / (x1 - x0) == pytest.approx(expected, rel=1e-3)
    reference = traces(figure)["cross-entropy"].y
    assert reference[0] == pytest.approx(expected / 2 * np.log(0.01 / 0.99), abs=1e-3)


def test_trees_without_finite_values_are_left_out(history, monkeypatch):
    trees = iter([BAIKAL, tree_from_prefix(["log", "-1"])] + [BAIKAL] * GENERATIONS)
    monkeypatch.setattr(candidates, "candidate_loss", lambda *_: TreeLoss(next(trees)))
    curves = _best_curves(history, None, 0.0)
    assert [candidate.generation for candidate, _ in curves] == [0, *range(2, GENERATIONS)]
    y = _probabilities()
    baikal = -(np.log(y) + np.log(1 - y) - 1 / y) / 2
    np.testing.assert_allclose(curves[0][1], baikal - baikal[-1], rtol=1e-9, atol=1e-9)


def test_search_state_is_the_sampler_s(study):
    figure = visualization.plot_search_state(study)
    states, drawn = study.sampler.search_state(study), traces(figure)
    assert next(iter(drawn)) == "θ0  center of x"
    assert list(drawn)[-3:] == ["θ7  x²y", "step size σ", "condition number"]
    assert list(drawn["step size σ"].y) == [state.sigma for state in states]
    assert list(drawn["condition number"].y) == [state.condition_number for state in states]
    bands = [trace for trace in figure.data if trace.fill]
    for i, (band, line) in enumerate(zip(bands, list(drawn.values())[:8], strict=True)):
        assert list(line.x) == list(range(1, GENERATIONS + 2))
        assert list(line.y) == [state.mean[i] for state in states]
        low = [state.mean[i] - state.stds[i] for state in states]
        high = [state.mean[i] + state.stds[i] for state in states]
        assert list(band.y) == pytest.approx(low + high[::-1])
    # A loss over logits has no curve, and standard deviations are in the units of the parameters.
    changes = {"loss": {"variables": ["x", "y", "z"]}, "search": {"filter": "none"}}
    logits = searched_study(POPULATION, **changes)
    with pytest.warns(UserWarning, match="raw logits"):
        assert not visualization.plot_loss_functions(logits).data
    anchored = searched_study(
        loss={"base": "cross_entropy"}, search={"space": "canonical", "start": "none"}
    )
    drawn, units = visualization.plot_search_state(anchored), anchored.sampler.settings.units
    lines = [line for line in traces(drawn).values() if line.customdata]
    assert [line.name[0] for line in lines] == list("αβγδsε")
    assert [line.customdata[0] for line in lines] == pytest.approx([1.2 * u for u in units])


def test_candidates_lie_in_a_plane_the_winner_among_them(study, history):
    # Similar functions are near each other, as there is a canonical form.
    parameters = [c.parameters for c in history.candidates]
    coordinates = _coordinates(history, parameters)
    exact = np.array([to_canonical(p) for p in parameters])
    np.testing.assert_array_equal(coordinates.argsort(axis=0), exact.argsort(axis=0))
    drawn, again = (traces(visualization.plot_candidates(study)) for _ in range(2))
    shown = {}
    for trace in (drawn["ended early"], drawn["trained"]):
        for x, y, (number, _) in zip(trace.x, trace.y, trace.customdata, strict=True):
            shown[number] = (x, y)
    assert len(shown) == POPULATION * GENERATIONS
    best = winner(study)
    star = drawn[f"winner, trial {best.number}"]
    assert (star.x[0], star.y[0]) == shown[best.number]
    assert drawn["trained"] == again["trained"]
    values = {number: study.trials[number].value for number, _ in drawn["trained"].customdata}
    assert list(drawn["trained"].marker.color) == list(values.values())


@pytest.mark.parametrize("mode", ["max", "min"])
def test_better_candidates_are_darker_and_the_worst_share_a_color(history, mode, monkeypatch):
    fitness = history.recipe.fitness.changed(mode=mode)
    monkeypatch.setattr(history, "recipe", history.recipe.changed(fitness=fitness))
    axis = _color_axis([0.1, 0.5, 0.6, 0.7, 0.8, 0.9], history)
    assert axis["reversescale"] == (mode == "min")
    if mode == "max":
        assert 0.1 < axis["cmin"] < axis["cmax"] == 0.9
    else:
        assert 0.1 == axis["cmin"] < axis["cmax"] < 0.9


def test_a_winner_that_is_no_candidate_has_its_place_too():
    study = searched_study(selection={"candidates": 4})
    recorder = Recorder(lambda task: 0.75 if task.loss.label == FINAL_MEAN else 0.5)
    choose(study, frozen_recipe(study), recorder)
    name = "winner, the mean of the final<br>distribution"
    *others, star = visualization.plot_candidates(study).data
    assert star.name == name
    assert sum(len(trace.x) for trace in others) == POPULATION * GENERATIONS
    assert not any(star.x[0] in trace.x for trace in others)
    assert name in traces(visualization.plot_loss_functions(study))


def test_comparison_is_a_forest_of_differences():
    verdict = made_verdict()
    samples = [dataclasses.replace(s, label=f"<a>{s.label}</a> " * 2) for s in verdict.samples]
    verdict = dataclasses.replace(verdict, samples=tuple(samples), test_metric="<b>metric</b>")
    figure = visualization.plot_comparison(verdict)
    drawn, by_name = traces(figure), {c.against: c for c in verdict.contrasts}
    # Without trainings there is no lead, nor has the evolved loss one over itself.
    expected = {"baseline": ["ce", "ce-tuned", "baikal-cma"], "control of scale": ["ce-scaled"]}
    for name, losses in expected.items():
        trace, found = drawn[name], [by_name[loss] for loss in losses]
        assert list(trace.x) == [c.difference for c in found]
        assert list(np.add(trace.x, trace.error_x.array)) == pytest.approx([c.high for c in found])
        low = np.subtract(trace.x, trace.error_x.arrayminus)
        assert list(low) == pytest.approx([c.low for c in found])
    texts = [annotation.text for annotation in figure.layout.annotations]
    assert len(texts) == 4
    assert "2 of 4 diverged" in texts[2].replace("</b><br><b>", " ")
    lines = [html.unescape(re.sub("<.*?>", "", line)) for t in texts for line in t.split("<br>")]
    assert max(map(len, lines)) < 50, "they fit on a phone"
    assert not any("<a" in text for text in texts), "text from a database is no markup"
    assert "<b>" not in figure.layout.xaxis.title.text
    assert "right of 0 the evolved loss is better" in figure.layout.xaxis.title.text
    smaller = visualization.plot_comparison(dataclasses.replace(verdict, mode="min"))
    assert "left of 0 the evolved loss is better" in smaller.layout.xaxis.title.text
    rates = visualization.plot_comparison(dataclasses.replace(verdict, scale_acts=False))
    assert [trace.name for trace in rates.data] == ["baseline", "control of the learning rate"]
    with pytest.warns(UserWarning, match="no two losses have trainings"):
        assert not visualization.plot_comparison(dataclasses.replace(verdict, contrasts=())).data


def test_sweeps_are_drawn_as_they_were_saved():
    study = searched_study()
    with pytest.warns(UserWarning, match="no such sweep"):
        assert not visualization.plot_sweep(study).data
    save_sweeps(study)
    noise = visualization.plot_sweep(study, over="label_noise")
    assert list(traces(noise)["evolved loss"].x) == [0.0, 0.4]
    assert list(traces(noise)["evolved loss"].y) == pytest.approx([0.91, 0.8])
    assert "wrong" in noise.layout.xaxis.title.text
    assert list(visualization.plot_sweep(study, over="length").data[0].y) == [0.5, 0.9]
    with pytest.raises(ValueError, match="over must be one of fraction, label_noise, length"):
        visualization.plot_sweep(study, over="weather")


def test_learning_curves_are_means_over_the_trainings_of_the_verdict():
    study = searched_study()
    with pytest.warns(UserWarning, match="no verdict"):
        assert not visualization.plot_learning_curves(study).data
    seeds = {}

    def value(task, step):
        place = seeds.setdefault(task.seed, len(seeds))  # 0, 1 and 2
        if task.loss.name == "ce" and place:
            return None  # curves of some trainings only
        return (0.5 if task.loss.name == "winner" else 0.2) + step / 10_000 + 0.01 * place

    verdict = verdict_with_curves(study, value)
    figure = visualization.plot_learning_curves(study)
    drawn = traces(figure)
    best = max(verdict.samples[2:4], key=lambda s: s.mean)
    reference = next(s for s in verdict.samples if s.role == Role.REFERENCE)
    assert list(drawn) == ["evolved loss", reference.label, style.wrapped(best.label)]
    line = drawn["evolved loss"]
    assert list(line.x) == [100, 500, 1000]
    assert list(line.y) == pytest.approx([0.52, 0.56, 0.61])
    assert list(line.customdata) == pytest.approx([0.01] * 3)
    assert "1 of 3 trainings" in drawn[reference.label].hovertemplate
    bands = [trace for trace in figure.data if trace.fill]
    assert len(bands) == 2
    assert list(bands[0].y) == pytest.approx([0.51, 0.55, 0.60, 0.62, 0.57, 0.53])
    # Curves with other steps are interpolated.
    steps, means, _ = _mean_curve([((100, 0.1), (300, 0.3), (400, 0.4)), ((200, 0), (400, 0))])
    assert list(steps) == [300, 400]
    assert list(means) == pytest.approx([0.15, 0.2])


def test_basin_is_highest_at_the_trained_weights_and_leaves_them_alone():
    torch.manual_seed(0)
    inputs = torch.randn(400, 6)
    net = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3, bias=False))
    labels = net.eval()(inputs).argmax(dim=1)
    net.train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    steps = np.linspace(-1, 1, 9)
    center, accuracy = _basin(net, [(inputs, labels)], steps, 0)
    assert accuracy.shape == (9, 9)
    assert center == accuracy[4, 4] == accuracy.max() == 1.0
    assert accuracy.min() < 0.9
    assert all(module.training for module in net.modules())
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    batches = [(inputs[:150], labels[:150]), (inputs[150:], labels[150:])]
    np.testing.assert_array_equal(accuracy, _basin(net, batches, steps, 0)[1])
    # Without biases, scaled weights are the same classifier, with the same surroundings.
    with torch.no_grad():
        net[1].weight.mul_(64)
    np.testing.assert_array_equal(accuracy, _basin(net, batches, steps, 0)[1])
    figure = visualization.plot_basin({"evolved": net, "other": net}, batches, points=3)
    assert [trace.name for trace in figure.data] == ["evolved", "other"]
    assert {trace.coloraxis for trace in figure.data} == {"coloraxis"}
    with pytest.warns(UserWarning, match="no models"):
        assert not visualization.plot_basin({}, batches).data
    with pytest.raises(ValueError, match="points must be at least 2, not 1"):
        visualization.plot_basin({"net": net}, batches, points=1)
    with pytest.raises(ValueError, match="no batch"):
        visualization.plot_basin({"net": net}, [])
