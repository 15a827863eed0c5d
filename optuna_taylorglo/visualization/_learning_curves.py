"""How the evolved loss learns, beside cross-entropy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go
from optuna.study import Study

from optuna_taylorglo.recipes.load import settled_recipe
from optuna_taylorglo.study.open import find_evaluation_study
from optuna_taylorglo.verdict.compare import RecordedCurves, recorded_curves, shown_curves
from optuna_taylorglo.verdict.output import load_verdict
from optuna_taylorglo.verdict.statistics import Role, Verdict
from optuna_taylorglo.visualization import _style as style

TITLE = "Learning curves"

_COLORS = {
    Role.EVOLVED: (style.VERMILION, "solid"),
    Role.REFERENCE: ("#000000", "dash"),
    Role.BASELINE: (style.BLUE, "dot"),
}


@dataclass(frozen=True)
class LearningCurve:
    """One loss over the course of its trainings.

    Attributes:
        label: Its name.
        role: What it is in the comparison for.
        steps: Optimizer steps, ascending.
        means: Mean of the validation metric at each.
        stds: Sample standard deviation at each; 0 for a single training.
        n_curves: Trainings with a curve.
        n_trainings: Trainings of the verdict.
    """

    label: str
    role: Role
    steps: list[int]
    means: list[float]
    stds: list[float]
    n_curves: int
    n_trainings: int


def _get_learning_curves_info(evaluation_study: Study, verdict: Verdict) -> list[LearningCurve]:
    shown = shown_curves(recorded_curves(evaluation_study, verdict), verdict.mode)
    return [_mean_curve(recorded) for recorded in shown]


def _mean_curve(recorded: RecordedCurves) -> LearningCurve:
    """The mean over trainings; one that was validated at fewer steps is interpolated between."""
    curves = [np.array(curve) for curve in recorded.curves]
    begin = max(curve[0, 0] for curve in curves)
    end = min(curve[-1, 0] for curve in curves)
    steps = max(curves, key=len)[:, 0]
    steps = steps[(steps >= begin) & (steps <= end)]
    values = np.array([np.interp(steps, curve[:, 0], curve[:, 1]) for curve in curves])
    return LearningCurve(
        recorded.sample.label,
        recorded.sample.role,
        steps.astype(int).tolist(),
        values.mean(axis=0).tolist(),
        (values.std(axis=0, ddof=1) if len(curves) > 1 else np.zeros(len(steps))).tolist(),
        len(curves),
        len(recorded.sample.values),
    )


def plot_learning_curves(study: Study, *, verdict: Verdict | None = None) -> go.Figure:
    """Plot the validation metric over the full trainings of the evolved loss and of others.

    The others are cross-entropy and the best of the verdict's tuned baselines. Lines are means over
    the verdict's trainings, bands one sample standard deviation each way. Trainings that were made
    by earlier versions, or that diverged, have no curve.

    Args:
        study: A study of a TaylorGLO search.
        verdict: Its verdict; the newest unless given.

    Returns:
        The figure; empty, with a warning, if there is nothing to plot.

    Examples:
        >>> import optuna
        >>> from optuna_taylorglo.visualization import plot_learning_curves
        >>> study = optuna.load_study(study_name="digits_mlp", storage="sqlite:///taylorglo.db")
        >>> figure = plot_learning_curves(study)
        >>> [trace.name for trace in figure.data if trace.name]
        ['evolved loss', 'cross-entropy', 'cross-entropy, learning rate 0.005<br>(tuned)']
    """
    recipe, evaluation_study = settled_recipe(study), find_evaluation_study(study)
    if evaluation_study is not None and verdict is None:
        verdict = load_verdict(evaluation_study)
    if recipe is None or evaluation_study is None or verdict is None:
        return style.nothing_to_plot(TITLE, "there is no verdict yet.")
    curves = _get_learning_curves_info(evaluation_study, verdict)
    if not curves:
        return style.nothing_to_plot(
            TITLE, "the verdict's trainings were made without recording any."
        )
    figure = style.new_figure(TITLE)
    for curve in curves:
        _add_band(figure, curve)
    for curve in curves:
        _add_mean(figure, curve)
    smaller = ", smaller is better" if recipe.fitness.mode == "min" else ""
    figure.update_xaxes(
        title_text="optimizer step", range=[0, 1.01 * max(c.steps[-1] for c in curves)]
    )
    figure.update_yaxes(title_text=f"{style.plain(recipe.fitness.metric)}{smaller}")
    return figure.update_layout(legend=style.LEGEND_BELOW)


def _add_band(figure: go.Figure, curve: LearningCurve) -> None:
    if not any(curve.stds):
        return
    low, high = (
        [m + sign * s for m, s in zip(curve.means, curve.stds, strict=True)] for sign in (-1, 1)
    )
    figure.add_scatter(
        x=[*curve.steps, *reversed(curve.steps)],
        y=style.short([*low, *reversed(high)]),
        fill="toself",
        fillcolor=style.translucent(_COLORS[curve.role][0], 0.13),
        line={"width": 0},
        mode="lines",
        hoverinfo="skip",
        showlegend=False,
    )


def _add_mean(figure: go.Figure, curve: LearningCurve) -> None:
    color, dash = _COLORS[curve.role]
    label = style.plain(curve.label)
    of_how_many = (
        f"{curve.n_curves}"
        if curve.n_curves == curve.n_trainings
        else f"{curve.n_curves} of {curve.n_trainings}"
    )
    figure.add_scatter(
        x=curve.steps,
        y=style.short(curve.means),
        mode="lines",
        name=style.wrapped(curve.label),
        line={"color": color, "dash": dash, "width": 2.5},
        customdata=style.short(curve.stds, 3),
        hovertemplate=f"{label}<br>step %{{x}}: %{{y:.4f}} (sd %{{customdata:.4f}}, {of_how_many} "
        "trainings)<extra></extra>",
    )
