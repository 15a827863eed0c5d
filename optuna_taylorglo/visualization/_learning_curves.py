"""Validation metric over the full trainings of a verdict."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from optuna.study import Study

from optuna_taylorglo.losses.expansion import FloatArray
from optuna_taylorglo.recipes.load import settled_recipe
from optuna_taylorglo.study.open import find_evaluation_study
from optuna_taylorglo.verdict.compare import Curve, learning_curves
from optuna_taylorglo.verdict.output import load_verdict
from optuna_taylorglo.verdict.statistics import Role, Verdict
from optuna_taylorglo.visualization import _style as style

TITLE = "Learning curves"

_LINES = {
    Role.EVOLVED: {"color": style.VERMILION},
    Role.REFERENCE: {"color": "black", "dash": "dash"},
    Role.BASELINE: {"color": style.BLUE, "dash": "dot"},
}


def plot_learning_curves(study: Study, *, verdict: Verdict | None = None) -> go.Figure:
    """Plot the validation metric over the full trainings of the evolved loss and of others.

    The others are cross-entropy and the best of the verdict's other baselines. Lines are means over
    the verdict's trainings, bands one sample standard deviation each way. Trainings that diverged
    have no curve.

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
    shown = learning_curves(evaluation_study, verdict)
    if not shown:
        return style.nothing_to_plot(TITLE, "the verdict's trainings recorded no curves.")
    figure = style.apply(go.Figure(), TITLE)
    for sample, curves in shown:
        steps, means, stds = (values.tolist() for values in _mean_curve(curves))
        line, n_curves = _LINES[sample.role], len(curves)
        if n_curves > 1:
            low, high = (
                [m + sign * s for m, s in zip(means, stds, strict=True)] for sign in (-1, 1)
            )
            style.add_band(figure, steps, low, high, line["color"])
        figure.add_scatter(
            x=steps,
            y=means,
            mode="lines",
            name=style.wrapped(sample.label),
            line=line | {"width": 2.5},
            customdata=stds,
            hovertemplate=f"{style.plain(sample.label)}<br>step %{{x}}: %{{y:.4f}} "
            f"(sd %{{customdata:.4f}}, {n_curves} of {len(sample.values)} trainings)"
            "<extra></extra>",
        )
    smaller = ", smaller is better" if recipe.fitness.mode == "min" else ""
    figure.update_xaxes(title_text="optimizer step", rangemode="tozero")
    return figure.update_yaxes(title_text=f"{style.plain(recipe.fitness.metric)}{smaller}")


def _mean_curve(recorded: list[Curve]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Steps, means and sample standard deviations over trainings.

    Curves with fewer validations are interpolated; only steps that all of them span count.
    """
    curves = [np.array(curve, dtype=float) for curve in recorded]
    steps = max(curves, key=len)[:, 0]
    begin, end = max(curve[0, 0] for curve in curves), min(curve[-1, 0] for curve in curves)
    steps = steps[(steps >= begin) & (steps <= end)]
    values = np.array([np.interp(steps, curve[:, 0], curve[:, 1]) for curve in curves])
    stds = values.std(axis=0, ddof=1) if len(curves) > 1 else np.zeros_like(steps)
    return steps, values.mean(axis=0), stds
