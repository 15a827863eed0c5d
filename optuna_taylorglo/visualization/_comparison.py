"""The verdict as a forest plot: the evolved loss's lead over each of the others."""

from __future__ import annotations

import textwrap

import plotly.graph_objects as go

from optuna_taylorglo.verdict.statistics import Contrast, Sample, Verdict
from optuna_taylorglo.visualization import _style as style

TITLE = "Evolved loss against the others"

_WIDTH = 46
"""Characters of a label's line that fit on a phone."""


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
        return style.nothing_to_plot(TITLE, "no two losses have trainings that can be compared.")
    labels = ["<br>".join(_label(*lead)) for lead in leads]
    row = 45 + 16 * max(label.count("<br>") for label in labels)
    figure = style.apply(go.Figure(), TITLE, height=row * len(leads) + 200)
    for name, color, symbol, is_baseline in (
        ("baseline", style.BLUE, "square", True),
        ("control of scale", style.GRAY, "diamond", False),
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
            text=label,
            align="left",
            x=0,
            xref="paper",
            xanchor="left",
            y=i,
            yshift=8,
            yanchor="bottom",
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
    return figure.update_layout(margin_l=20, legend_y=-120 / (row * len(leads)))


def _label(sample: Sample, contrast: Contrast) -> list[str]:
    """Lines that say what the evolved loss is compared with, and the result."""
    diverged = len(sample.diverged)
    ended = f", {diverged} of {len(sample.values)} diverged" if diverged else ""
    named = textwrap.wrap(sample.label + ended, _WIDTH, break_on_hyphens=False)
    p = "p < 0.0001" if contrast.p_holm < 0.0001 else f"p = {contrast.p_holm:.2g}"
    interval = f"{contrast.difference:+.4f} ({contrast.low:+.4f} to {contrast.high:+.4f})"
    return [*(f"<b>{style.plain(line)}</b>" for line in named), f"{interval}, {p}"]
