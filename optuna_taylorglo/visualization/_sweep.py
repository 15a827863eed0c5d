"""One setting varied: losses over shares of the data, or short evaluations against long ones."""

from __future__ import annotations

import statistics

import plotly.graph_objects as go
from optuna.study import Study

from optuna_taylorglo.study.open import find_evaluation_study
from optuna_taylorglo.verdict.sweep import SETTINGS, DataSweep, SavedSweep, load_sweeps
from optuna_taylorglo.visualization import _style as style

TITLES = {
    "fraction": "Less training data",
    "label_noise": "Wrong labels",
    "length": "Do short evaluations rank as long ones do?",
}

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


def draw_sweep(sweep: SavedSweep) -> go.Figure:
    """Draw a sweep."""
    figure = style.apply(go.Figure(), TITLES[sweep.over])
    return _add_agreement(figure, sweep) if sweep.data is None else _add_shares(figure, sweep)


def _add_shares(figure: go.Figure, sweep: SavedSweep) -> go.Figure:
    assert isinstance(sweep.data, DataSweep)
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
