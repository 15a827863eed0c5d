"""What full trainings say: the verdict as a forest plot, its learning curves, and sweeps."""

from __future__ import annotations

import statistics
import textwrap

import numpy as np
import plotly.graph_objects as go
from optuna.study import Study

from optuna_taylorglo.losses.expansion import FloatArray
from optuna_taylorglo.recipes.load import settled_recipe
from optuna_taylorglo.recipes.schema import FunctionRecipe
from optuna_taylorglo.study.open import find_evaluation_study
from optuna_taylorglo.verdict.compare import Curve, learning_curves
from optuna_taylorglo.verdict.output import load_verdict
from optuna_taylorglo.verdict.statistics import Contrast, Role, Sample, Verdict
from optuna_taylorglo.verdict.sweep import SETTINGS, SavedSweep, load_sweeps
from optuna_taylorglo.visualization import _style as style

COMPARISON = "Evolved loss against the others"
CURVES = "Learning curves"
SWEEPS = {
    "fraction": "Less training data",
    "label_noise": "Wrong labels",
    "length": "Do short evaluations rank as long ones do?",
}

_LINES = {
    Role.EVOLVED: {"color": style.VERMILION},
    Role.REFERENCE: {"color": "black", "dash": "dash"},
    Role.BASELINE: {"color": style.BLUE, "dash": "dot"},
}
_MARKERS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star")
_DASHES = ("solid", "dash", "dot")


def plot_comparison(verdict: Verdict) -> go.Figure:
    """Plot a verdict: the evolved loss's mean difference to each of the others.

    Each has its 95 % confidence interval and the p-value, corrected by Holm's method, of the
    one-tailed test that the evolved loss is better. Where an interval contains 0, the two may be
    equally good. Losses with fewer than two trainings are left out.

    Args:
        verdict: What `taylorglo evaluate` found.

    Returns:
        The figure; empty, with a warning, if there is nothing to plot.

    Examples:
        >>> import optuna
        >>> from optuna_taylorglo.study.open import find_evaluation_study
        >>> from optuna_taylorglo.verdict.output import load_verdict
        >>> from optuna_taylorglo.visualization import plot_comparison
        >>> study = optuna.load_study(study_name="digits_mlp", storage="sqlite:///taylorglo.db")
        >>> verdict = load_verdict(find_evaluation_study(study))
        >>> figure = plot_comparison(verdict)
        >>> [trace.name for trace in figure.data]
        ['baseline', 'control of scale']
    """
    contrasts = {contrast.against: contrast for contrast in verdict.contrasts}
    leads = [(s, contrasts[s.name]) for s in verdict.samples if s.name in contrasts]
    if not leads:
        return style.nothing_to_plot(
            COMPARISON, "no two losses have trainings that can be compared."
        )
    control = "control of scale" if verdict.scale_acts else "control of the learning rate"
    labels = ["<br>".join(_label(*lead)) for lead in leads]
    row = 45 + 16 * max(label.count("<br>") for label in labels)
    figure = style.apply(go.Figure(), COMPARISON, height=row * len(leads) + 200)
    for name, color, symbol, is_baseline in (
        ("baseline", style.BLUE, "square", True),
        (control, style.GRAY, "diamond", False),
    ):
        drawn = [(i, s, c) for i, (s, c) in enumerate(leads) if s.role.is_baseline == is_baseline]
        if drawn:
            figure.add_scatter(
                x=[c.difference for _, _, c in drawn],
                y=[i for i, _, _ in drawn],
                mode="markers",
                name=name,
                marker={"color": color, "symbol": symbol, "size": 10},
                error_x={
                    "array": [c.high - c.difference for _, _, c in drawn],
                    "arrayminus": [c.difference - c.low for _, _, c in drawn],
                    "thickness": 2.2,
                },
                customdata=[[c.low, c.high, s.mean] for _, s, c in drawn],
                hovertemplate="%{x:+.4f} (95 % interval %{customdata[0]:+.4f} to "
                "%{customdata[1]:+.4f}) against a mean of %{customdata[2]:.4f}<extra></extra>",
            )
    # Labels above their intervals: beside them there is no room on a phone.
    for i, label in enumerate(labels):
        figure.add_annotation(
            {"x": 0, "xref": "paper", "xanchor": "left", "y": i, "yshift": 8, "yanchor": "bottom"},
            text=label,
            align="left",
            showarrow=False,
            bgcolor="white",
            font_size=12,
        )
    figure.update_yaxes(range=[len(leads) - 0.5, -0.9], visible=False)
    better = "right" if verdict.mode == "max" else "left"
    figure.update_xaxes(
        title_text=f"{style.plain(verdict.test_metric)}: evolved loss minus the other<br>"
        f"({better} of 0 the evolved loss is better)",
        rangemode="tozero",
        nticks=7,
        showgrid=False,
        zeroline=True,
        zerolinecolor="#222222",
    )
    return figure.update_layout(margin_l=20, legend_y=-80 / (row * len(leads)))


def _label(sample: Sample, contrast: Contrast) -> list[str]:
    """Lines that say what the evolved loss is compared with, and the result."""
    diverged = len(sample.diverged)
    ended = f", {diverged} of {len(sample.values)} diverged" if diverged else ""
    named = textwrap.wrap(sample.label + ended, 46, break_on_hyphens=False)  # fits on a phone
    p = "p < 0.0001" if contrast.p_holm < 0.0001 else f"p = {contrast.p_holm:.2g}"
    interval = f"{contrast.difference:+.4f} ({contrast.low:+.4f} to {contrast.high:+.4f})"
    return [*(f"<b>{style.plain(line)}</b>" for line in named), f"{interval}, {p}"]


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
        >>> [trace.name for trace in figure.data if trace.name][:2]
        ['evolved loss', 'cross-entropy']
    """
    recipe, evaluation_study = settled_recipe(study), find_evaluation_study(study)
    if evaluation_study is not None and verdict is None:
        verdict = load_verdict(evaluation_study)
    if recipe is None or evaluation_study is None or verdict is None:
        return style.nothing_to_plot(CURVES, "there is no verdict yet.")
    shown = learning_curves(evaluation_study, verdict)
    if not shown:
        return style.nothing_to_plot(CURVES, "the verdict's trainings recorded no curves.")
    figure = style.apply(go.Figure(), CURVES)
    for sample, curves in shown:
        steps, means, stds = _mean_curve(curves)
        line, n_curves = _LINES[sample.role], len(curves)
        if n_curves > 1:
            style.add_band(figure, steps, means - stds, means + stds, line["color"])
        figure.add_scatter(
            x=steps.tolist(),
            y=means.tolist(),
            mode="lines",
            name=style.wrapped(sample.label),
            line=line | {"width": 2.5},
            customdata=stds.tolist(),
            hovertemplate=f"{style.plain(sample.label)}<br>step %{{x}}: %{{y:.4f}} "
            f"(sd %{{customdata:.4f}}, {n_curves} of {len(sample.values)} trainings)"
            "<extra></extra>",
        )
    # A function reports at steps of its own.
    step = "step" if isinstance(recipe, FunctionRecipe) else "optimizer step"
    figure.update_xaxes(title_text=step, rangemode="tozero")
    return figure.update_yaxes(title_text=style.metric(recipe.fitness))


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


def plot_sweep(study: Study, *, over: str = "fraction") -> go.Figure:
    """Plot the results of the newest ``taylorglo sweep`` over a setting.

    Over training data or label noise: mean and sample standard deviation of the evolved loss and of
    cross-entropy on the test set. Over lengths: rank correlation with the longest evaluations.

    Args:
        study: A study of a TaylorGLO search.
        over: "fraction", "label_noise" or "length".

    Returns:
        The figure; empty, with a warning, if there is nothing to plot.

    Raises:
        ValueError: If `over` is none of these.

    Examples:
        >>> import optuna
        >>> from optuna_taylorglo.visualization import plot_sweep
        >>> study = optuna.load_study(study_name="digits_mlp", storage="sqlite:///taylorglo.db")
        >>> figure = plot_sweep(study, over="label_noise")
        >>> figure.layout.xaxis.title.text
        'share of wrong training labels'
    """
    if over not in SETTINGS:
        raise ValueError(f"over must be one of {', '.join(SETTINGS)}, not {over!r}.")
    evaluation_study = find_evaluation_study(study)
    sweeps = [] if evaluation_study is None else load_sweeps(evaluation_study)
    sweep = next((sweep for sweep in sweeps if sweep.over == over), None)
    if sweep is None:
        return style.nothing_to_plot(SWEEPS[over], "no such sweep was made yet.")
    figure = style.apply(go.Figure(), SWEEPS[over])
    if sweep.data is None:
        return _add_agreement(figure, sweep)
    noise = sweep.over == "label_noise"
    setting = "share of wrong training labels" if noise else "share of the training data"
    for i, (label, results) in enumerate(sweep.data.accuracies.items()):
        shares = sorted(results)
        stds = [statistics.stdev(results[s]) if len(results[s]) > 1 else 0.0 for s in shares]
        figure.add_scatter(
            x=shares,
            y=[statistics.fmean(results[s]) for s in shares],
            mode="lines+markers",
            name=style.wrapped(label),
            line={"dash": _DASHES[i % len(_DASHES)]},
            marker={"symbol": _MARKERS[i % len(_MARKERS)], "size": 8},
            error_y={"array": stds, "thickness": 1.3},
            customdata=[(std, len(results[s])) for s, std in zip(shares, stds, strict=True)],
            hovertemplate=f"{style.plain(label)}<br>{setting} %{{x:.3~%}}: %{{y:.4f}} "
            "(sd %{customdata[0]:.4f}, %{customdata[1]} trainings)<extra></extra>",
        )
    figure.update_xaxes(title_text=setting, tickformat="~%")
    if shares[0] > 0 and shares[-1] >= 20 * shares[0]:
        figure.update_xaxes(type="log", tickvals=shares)
    return figure.update_yaxes(title_text=f"{style.plain(sweep.measured)} (mean ± sd)")


def _add_agreement(figure: go.Figure, sweep: SavedSweep) -> go.Figure:
    agreements = sorted(sweep.agreements, key=lambda agreement: agreement.length)
    lengths = [agreement.length for agreement in agreements]
    figure.add_scatter(
        x=lengths,
        y=[agreement.spearman for agreement in agreements],
        mode="lines+markers",
        marker={"size": 9},
        customdata=[(a.p_value, a.n_candidates) for a in agreements],
        hovertemplate="%{x}: %{y:.3f} (p = %{customdata[0]:.2g}, %{customdata[1]} candidates)"
        "<extra></extra>",
    )
    figure.update_xaxes(
        title_text=f"{style.plain(sweep.measured)} of the shorter evaluation<br>"
        f"(the longest has {agreements[0].longest})",
        type="log" if lengths[-1] >= 5 * lengths[0] else "linear",
        tickvals=lengths,
    )
    lowest = min([0.0, *(a.spearman for a in agreements if a.spearman == a.spearman)])
    return figure.update_yaxes(
        title_text="rank correlation (Spearman)", range=[lowest - 0.03, 1.03]
    )
