"""Accuracy against a setting of the data, such as how much of it there was."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from optuna_taylorglo.visualization import _style as style

TITLE = "Accuracy with less training data"

_MARKERS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star")


_LABEL_SHARE = 0.13
"""Share of the axis that a tick's label takes on a telephone."""


@dataclass(frozen=True)
class SettingAxis:
    """A setting of the data that is varied.

    Attributes:
        name: What it is.
        factors: Whether its values may differ by factors, and then stand on a logarithmic axis.
    """

    name: str
    factors: bool = False


@dataclass(frozen=True)
class FractionCurve:
    """One loss over the values of a setting.

    Attributes:
        label: Its name.
        fractions: The values of the setting, a share such as that of the training data, ascending.
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
    axis = SettingAxis("share of the training data", factors=True)
    return draw_data_sweep(TITLE, results, metric, axis)


def draw_data_sweep(
    title: str,
    results: Mapping[str, Mapping[float, Sequence[float]]],
    metric: str,
    axis: SettingAxis,
) -> go.Figure:
    """Values against a setting of the data, one curve per loss, with its standard deviation.

    Args:
        title: Of the figure.
        results: Label of a loss → setting → value of each training.
        metric: What the values are.
        axis: What the setting is.
    """
    curves = _get_data_fractions_info(results)
    if not curves:
        return style.nothing_to_plot(title, "there are no results.")
    figure = style.new_figure(title)
    for i, curve in enumerate(curves):
        label, stds = style.plain(curve.label), style.short(curve.stds)
        figure.add_scatter(
            x=curve.fractions,
            y=style.short(curve.means),
            mode="lines+markers",
            name=style.wrapped(curve.label),
            line={
                "color": style.CATEGORIES[i % len(style.CATEGORIES)],
                "dash": style.DASHES[i % len(style.DASHES)],
                "width": 2,
            },
            marker={"symbol": _MARKERS[i % len(_MARKERS)], "size": 8},
            error_y={"type": "data", "array": stds, "thickness": 1.3, "width": 4},
            customdata=[list(row) for row in zip(stds, curve.counts, strict=True)],
            hovertemplate=f"{label}<br>{axis.name} %{{x:.3~%}}: %{{y:.4f}} "
            "(sd %{customdata[0]:.4f}, %{customdata[1]} trainings)<extra></extra>",
        )
    settings = sorted({setting for curve in curves for setting in curve.fractions})
    figure.update_xaxes(title_text=axis.name, tickformat="~%")
    if axis.factors and settings[-1] / settings[0] >= 20:
        # Shares that differ so much come in steps of a factor; each has its tick where it fits.
        figure.update_xaxes(
            type="log",
            tickvals=_apart(settings),
            range=[math.log10(settings[0]) - 0.08, math.log10(settings[-1]) + 0.08],
        )
    figure.update_yaxes(title_text=f"{style.plain(metric)} (mean ± sd)")
    return figure.update_layout(legend=style.LEGEND_BELOW)


def _apart(settings: list[float]) -> list[float]:
    """The largest, and of the others those whose labels do not touch on a logarithmic axis."""
    shortest = _LABEL_SHARE * math.log10(settings[-1] / settings[0])
    kept = [settings[-1]]
    for setting in reversed(settings[:-1]):
        if math.log10(kept[-1] / setting) >= shortest:
            kept.append(setting)
    return kept[::-1]
