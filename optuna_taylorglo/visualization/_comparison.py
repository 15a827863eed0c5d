"""The verdict as a forest plot: the evolved loss's lead over each of the others."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

import plotly.graph_objects as go

from optuna_taylorglo.verdict.statistics import Contrast, Role, Sample, Verdict
from optuna_taylorglo.visualization import _style as style

TITLE = "Evolved loss against the others"

_LABEL_WIDTH = 46
"""Characters of a label's line: so many fit on a telephone."""

_LINE, _ROW = 17, 34
"""Heights in pixels: of a label's line, and of an interval with the space around it."""

_ROLES = {
    Role.REFERENCE: ("baseline", style.BLUE, "square"),
    Role.BASELINE: ("baseline", style.BLUE, "square"),
    Role.SHAPE_CONTROL: ("control of scale", style.GRAY, "diamond"),
    Role.SCALE_CONTROL: ("control of scale", style.GRAY, "diamond"),
}


@dataclass(frozen=True)
class Lead:
    """The evolved loss against one of the others.

    Attributes:
        sample: The other's trainings.
        contrast: What was found.
    """

    sample: Sample
    contrast: Contrast

    @property
    def label(self) -> list[str]:
        """Lines that say what it is compared with, and how it ended."""
        c, diverged = self.contrast, len(self.sample.diverged)
        ended = f", {diverged} of {len(self.sample.values)} diverged" if diverged else ""
        if self.sample.failed:
            ended = f", {self.sample.failed} failed"
        return [
            *textwrap.wrap(self.sample.label + ended, _LABEL_WIDTH, break_on_hyphens=False),
            f"{c.difference:+.4f} ({c.low:+.4f} to {c.high:+.4f}), {_p(c.p_holm)}",
        ]


def _get_comparison_info(verdict: Verdict) -> list[Lead]:
    contrasts = {contrast.against: contrast for contrast in verdict.contrasts}
    return [
        Lead(sample, contrasts[sample.name])
        for sample in verdict.samples
        if sample.name in contrasts
    ]


def _p(value: float) -> str:
    return "p < 0.0001" if value < 0.0001 else f"p = {value:.2g}"


def plot_comparison(verdict: Verdict) -> go.Figure:
    """Plot a verdict: the evolved loss's mean difference to each of the others.

    Each has its 95 % confidence interval, and the p-value, corrected by Holm's method, of the
    one-tailed test that the evolved loss is better. Where an interval holds 0, the line, the two
    may be level. A loss of which fewer than two trainings are known is left out.

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
    leads = _get_comparison_info(verdict)
    if not leads:
        return style.nothing_to_plot(TITLE, "no two losses have trainings that can be compared.")
    # Labels stand above their intervals, not beside them: there is room on the narrowest page.
    places, height = [], 0.0
    for lead in leads:
        height += _LINE * len(lead.label)
        places.append(height + _ROW / 3)
        height += _ROW
    figure = style.new_figure(TITLE, height=round(height) + 170)
    for name, color, symbol in dict.fromkeys(_ROLES.values()):
        rows = [i for i, lead in enumerate(leads) if _ROLES[lead.sample.role][0] == name]
        if rows:
            _add_leads(figure, [leads[i] for i in rows], [places[i] for i in rows], name)
            figure.data[-1].update(
                marker={"color": color, "symbol": symbol, "size": 10},
                error_x={"color": color, "thickness": 2.2, "width": 6},
            )
    for lead, place in zip(leads, places, strict=True):
        *named, numbers = map(style.plain, lead.label)
        # The line at 0, where it does not cross a label.
        ends = {"y0": place - _ROW / 3, "y1": place + _ROW / 2}
        figure.add_shape(x0=0, x1=0, **ends, line={"color": "#222222", "width": 1.5})
        lines = [*(f"<b>{line}</b>" for line in named), numbers]
        figure.add_annotation(
            x=0,
            xref="paper",
            y=place,
            yshift=_ROW / 3,
            text="<br>".join(lines),
            showarrow=False,
            xanchor="left",
            yanchor="bottom",
            align="left",
            bgcolor="white",
            borderpad=0,
            font={"size": 12},
        )
    figure.update_yaxes(range=[height, 0], visible=False)
    better = "right" if verdict.mode == "max" else "left"
    figure.update_xaxes(
        title_text=f"{style.plain(verdict.test_metric)}: evolved loss minus the other<br>"
        f"({better} of 0 the evolved loss is better)",
        range=_axis(leads),
        nticks=7,
        showgrid=False,  # its lines would cross the labels
    )
    return figure.update_layout(
        margin={"l": 20}, legend=style.LEGEND_BELOW | {"y": -0.02 - 75 / height}
    )


def _add_leads(figure: go.Figure, leads: list[Lead], places: list[float], name: str) -> None:
    contrasts = [lead.contrast for lead in leads]
    figure.add_scatter(
        x=style.short(c.difference for c in contrasts),
        y=places,
        mode="markers",
        name=name,
        error_x={
            "type": "data",
            "symmetric": False,
            "array": style.short(c.high - c.difference for c in contrasts),
            "arrayminus": style.short(c.difference - c.low for c in contrasts),
        },
        customdata=[
            [c.low, c.high, lead.sample.mean] for c, lead in zip(contrasts, leads, strict=True)
        ],
        hovertemplate="%{x:+.4f} (95 % interval %{customdata[0]:+.4f} to %{customdata[1]:+.4f}) "
        "against a mean of %{customdata[2]:.4f}<extra></extra>",
    )


def _axis(leads: list[Lead]) -> list[float]:
    """Where the axis begins and ends: around 0 and all intervals."""
    lowest = min(0.0, *(min(lead.contrast.low, lead.contrast.difference) for lead in leads))
    highest = max(0.0, *(max(lead.contrast.high, lead.contrast.difference) for lead in leads))
    margin = 0.06 * (highest - lowest) or 0.01
    return [lowest - margin, highest + margin]
