"""The verdict as bars."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass

import plotly.graph_objects as go
from scipy import stats

from optuna_taylorglo.verdict.statistics import Contrast, Role, Sample, Verdict
from optuna_taylorglo.visualization import _style as style

TITLE = "Full trainings on the test set"

_CONFIDENCE = 0.95

_LABEL_WIDTH = 40
"""Characters of a label's line: longer ones leave the bars no room."""


_ROLES = {
    Role.EVOLVED: ("evolved loss", style.VERMILION),
    Role.REFERENCE: ("baseline", style.BLUE),
    Role.BASELINE: ("baseline", style.BLUE),
    Role.SHAPE_CONTROL: ("control of scale", style.GREY),
    Role.SCALE_CONTROL: ("control of scale", style.GREY),
}


@dataclass(frozen=True)
class Bar:
    """One loss of a comparison.

    Attributes:
        sample: Its trainings, at least one.
        half_width: Half the 95 % confidence interval of the mean (Student's t); 0 for one value.
        contrast: The evolved loss against this one, if that was tested.
    """

    sample: Sample
    half_width: float
    contrast: Contrast | None

    @property
    def significance(self) -> str:
        """What is to be said about the evolved loss against this one."""
        if self.contrast is None:
            return ""
        return f"{self.contrast.difference:+.4f}, {_p(self.contrast.p_holm)}"


def _get_comparison_info(verdict: Verdict) -> list[Bar]:
    contrasts = {contrast.against: contrast for contrast in verdict.contrasts}
    return [
        Bar(s, _half_width(s.std, len(s.values)), contrasts.get(s.name))
        for s in verdict.samples
        if s.values
    ]


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
        return style.nothing_to_plot(TITLE, "no training came to an end.")
    start, end = _axis(bars)
    figure = style.new_figure(TITLE, height=max(360, 150 + 52 * len(bars)))
    for name, colour in dict.fromkeys(_ROLES.values()):
        rows = [i for i, bar in enumerate(bars) if _ROLES[bar.sample.role] == (name, colour)]
        if not rows:
            continue
        figure.add_bar(
            x=style.short((bars[i].sample.mean - start for i in rows), 6),
            y=rows,
            base=start,
            orientation="h",
            width=0.6,
            name=name,
            # Its row says what it is, and three entries fit in one line.
            showlegend=(name, colour) != _ROLES[Role.EVOLVED],
            marker={"color": colour, "opacity": 0.45, "line": {"color": colour, "width": 1}},
            error_x={
                "type": "data",
                "array": style.short(bars[i].half_width for i in rows),
                "color": "#222222",
                "thickness": 1.8,
                "width": 6,
            },
            customdata=[
                [bars[i].sample.mean, bars[i].half_width, len(bars[i].sample.values)] for i in rows
            ],
            hovertemplate="mean %{customdata[0]:.4f} ± %{customdata[1]:.4f} (95 % interval), "
            "%{customdata[2]} trainings<extra></extra>",
        )
    figure.add_scatter(
        x=style.short(value for bar in bars for value in bar.sample.values),
        y=[i - 0.2 for i, bar in enumerate(bars) for _ in bar.sample.values],
        mode="markers",
        name="one training",
        marker={"color": "#222222", "size": 5, "opacity": 0.55, "symbol": "line-ns-open"},
        hovertemplate="one training: %{x:.4f}<extra></extra>",
    )
    for i, bar in enumerate(bars):
        evolved = bar.sample.role == Role.EVOLVED
        figure.add_annotation(
            x=1.01,
            xref="paper",
            y=i,
            text="its lead, with p (Holm)" if evolved else bar.significance,
            showarrow=False,
            xanchor="left",
            font={"size": 12, "color": style.GREY if evolved else "#222222"},
        )
    figure.update_yaxes(
        tickvals=list(range(len(bars))),
        ticktext=[_tick(bar.sample) for bar in bars],
        range=[len(bars) - 0.45, -0.55],
        showgrid=False,
        ticks="",
    )
    figure.update_xaxes(
        title_text=style.plain(verdict.test_metric)
        + (f" (the axis begins at {start:.3g}, not at 0)" if start else ""),
        range=[start, end],
    )
    return figure.update_layout(margin={"r": 170}, barmode="overlay", legend=style.LEGEND_BELOW)


def _axis(bars: list[Bar]) -> tuple[float, float]:
    """Where the axis begins and ends: around values and intervals, but not below 0 in vain."""
    values = [value for bar in bars for value in bar.sample.values]
    lowest = min(min(values), *(bar.sample.mean - bar.half_width for bar in bars))
    highest = max(max(values), *(bar.sample.mean + bar.half_width for bar in bars))
    if min(values) >= 0 and max(values) <= 1:
        # An interval of a few scattered accuracies reaches where no accuracy can be.
        lowest, highest = max(lowest, 0.0), min(highest, 1.0)
    span = highest - lowest or 0.01
    start = lowest - 0.1 * span
    return (start if min(values) < 0 else max(start, 0.0)), highest + 0.05 * span


def _tick(sample: Sample) -> str:
    lines = textwrap.wrap(sample.label, _LABEL_WIDTH, break_on_hyphens=False)
    return "<br>".join(style.plain(line) for line in lines) + (
        f"<br>({sample.failed} failed)" if sample.failed else ""
    )
