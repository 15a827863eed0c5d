"""Figures: what they draw, against the study itself, and how they look as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import statistics
import subprocess
import sys

import numpy as np
import optuna
import plotly.graph_objects as go
import pytest
import torch
from drawn_studies import (
    GENERATIONS,
    POPULATION,
    made_verdict,
    searched_study,
    verdict_with_curves,
)
from optuna.trial import TrialState
from torch import nn
from verdicts import Recorder, sample

from optuna_taylorglo import visualization
from optuna_taylorglo.attributes import GENERATION, SWEEP
from optuna_taylorglo.losses.canonical import to_canonical
from optuna_taylorglo.losses.describe import target_curve
from optuna_taylorglo.losses.tree import BAIKAL, tree_from_prefix
from optuna_taylorglo.losses.tree_loss import TreeLoss
from optuna_taylorglo.recipes.load import frozen_recipe
from optuna_taylorglo.search import candidates
from optuna_taylorglo.search.history import read_history, trial_loss, winner
from optuna_taylorglo.study.open import evaluation_study_name
from optuna_taylorglo.verdict.compare import RecordedCurves
from optuna_taylorglo.verdict.output import (
    DataSweep,
    RankAgreement,
    SavedSweep,
    load_sweeps,
    save_sweep,
)
from optuna_taylorglo.verdict.selection import choose
from optuna_taylorglo.verdict.statistics import Role, contrasts
from optuna_taylorglo.verdict.winner import FINAL_MEAN
from optuna_taylorglo.visualization import _style as style
from optuna_taylorglo.visualization._candidates import _add_trained, _get_candidates_info, _points
from optuna_taylorglo.visualization._comparison import _get_comparison_info
from optuna_taylorglo.visualization._data_fractions import _get_data_fractions_info
from optuna_taylorglo.visualization._learning_curves import _mean_curve
from optuna_taylorglo.visualization._loss_functions import _get_loss_functions_info
from optuna_taylorglo.visualization._search_state import _get_search_state_info
from optuna_taylorglo.visualization._style import CATEGORIES, VERMILION, log_axis, plain, short
from optuna_taylorglo.visualization._style import GENERATIONS as GENERATION_COLORS
from optuna_taylorglo.visualization._theta_history import _get_theta_history_info, _node_labels
from optuna_taylorglo.visualization.weight_space import accuracy_basin

OF_A_STUDY = (
    visualization.plot_evolution,
    visualization.plot_loss_functions,
    visualization.plot_theta_history,
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


@pytest.mark.parametrize("plot", OF_A_STUDY)
def test_figures_of_a_study_are_drawn_small_and_titled(plot, study):
    figure = plot(study)
    assert isinstance(figure, go.Figure)
    assert figure.data
    assert figure.layout.title.text
    assert any(axis.title.text for axis in figure.select_xaxes())
    text = figure.to_json()
    assert len(text) < 100_000
    # Typed arrays are a dialect that older plotly.js, as in dashboards, does not read.
    assert '"bdata"' not in text


@pytest.mark.parametrize("plot", OF_A_STUDY)
def test_what_has_not_begun_is_an_empty_figure_with_a_warning(plot):
    with pytest.warns(UserWarning, match="no worker has begun"):
        figure = plot(optuna.create_study(direction="maximize"))
    assert not figure.data
    assert "no worker has begun" in figure.layout.annotations[0].text


@pytest.mark.parametrize("plot", OF_A_STUDY)
def test_before_the_first_generation_is_finished_there_is_nothing_either(plot):
    with pytest.warns(UserWarning, match="yet"):
        assert not plot(searched_study(3)).data


def test_figures_of_a_long_search_stay_small():
    study = searched_study(280, search={"popsize": 14, "n_generations": 60})
    for plot in (visualization.plot_evolution, visualization.plot_loss_functions):
        per_generation = len(plot(study).to_json()) / 20
        assert per_generation * 60 < 100_000


def traces(figure):
    return {trace.name: trace for trace in figure.data if trace.name}


def test_evolution_is_that_of_the_study(study):
    drawn = traces(visualization.plot_evolution(study))
    assert list(drawn["best"].x) == list(drawn["mean"].x) == list(range(1, GENERATIONS + 1))
    for generation in range(GENERATIONS):
        trials = [t for t in study.trials if t.user_attrs[GENERATION] == generation]
        values = {t.number: t.value for t in trials if t.state == TrialState.COMPLETE}
        assert drawn["best"].y[generation] == pytest.approx(max(values.values()), abs=1e-5)
        assert values[drawn["best"].customdata[generation]] == max(values.values())
        mean = statistics.fmean(values.values())
        assert drawn["mean"].y[generation] == pytest.approx(mean, abs=1e-5)
        assert drawn["mean"].customdata[generation] == len(trials) - len(values)
        points = zip(drawn["candidates"].x, drawn["candidates"].y, strict=True)
        shown = sorted(y for x, y in points if x == generation + 1)
        assert shown == pytest.approx(sorted(values.values()), abs=1e-5)
    assert sum(drawn["mean"].customdata) > 0
    assert list(drawn["cross-entropy"].y) == [0.5, 0.5]
    assert "0.5000, mean of 2 seeds (0.4000 to 0.6000)" in drawn["cross-entropy"].hovertemplate


def test_new_bests_are_those_that_surpass_all_before(study):
    drawn = traces(visualization.plot_evolution(study))
    best = drawn["best"].y
    expected = [i for i in range(len(best)) if best[i] > max([-1, *best[:i]])]
    assert 0 < len(expected) < len(best)
    assert list(drawn["new best"].x) == [i + 1 for i in expected]
    assert list(drawn["new best"].y) == [best[i] for i in expected]


def test_candidates_of_the_generation_in_hand_are_points_but_no_generation():
    drawn = traces(visualization.plot_evolution(searched_study(POPULATION + 2)))
    assert list(drawn["best"].x) == [1]
    assert set(drawn["candidates"].x) == {1, 2}
    drawn = traces(visualization.plot_evolution(searched_study(7), candidates=False))
    assert "candidates" not in drawn
    assert "best" in drawn


def test_loss_functions_are_the_losses_shifted_to_zero(study, history):
    info = _get_loss_functions_info(history)
    assert info.generations == list(range(GENERATIONS))
    for trial, curve in zip(info.trials, info.curves, strict=True):
        whole = target_curve(trial_loss(study, study.trials[trial]), 2)
        y = np.array(info.probability)
        np.testing.assert_allclose(curve, whole(y) - whole(1.0), atol=1e-12)
        assert curve[-1] == 0
    # The recipe sums over classes, so cross-entropy is -log y as it stands.
    y = np.array(info.cross_entropy_probability)
    np.testing.assert_allclose(info.cross_entropy, -np.log(y), atol=1e-12)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_normalized_loss_functions_have_the_slope_of_cross_entropy(reduction):
    study = searched_study(loss={"class_reduction": reduction})
    info = _get_loss_functions_info(read_history(study), normalize=True)
    y, middle = np.array(info.probability), len(info.probability) // 2
    step = y[1] - y[0]
    assert info.curves
    for curve in info.curves:
        # In binary mode a third-order loss is a parabola, whose central difference is exact.
        slope = (curve[middle + 1] - curve[middle - 1]) / (2 * step)
        assert slope == pytest.approx(-2 / (2 if reduction == "mean" else 1))
    assert info.cross_entropy[0] == pytest.approx(
        -math.log(0.01) / (2 if reduction == "mean" else 1)
    )


def test_the_winner_is_marked_among_the_loss_functions(study, history):
    best = winner(study)
    drawn = traces(visualization.plot_loss_functions(study))
    marked = drawn[f"winner, trial {best.number}"]
    assert marked.line.color == VERMILION
    assert marked.line.width > max(t.line.width for t in drawn.values() if t is not marked)
    whole = target_curve(trial_loss(study, best), 2)
    y = np.array(marked.x)
    np.testing.assert_allclose(marked.y, whole(y) - whole(1.0), rtol=1e-3, atol=1e-3)
    part = searched_study(POPULATION)
    assert f"best so far, trial {winner(part).number}" in traces(
        visualization.plot_loss_functions(part)
    )


def test_losses_over_logits_have_no_curve():
    study = searched_study(
        6, loss={"variables": ["x", "y", "z"]}, search={"filter": "none", "popsize": 6}
    )
    with pytest.warns(UserWarning, match="raw logits"):
        assert not visualization.plot_loss_functions(study).data
    assert len(traces(visualization.plot_theta_history(study))) == 19


def test_theta_history_is_the_distribution_of_the_search(study, history):
    info = _get_theta_history_info(study, history)
    states = study.sampler.search_state(study)
    assert info.labels[0] == "θ0  center of x"
    assert info.labels[-1] == "θ7  x²y"
    assert info.generations == list(range(GENERATIONS + 1))
    assert [list(row) for row in zip(*info.means, strict=True)] == [list(s.mean) for s in states]
    # It starts at 0 with the recipe's σ, and variances add up to those of the principal axes.
    assert [means[0] for means in info.means] == [0.0] * 8
    assert [stds[0] for stds in info.stds] == pytest.approx([1.2] * 8)
    for i, state in enumerate(states):
        variance = sum(stds[i] ** 2 for stds in info.stds)
        assert variance == pytest.approx(state.sigma**2 * sum(state.eigenvalues))


def test_theta_history_draws_a_band_around_each_mean(study, history):
    info = _get_theta_history_info(study, history)
    bands, lines = (
        [trace for trace in visualization.plot_theta_history(study).data if bool(trace.fill) == f]
        for f in (True, False)
    )
    assert len(bands) == len(lines) == 8
    for band, line, stds in zip(bands, lines, info.stds, strict=True):
        n = len(line.y)
        low, high = band.y[:n], band.y[n:][::-1]
        assert list(line.y - np.array(stds)) == pytest.approx(list(low), abs=1e-4)
        assert list(line.y + np.array(stds)) == pytest.approx(list(high), abs=1e-4)


def test_standard_deviations_are_in_the_units_of_the_parameters():
    anchored = searched_study(
        loss={"base": "cross_entropy"}, search={"space": "canonical", "filter": "steady"}
    )
    info = _get_theta_history_info(anchored, read_history(anchored))
    assert [label[0] for label in info.labels] == list("αβγδsε")
    units = anchored.sampler.settings.units
    assert len(set(units)) > 1
    assert [stds[0] for stds in info.stds] == pytest.approx([1.2 * unit for unit in units])


def test_candidates_lie_in_a_plane_the_same_each_time(study, history):
    info = _get_candidates_info(study, history)
    assert info.coordinates.shape == (POPULATION * GENERATIONS, 2)
    assert np.isfinite(info.coordinates).all()
    again = _get_candidates_info(study, history)
    np.testing.assert_array_equal(info.coordinates, again.coordinates)
    trained = {c.trial: c.fitness for c in info.candidates if c.fitness is not None}
    assert trained[info.winner.trial] == max(trained.values())
    place = [c.trial for c in info.candidates].index(info.winner.trial)
    np.testing.assert_array_equal(info.winner_place, info.coordinates[place])
    assert len(trained) < len(info.candidates)


@pytest.mark.parametrize("mode", ["max", "min"])
def test_candidates_are_colored_by_fitness_the_better_the_darker(study, mode, monkeypatch):
    history = read_history(study)
    fitness = history.recipe.fitness.changed(mode=mode)
    monkeypatch.setattr(history, "recipe", history.recipe.changed(fitness=fitness))
    figure = go.Figure()
    _add_trained(figure, _get_candidates_info(study, history), history)
    marker = figure.data[0].marker
    values = [c.fitness for c in history.candidates if c.fitness is not None]
    assert list(marker.color) == pytest.approx(values, abs=1e-4)
    darkest, lightest = (0, -1) if mode == "min" else (-1, 0)
    assert marker.colorscale[darkest][1] == GENERATION_COLORS[-1][1]
    assert marker.colorscale[lightest][1] == GENERATION_COLORS[0][1]
    # The worst, which differ most, do not use up the scale.
    if mode == "max":
        assert min(values) < marker.cmin < marker.cmax == max(values)
    else:
        assert min(values) == marker.cmin < marker.cmax < max(values)


def test_there_is_one_plane_of_functions_unless_there_is_no_such_form(history, study):
    canonical = _get_candidates_info(study, history, space="canonical").coordinates
    np.testing.assert_array_equal(_get_candidates_info(study, history).coordinates, canonical)
    fourth = searched_study(12, loss={"order": 4})
    assert len(visualization.plot_candidates(fourth).data) > 1


def test_a_winner_that_is_no_candidate_has_its_place_too():
    study = searched_study(selection={"candidates": 4})
    choose(
        study,
        frozen_recipe(study),
        Recorder(lambda task: 0.75 if task.loss.label == FINAL_MEAN else 0.5),
    )
    history = read_history(study)
    info = _get_candidates_info(study, history)
    assert info.winner.trial is None
    assert info.coordinates.shape == (POPULATION * GENERATIONS, 2)
    distances = np.linalg.norm(info.coordinates - info.winner_place, axis=1)
    assert distances.min() > 0
    drawn = traces(visualization.plot_candidates(study))
    assert "winner, the mean of the final<br>distribution" in drawn
    curves = traces(visualization.plot_loss_functions(study))
    assert "winner, the mean of the final<br>distribution" in curves


def test_canonical_coordinates_are_the_order_of_the_canonical_form(history):
    parameters = [c.parameters for c in history.candidates]
    points = _points(history, parameters, "canonical")
    exact = np.array([to_canonical(p) for p in parameters])
    assert points.shape == (POPULATION * GENERATIONS, 4)
    np.testing.assert_allclose(points.mean(axis=0), 0, atol=1e-9)
    np.testing.assert_array_equal(points.argsort(axis=0), exact.argsort(axis=0))


def test_candidates_refuse_what_does_not_exist(study):
    with pytest.raises(ValueError, match="space must be one of theta, canonical, not 'pca'"):
        visualization.plot_candidates(study, space="pca")
    fourth = searched_study(6, loss={"order": 4})
    with pytest.raises(ValueError, match="not allowed for order 4"):
        visualization.plot_candidates(fourth, space="canonical")


def test_search_state_is_the_samplers(study):
    info = _get_search_state_info(study)
    states = study.sampler.search_state(study)
    assert info.generations == list(range(GENERATIONS + 1))
    assert info.sigma == [state.sigma for state in states]
    assert info.condition_number[0] == pytest.approx(1)
    ratios = [
        (long / short_) ** 2
        for short_, long in zip(info.axis_lengths[0], info.axis_lengths[-1], strict=True)
    ]
    assert info.condition_number == pytest.approx(ratios)


def test_comparison_is_a_forest_of_differences():
    verdict = made_verdict()
    leads = _get_comparison_info(verdict)
    # A loss of which no training came to an end has no lead, nor has the evolved loss over itself.
    assert [lead.sample.name for lead in leads] == ["ce", "ce-tuned", "baikal-cma", "ce-scaled"]
    figure = visualization.plot_comparison(verdict)
    drawn = traces(figure)
    for name, expected in (("baseline", leads[:3]), ("control of scale", leads[3:])):
        trace = drawn[name]
        found = [lead.contrast for lead in expected]
        assert list(trace.x) == pytest.approx([c.difference for c in found], abs=1e-5)
        highs = np.add(trace.x, trace.error_x.array)
        assert list(highs) == pytest.approx([c.high for c in found], abs=1e-4)
        lows = np.subtract(trace.x, trace.error_x.arrayminus)
        assert list(lows) == pytest.approx([c.low for c in found], abs=1e-4)
    low, high = figure.layout.xaxis.range
    assert low < 0 < min(highs) <= high
    # A line at 0 beside each interval.
    assert [(shape.x0, shape.x1) for shape in figure.layout.shapes] == [(0, 0)] * 4
    assert "right of 0 the evolved loss is better" in figure.layout.xaxis.title.text
    smaller = visualization.plot_comparison(dataclasses.replace(verdict, mode="min"))
    assert "left of 0 the evolved loss is better" in smaller.layout.xaxis.title.text


def test_labels_of_a_comparison_say_what_it_is_and_fit_on_a_telephone():
    verdict = made_verdict()
    long = dataclasses.replace(verdict.samples[1], label="a loss with a name " * 6, diverged=(1, 2))
    samples = (verdict.samples[0], long, *verdict.samples[2:])
    figure = visualization.plot_comparison(dataclasses.replace(verdict, samples=samples))
    texts = [annotation.text for annotation in figure.layout.annotations]
    lead = verdict.contrasts[0]
    assert f"{lead.difference:+.4f} ({lead.low:+.4f} to {lead.high:+.4f}), p = " in texts[0]
    assert "2 of 4 diverged" in texts[0].replace("</b><br><b>", " ")
    assert max(len(re.sub("<.*?>", "", line)) for t in texts for line in t.split("<br>")) < 50
    assert "2 failed" in texts[2]  # of an earlier version
    # Rows do not overlap: each has the room of its lines and of its interval.
    places = sorted(annotation.y for annotation in figure.layout.annotations)
    lines = [text.count("<br>") + 1 for text in texts]
    gaps = np.diff(places)
    assert all(gap > 17 * n for gap, n in zip(gaps, lines[1:], strict=True))


def test_a_comparison_of_nothing_is_empty():
    verdict = made_verdict()
    for samples in (verdict.samples[4:5], verdict.samples):
        nothing = dataclasses.replace(verdict, samples=samples, contrasts=())
        with pytest.warns(UserWarning, match="no two losses have trainings"):
            assert not visualization.plot_comparison(nothing).data


def test_data_fractions_are_means_with_deviations():
    results = {"a": {1.0: [0.9, 0.92], 0.01: [0.5]}, "b": {0.1: [0.7, 0.8, 0.9]}, "c": {0.5: []}}
    first, second = _get_data_fractions_info(results)
    assert first.fractions == [0.01, 1.0]
    assert first.means == pytest.approx([0.5, 0.91])
    assert first.stds == pytest.approx([0.0, statistics.stdev([0.9, 0.92])])
    assert second.counts == [3]
    figure = visualization.plot_data_fractions(results)
    assert figure.layout.xaxis.type == "log"
    assert figure.data[0].marker.symbol != figure.data[1].marker.symbol
    with pytest.raises(ValueError, match=r"results\['a'\] has fraction 10, not in \(0, 1\]"):
        visualization.plot_data_fractions({"a": {10: [0.9]}})
    with pytest.warns(UserWarning, match="no results"):
        assert not visualization.plot_data_fractions({}).data


@pytest.mark.parametrize("low", [3e-9, 0.0007, 0.97, 1.0, 1.23, 40.0])
@pytest.mark.parametrize("factor", [1.0, 1.01, 1.7, 3.1, 9.0, 30.0, 2e3, 1e9, 1e17])
@pytest.mark.parametrize("most", [4, 6])
def test_ticks_of_logarithmic_axes_are_several_and_keep_apart(low, factor, most):
    axis = log_axis([low, low * factor], most=most)
    begin, end = axis["range"]
    assert begin < math.log10(low) <= math.log10(low * factor) < end
    places = [math.log10(tick) for tick in axis["tickvals"]]
    assert 2 <= len(places) <= most
    assert len(set(axis["ticktext"])) == len(places)
    assert begin <= places[0] < places[-1] <= end
    assert min(np.diff(places)) > 0.09 * (end - begin)


def test_every_logarithmic_axis_has_ticks_of_ours(study):
    figures = [
        visualization.plot_search_state(study),
        visualization.plot_data_fractions({"a": {0.01: [0.5], 0.012: [0.5], 0.1: [0.6], 1: [0.9]}}),
    ]
    axes = [axis for f in figures for axis in (*f.select_xaxes(), *f.select_yaxes())]
    logarithmic = [axis for axis in axes if axis.type == "log"]
    assert len(logarithmic) == 4
    assert all(len(axis.tickvals) >= 2 for axis in logarithmic)
    assert list(logarithmic[-1].tickvals) == [0.012, 0.1, 1]  # 1 % would touch 1.2 %


def test_learning_curves_are_means_over_the_trainings_of_the_verdict():
    study = searched_study()
    seeds = {}

    def value(task, step):
        place = seeds.setdefault(task.seed, len(seeds))  # 0, 1 and 2
        return (0.5 if task.loss.name == "winner" else 0.2) + step / 10_000 + 0.01 * place

    verdict = verdict_with_curves(study, value)
    drawn = traces(visualization.plot_learning_curves(study))
    labels = {sample.role: sample.label for sample in verdict.samples}
    assert list(drawn) == [
        "evolved loss",
        labels[Role.REFERENCE],
        style.wrapped(max(verdict.samples[2:4], key=lambda s: s.mean).label),
    ]
    line = drawn["evolved loss"]
    assert list(line.x) == [100, 500, 1000]
    assert list(line.y) == pytest.approx([0.52, 0.56, 0.61])
    assert list(line.customdata) == pytest.approx([0.01] * 3)
    assert "3 trainings" in line.hovertemplate
    bands = [t for t in visualization.plot_learning_curves(study).data if t.fill == "toself"]
    assert list(bands[0].y) == pytest.approx([0.51, 0.55, 0.60, 0.62, 0.57, 0.53])


def test_trainings_of_earlier_versions_have_no_curves():
    study = searched_study()
    with pytest.warns(UserWarning, match="no verdict"):
        assert not visualization.plot_learning_curves(study).data
    verdict = verdict_with_curves(study, lambda task, step: None)
    with pytest.warns(UserWarning, match="without recording"):
        assert not visualization.plot_learning_curves(study).data
    older = dataclasses.replace(
        verdict, samples=tuple(dataclasses.replace(s, keys=()) for s in verdict.samples)
    )
    with pytest.warns(UserWarning, match="without recording"):
        assert not visualization.plot_learning_curves(study, verdict=older).data


def test_curves_of_some_trainings_are_drawn_and_counted():
    study = searched_study()
    first = {}

    def value(task, step):
        mine = first.setdefault(task.loss.label, task.seed) == task.seed
        return 0.1 + step / 10_000 if mine else None

    verdict_with_curves(study, value)
    figure = visualization.plot_learning_curves(study)
    assert "1 of 3 trainings" in traces(figure)["evolved loss"].hovertemplate
    assert not [trace for trace in figure.data if trace.fill]


def test_curves_with_other_steps_are_interpolated():
    sample_ = sample("winner", "evolved loss", (0.9, 0.9))
    recorded = RecordedCurves(sample_, (((100, 0.1), (300, 0.3), (400, 0.4)), ((200, 0), (400, 0))))
    curve = _mean_curve(recorded)
    assert curve.steps == [300, 400]
    assert curve.means == pytest.approx([0.15, 0.2])


def test_sweeps_are_drawn_as_they_were_kept():
    study = searched_study()
    evaluation_study = optuna.create_study(
        study_name=evaluation_study_name(study.study_name), storage=study._storage
    )
    with pytest.warns(UserWarning, match="no such sweep"):
        assert not visualization.plot_sweep(study).data
    accuracies = {"evolved loss": {0.0: [0.9, 0.92], 0.4: [0.8]}, "cross-entropy": {0.0: [0.9]}}
    data = DataSweep(accuracies, {label: {0.0: 0} for label in accuracies}, None)
    save_sweep(evaluation_study, SavedSweep("label_noise", "test_accuracy", data, loss="trial 3"))
    agreements = (RankAgreement(100, 1000, 0.5, 0.1, 8), RankAgreement(500, 1000, 0.9, 0.01, 8))
    save_sweep(evaluation_study, SavedSweep("length", "steps", agreements=agreements))
    kept = load_sweeps(evaluation_study)
    assert [sweep.over for sweep in kept] == ["label_noise", "length"]
    assert kept[0].data == data
    assert kept[1].agreements == agreements
    noise = visualization.plot_sweep(study, over="label_noise")
    assert list(traces(noise)["evolved loss"].x) == [0.0, 0.4]
    assert list(traces(noise)["evolved loss"].y) == pytest.approx([0.91, 0.8])
    assert "wrong" in noise.layout.xaxis.title.text
    length = visualization.plot_sweep(study, over="length")
    assert list(length.data[0].y) == [0.5, 0.9]
    with pytest.raises(ValueError, match="over must be one of fraction, label_noise, length"):
        visualization.plot_sweep(study, over="weather")


def test_a_sweep_of_another_version_is_none():
    evaluation_study = optuna.create_study()
    evaluation_study.set_user_attr(SWEEP + "fraction", {"something": "else"})
    assert load_sweeps(evaluation_study) == []


def linear_task():
    """A net that solves its task exactly, and the task."""
    torch.manual_seed(0)
    inputs = torch.randn(400, 6)
    net = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3))
    with torch.no_grad():
        return net, (inputs, net.eval()(inputs).argmax(dim=1))


def test_basin_is_highest_at_the_trained_weights_and_leaves_them_alone():
    net, data = linear_task()
    net.train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    basin = accuracy_basin(net, data, points=9, tolerance=0)
    assert basin.accuracy.shape == (9, 9)
    assert basin.center == basin.accuracy[4, 4] == basin.accuracy.max() == 1.0
    assert basin.accuracy.min() < 0.9
    assert all(module.training for module in net.modules())
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    again = accuracy_basin(
        net, [(data[0][:150], data[1][:150]), (data[0][150:], data[1][150:])], points=9, tolerance=0
    )
    np.testing.assert_array_equal(basin.accuracy, again.accuracy)


def test_basin_does_not_depend_on_the_scale_of_filters():
    # Without biases, scaled weights are the same classifier; so must be its surroundings.
    torch.manual_seed(1)
    net = nn.Linear(6, 3, bias=False)
    inputs = torch.randn(400, 6)
    labels = net(inputs).argmax(dim=1)
    one = accuracy_basin(net, (inputs, labels), points=5, tolerance=0)
    with torch.no_grad():
        net.weight.mul_(64)
    large = accuracy_basin(net, (inputs, labels), points=5, tolerance=0)
    np.testing.assert_array_equal(one.accuracy, large.accuracy)


def test_basin_stops_early_only_where_accuracy_is_certain_enough():
    net, data = linear_task()
    exact = accuracy_basin(net, data, points=9, tolerance=0)
    quick = accuracy_basin(net, data, points=9, tolerance=0.03)
    assert (exact.accuracy != quick.accuracy).any()
    assert np.abs(exact.accuracy - quick.accuracy).max() < 4 * 0.03
    assert quick.center == exact.center
    # 0.03 takes 277 inputs at an accuracy of one half; 0.02 would take more than there are.
    whole = accuracy_basin(net, data, points=9, tolerance=0.02)
    uncertain = np.abs(exact.accuracy - 0.5) < 0.1
    assert uncertain.any()
    np.testing.assert_array_equal(exact.accuracy[uncertain], whole.accuracy[uncertain])


def test_basin_refuses_bad_input():
    net, (inputs, labels) = linear_task()
    with pytest.raises(ValueError, match="points must be an integer of at least 2, not 1"):
        accuracy_basin(net, (inputs, labels), points=1)
    with pytest.raises(ValueError, match=r"tolerance must be in \[0, 1\), not 1"):
        accuracy_basin(net, (inputs, labels), tolerance=1)
    with pytest.raises(ValueError, match="400 inputs and 399 labels"):
        accuracy_basin(net, (inputs, labels[1:]))
    with pytest.raises(ValueError, match="no batch"):
        accuracy_basin(net, [])


def test_basins_stand_side_by_side_on_one_scale():
    net, data = linear_task()
    figure = visualization.plot_basin({"evolved": net, "cross-entropy": net}, data, points=5)
    contours = [trace for trace in figure.data if trace.type == "contour"]
    assert [trace.name for trace in contours] == ["evolved", "cross-entropy"]
    assert {trace.coloraxis for trace in contours} == {"coloraxis"}
    assert (figure.layout.coloraxis.cmin, figure.layout.coloraxis.cmax) == (0, 1)
    assert len(figure.to_json()) < 100_000
    with pytest.warns(UserWarning, match="no models"):
        assert not visualization.plot_basin({}, data).data


def test_text_from_a_database_is_no_markup():
    verdict = made_verdict()
    bad = sample("ce", '<a href="javascript:alert(1)">x</a>', (0.9, 0.8))
    tested = contrasts(verdict.samples[0], [bad])
    figure = visualization.plot_comparison(
        type(verdict)((verdict.samples[0], bad), tested, "", "<b>metric</b>")
    )
    assert "<a" not in figure.layout.annotations[0].text
    assert "<b>" not in figure.layout.xaxis.title.text
    assert plain("a < b") == "a &lt; b"


def test_numbers_are_shortened_for_their_journey():
    assert short([0.123456789, None, 12345678.0], 3) == [0.123, None, 12300000.0]
    assert json.dumps(short([1 / 3])) == "[0.33333]"


def test_colors_are_those_that_all_can_tell_apart():
    okabe_ito = {
        "#E69F00",
        "#56B4E9",
        "#009E73",
        "#F0E442",
        "#0072B2",
        "#D55E00",
        "#CC79A7",
        "#000000",
    }
    assert set(CATEGORIES) < okabe_ito
    assert len(set(CATEGORIES)) == len(CATEGORIES)


def test_the_package_itself_does_not_load_plotly():
    code = "import sys, optuna_taylorglo.report.build; print('plotly' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_coefficient_is_labeled_by_what_it_multiplies():
    labels = ["c0  log(y) - x / y", "c1  log(y)", "c2  y", "c3  x / y", "c4  x", "c5  y"]
    assert _node_labels(BAIKAL) == labels


def test_trees_are_drawn_between_their_poles_and_those_without_values_left_out(
    study, history, monkeypatch
):
    trees = iter([BAIKAL, tree_from_prefix(["log", "-1"])] + [BAIKAL] * GENERATIONS)
    monkeypatch.setattr(candidates, "candidate_loss", lambda *_: TreeLoss(next(trees)))
    info = _get_loss_functions_info(history)
    assert info.generations == [0, *range(2, GENERATIONS)]
    y = np.array(info.probability)
    assert (y[0], y[-1]) == (0.01, 0.99)
    baikal = -(np.log(y) + np.log(1 - y) - 1 / y) / 2
    np.testing.assert_allclose(info.curves[0], baikal - baikal[-1], rtol=1e-9, atol=1e-9)
