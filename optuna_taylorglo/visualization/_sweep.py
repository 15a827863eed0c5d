"""One setting varied: losses over shares of the data, or short evaluations against long ones."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
from optuna.study import Study

from optuna_taylorglo.study.open import find_evaluation_study
from optuna_taylorglo.verdict.sweep import SETTINGS, SavedSweep, load_sweeps
from optuna_taylorglo.visualization import _style as style

TITLES = {
    "fraction": "Less training data",
    "label_noise": "Wrong labels",
    "length": "Do short evaluations rank as long ones do?",
}

_FRACTION = "share of the training data"
_MARKERS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star")
_DASHES = ("solid", "dash", "dot")


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
        return style.nothing_to_plot(TITLES[over], "no such sweep was made yet.")
    return draw_sweep(sweep)


def plot_data_fractions(
    results: Mapping[str, Mapping[float, Sequence[float]]], *, metric: str = "test accuracy"
) -> go.Figure:
    """Plot accuracy against the fraction of the training data, one curve per loss.

    Error bars are one sample standard deviation each way.

    Args:
        results: Label of a loss → fraction in (0, 1] → accuracy of each training.
        metric: What the values are.

    Returns:
        The figure; empty, with a warning, if there is nothing to plot.

    Raises:
        ValueError: If a fraction is not in (0, 1].

    Examples:
        >>> from optuna_taylorglo.visualization import plot_data_fractions
        >>> results = {"evolved loss": {0.5: [0.95, 0.96], 1.0: [0.97, 0.98]}}
        >>> figure = plot_data_fractions(results | {"cross-entropy": {0.5: [0.90], 1.0: [0.96]}})
        >>> [trace.name for trace in figure.data]
        ['evolved loss', 'cross-entropy']
    """
    for label, by_fraction in results.items():
        for fraction in by_fraction:
            if not 0 < fraction <= 1:
                raise ValueError(f"results[{label!r}] has fraction {fraction!r}, not in (0, 1].")
    return _draw_shares("Accuracy with less training data", results, metric, _FRACTION)


def draw_sweep(sweep: SavedSweep) -> go.Figure:
    """Draw a sweep."""
    title = TITLES[sweep.over]
    if sweep.data is None:
        return _draw_agreement(title, sweep)
    setting = _FRACTION if sweep.over == "fraction" else "share of wrong training labels"
    return _draw_shares(title, sweep.data.accuracies, sweep.measured, setting)


def _draw_shares(
    title: str,
    results: Mapping[str, Mapping[float, Sequence[float]]],
    metric: str,
    setting: str,
) -> go.Figure:
    curves = {label: {s: by[s] for s in sorted(by) if by[s]} for label, by in results.items()}
    shares = sorted({share for curve in curves.values() for share in curve})
    if not shares:
        return style.nothing_to_plot(title, "there are no results.")
    figure = style.apply(go.Figure(), title)
    for i, (label, curve) in enumerate((label, curve) for label, curve in curves.items() if curve):
        stds = [statistics.stdev(v) if len(v) > 1 else 0.0 for v in curve.values()]
        counts = [len(values) for values in curve.values()]
        figure.add_scatter(
            x=list(curve),
            y=[statistics.fmean(values) for values in curve.values()],
            mode="lines+markers",
            name=style.wrapped(label),
            line={"dash": _DASHES[i % len(_DASHES)]},
            marker={"symbol": _MARKERS[i % len(_MARKERS)], "size": 8},
            error_y={"array": stds, "thickness": 1.3},
            customdata=list(zip(stds, counts, strict=True)),
            hovertemplate=f"{style.plain(label)}<br>{setting} %{{x:.3~%}}: %{{y:.4f}} "
            "(sd %{customdata[0]:.4f}, %{customdata[1]} trainings)<extra></extra>",
        )
    figure.update_xaxes(title_text=setting, tickformat="~%")
    if shares[0] > 0 and shares[-1] >= 20 * shares[0]:
        figure.update_xaxes(type="log", tickvals=shares)
    return figure.update_yaxes(title_text=f"{style.plain(metric)} (mean ± sd)")


def _draw_agreement(title: str, sweep: SavedSweep) -> go.Figure:
    agreements = sorted(sweep.agreements, key=lambda agreement: agreement.length)
    if not agreements:
        return style.nothing_to_plot(title, "no two lengths were compared.")
    figure = style.apply(go.Figure(), title)
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
