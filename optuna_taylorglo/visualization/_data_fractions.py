"""Accuracy against how much of the training data there was."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from optuna_taylorglo.visualization import _style as style

TITLE = "Accuracy with less training data"

_MARKERS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star")


@dataclass(frozen=True)
class FractionCurve:
    """One loss over the fractions of the training data.

    Attributes:
        label: Its name.
        fractions: The fractions, ascending.
        means: Mean accuracy at each.
        stds: Sample standard deviation at each; 0 for a single training.
        counts: Trainings at each.
    """

    label: str
    fractions: list[float]
    means: list[float]
    stds: list[float]
    counts: list[int]


def _get_data_fractions_info(
    results: Mapping[str, Mapping[float, Sequence[float]]],
) -> list[FractionCurve]:
    curves = []
    for label, by_fraction in results.items():
        for fraction in by_fraction:
            if not 0 < fraction <= 1:
                raise ValueError(f"results[{label!r}] has fraction {fraction!r}, not in (0, 1].")
        rows = sorted((f, list(values)) for f, values in by_fraction.items() if values)
        if rows:
            curves.append(
                FractionCurve(
                    label,
                    [fraction for fraction, _ in rows],
                    [statistics.fmean(v) for _, v in rows],
                    [statistics.stdev(v) if len(v) > 1 else 0.0 for _, v in rows],
                    [len(v) for _, v in rows],
                )
            )
    return curves


def plot_data_fractions(
    results: Mapping[str, Mapping[float, Sequence[float]]], *, metric: str = "test accuracy"
) -> go.Figure:
    """Plot accuracy against the fraction of the training data, one curve per loss.

    Error bars are one sample standard deviation each way.

    Args:
        results: Label of a loss → fraction in (0, 1] → accuracy of each training.
        metric: What the values are.

    Raises:
        ValueError: If a fraction is not in (0, 1].
    """
    curves = _get_data_fractions_info(results)
    if not curves:
        return style.nothing_to_plot(TITLE, "there are no results.")
    figure = style.new_figure(TITLE)
    for i, curve in enumerate(curves):
        label, stds = style.plain(curve.label), style.short(curve.stds)
        figure.add_scatter(
            x=curve.fractions,
            y=style.short(curve.means),
            mode="lines+markers",
            name=label,
            line={
                "color": style.CATEGORIES[i % len(style.CATEGORIES)],
                "dash": style.DASHES[i % len(style.DASHES)],
                "width": 2,
            },
            marker={"symbol": _MARKERS[i % len(_MARKERS)], "size": 8},
            error_y={"type": "data", "array": stds, "thickness": 1.3, "width": 4},
            customdata=[list(row) for row in zip(stds, curve.counts, strict=True)],
            hovertemplate=f"{label}<br>%{{x:.3~%}} of the data: %{{y:.4f}} "
            "(sd %{customdata[0]:.4f}, %{customdata[1]} trainings)<extra></extra>",
        )
    fractions = sorted({fraction for curve in curves for fraction in curve.fractions})
    figure.update_xaxes(title_text="share of the training data", tickformat="~%")
    if fractions[-1] / fractions[0] >= 20:
        # Shares that differ so much come in steps of a factor; each gets its tick.
        figure.update_xaxes(type="log", tickvals=fractions)
        figure.update_xaxes(
            range=[math.log10(fractions[0]) - 0.08, math.log10(fractions[-1]) + 0.08]
        )
    figure.update_yaxes(title_text=f"{style.plain(metric)} (mean ± sd)")
    return figure.update_layout(legend={"x": 0.98, "xanchor": "right", "y": 0.05})
