"""One setting varied: the evolved loss beside cross-entropy, or short evaluations beside long."""

from __future__ import annotations

import plotly.graph_objects as go
from optuna.study import Study

from optuna_taylorglo.study.open import find_evaluation_study
from optuna_taylorglo.verdict.output import SETTINGS, SavedSweep, load_sweeps
from optuna_taylorglo.visualization import _style as style
from optuna_taylorglo.visualization._data_fractions import SettingAxis, draw_data_sweep

TITLES = {
    "fraction": "Less training data",
    "label_noise": "Wrong labels",
    "length": "Do short evaluations rank as long ones do?",
}

_AXES = {
    "fraction": SettingAxis("share of the training data", factors=True),
    "label_noise": SettingAxis("share of wrong training labels"),
}


def plot_sweep(study: Study, *, over: str = "fraction") -> go.Figure:
    """Plot what the newest ``taylorglo sweep`` over a setting came to.

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
        return style.nothing_to_plot(TITLES[over], "there was no such sweep yet.")
    return draw_sweep(sweep)


def draw_sweep(sweep: SavedSweep) -> go.Figure:
    """The figure of a sweep."""
    title = TITLES[sweep.over]
    if sweep.data is None:
        return _draw_agreement(title, sweep)
    return draw_data_sweep(title, sweep.data.accuracies, sweep.measured, _AXES[sweep.over])


def _draw_agreement(title: str, sweep: SavedSweep) -> go.Figure:
    agreements = sorted(sweep.agreements, key=lambda agreement: agreement.length)
    if not agreements:
        return style.nothing_to_plot(title, "no two lengths were compared.")
    figure = style.new_figure(title)
    lengths = [agreement.length for agreement in agreements]
    figure.add_scatter(
        x=lengths,
        y=style.short(agreement.spearman for agreement in agreements),
        mode="lines+markers",
        line={"color": style.BLUE, "width": 2},
        marker={"size": 9},
        customdata=[[a.p_value, a.n_candidates] for a in agreements],
        hovertemplate="%{x}: %{y:.3f} (p = %{customdata[0]:.2g}, %{customdata[1]} candidates)"
        "<extra></extra>",
        showlegend=False,
    )
    unit = style.plain(sweep.measured)
    figure.update_xaxes(
        title_text=f"{unit} of the shorter evaluation<br>(the longest has {agreements[0].longest})"
    )
    if len(lengths) > 1 and lengths[-1] >= 5 * lengths[0]:
        figure.update_xaxes(**style.log_axis(lengths))
    lowest = min([0.0, *(a.spearman for a in agreements if a.spearman == a.spearman)])
    figure.update_yaxes(title_text="rank correlation (Spearman)", range=[lowest - 0.03, 1.03])
    return figure
