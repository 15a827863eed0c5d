"""The verdict as bars."""

from __future__ import annotations

import math
from dataclasses import dataclass

import plotly.graph_objects as go
from scipy import stats

from optuna_taylorglo.verdict.statistics import Verdict
from optuna_taylorglo.visualization._style import (
    BLUE,
    GREY,
    LEGEND_BELOW,
    VERMILION,
    new_figure,
    nothing_to_plot,
    plain,
    short,
)

TITLE = "Full trainings on the test set"

_CONTROLS = ("winner-normalised", "ce-scaled")
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Bar:
    """One loss of a comparison.

    Attributes:
        label: Its name for people.
        role: "evolved", "baseline" or "control".
        values: Accuracy of each training.
        mean: Their mean.
        half_width: Half the 95 % confidence interval of the mean (Student's t); 0 for one value.
        failed: Trainings that did not come to an end.
        significance: What is to be said about the evolved loss against this one.
    """

    label: str
    role: str
    values: tuple[float, ...]
    mean: float
    half_width: float
    failed: int
    significance: str


def _get_comparison_info(verdict: Verdict) -> list[Bar]:
    contrasts = {contrast.against: contrast for contrast in verdict.contrasts}
    bars = []
    for i, sample in enumerate(verdict.samples):
        if not sample.values:
            continue
        contrast = contrasts.get(sample.name)
        bars.append(
            Bar(
                label=sample.label,
                role="evolved" if i == 0 else "control" if sample.name in _CONTROLS else "baseline",
                values=sample.values,
                mean=sample.mean,
                half_width=_half_width(sample.std, len(sample.values)),
                failed=sample.failed,
                significance=""
                if contrast is None
                else f"{contrast.difference:+.4f}, {_p(contrast.p_holm)}",
            )
        )
    return bars


def _half_width(std: float, n: int) -> float:
    return float(stats.t.ppf((1 + _CONFIDENCE) / 2, n - 1)) * std / math.sqrt(n) if n > 1 else 0.0


def _p(value: float) -> str:
    return "p < 0.0001" if value < 0.0001 else f"p = {value:.2g}"


def plot_comparison(verdict: Verdict) -> go.Figure:
    """Plot a verdict: mean, 95 % interval and every training of each loss, with p-values.

    Beside each bar stands the evolved loss's lead over it, and the p-value, corrected by Holm's
    method, of the one-tailed Welch test that the lead is real. The axis is cut off so that the
    differences can be seen, and says so.

    Args:
        verdict: What `taylorglo evaluate` found.
    """
    bars = _get_comparison_info(verdict)
    if not bars:
        return nothing_to_plot(TITLE, "no training came to an end.")
    start, end = _axis(bars)
    figure = new_figure(TITLE, height=max(360, 150 + 52 * len(bars)))
    colours = {"evolved": VERMILION, "baseline": BLUE, "control": GREY}
    names = {"evolved": "evolved loss", "baseline": "baseline", "control": "control of scale"}
    for role, colour in colours.items():
        rows = [i for i, bar in enumerate(bars) if bar.role == role]
        if not rows:
            continue
        figure.add_bar(
            x=short((bars[i].mean - start for i in rows), 6),
            y=rows,
            base=start,
            orientation="h",
            width=0.6,
            name=names[role],
            # Its row says what it is, and three entries fit in one line.
            showlegend=role != "evolved",
            marker={"color": colour, "opacity": 0.45, "line": {"color": colour, "width": 1}},
            error_x={
                "type": "data",
                "array": short(bars[i].half_width for i in rows),
                "color": "#222222",
                "thickness": 1.8,
                "width": 6,
            },
            customdata=[[bars[i].mean, bars[i].half_width, len(bars[i].values)] for i in rows],
            hovertemplate="mean %{customdata[0]:.4f} ± %{customdata[1]:.4f} (95 % interval), "
            "%{customdata[2]} trainings<extra></extra>",
        )
    figure.add_scatter(
        x=short(value for bar in bars for value in bar.values),
        y=[i - 0.2 for i, bar in enumerate(bars) for _ in bar.values],
        mode="markers",
        name="one training",
        marker={"color": "#222222", "size": 5, "opacity": 0.55, "symbol": "line-ns-open"},
        hovertemplate="one training: %{x:.4f}<extra></extra>",
    )
    for i, bar in enumerate(bars):
        figure.add_annotation(
            x=1.01,
            xref="paper",
            y=i,
            text=bar.significance or ("its lead, with p (Holm)" if i == 0 else ""),
            showarrow=False,
            xanchor="left",
            font={"size": 12, "color": GREY if i == 0 else "#222222"},
        )
    figure.update_yaxes(
        tickvals=list(range(len(bars))),
        ticktext=[_tick(bar) for bar in bars],
        range=[len(bars) - 0.45, -0.55],
        showgrid=False,
        ticks="",
    )
    figure.update_xaxes(
        title_text=plain(verdict.test_metric)
        + (f" (the axis begins at {start:.3g}, not at 0)" if start else ""),
        range=[start, end],
    )
    return figure.update_layout(margin={"r": 170}, barmode="overlay", legend=LEGEND_BELOW)


def _axis(bars: list[Bar]) -> tuple[float, float]:
    """Where the axis begins and ends: around values and intervals, but not below 0 in vain."""
    values = [value for bar in bars for value in bar.values]
    lowest = min(min(values), *(bar.mean - bar.half_width for bar in bars))
    highest = max(max(values), *(bar.mean + bar.half_width for bar in bars))
    if min(values) >= 0 and max(values) <= 1:
        # An interval of a few scattered accuracies reaches where no accuracy can be.
        lowest, highest = max(lowest, 0.0), min(highest, 1.0)
    span = highest - lowest or 0.01
    start = lowest - 0.1 * span
    return (start if min(values) < 0 else max(start, 0.0)), highest + 0.05 * span


def _tick(bar: Bar) -> str:
    label = plain(bar.label)
    if len(bar.label) > 24 and ", " in bar.label:
        first, _, rest = bar.label.partition(", ")
        label = f"{plain(first)},<br>{plain(rest)}"
    return label + (f"<br>({bar.failed} failed)" if bar.failed else "")
