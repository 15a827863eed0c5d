"""The distribution that CMA-ES draws from, generation by generation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import plotly.graph_objects as go
from optuna.study import Study
from plotly.subplots import make_subplots

from optuna_taylorglo.search.history import read_history
from optuna_taylorglo.visualization import _style as style

TITLE = "State of the search"


@dataclass(frozen=True)
class SearchStateInfo:
    """What `plot_search_state` draws: N(mean, σ²C) of each generation.

    Attributes:
        generations: The generations, the one in hand included.
        sigma: Step size σ.
        condition_number: Largest over smallest eigenvalue of C.
        axis_lengths: Standard deviation along each principal axis, σ times the root of an
            eigenvalue, from the shortest to the longest: a list for each, with a value for each
            generation.
    """

    generations: list[int]
    sigma: list[float]
    condition_number: list[float]
    axis_lengths: list[list[float]]


def _get_search_state_info(study: Study) -> SearchStateInfo | None:
    from optuna_taylorglo.search.candidates import make_sampler

    history = read_history(study)
    if history is None:
        return None
    states = make_sampler(history.recipe, history.n_classes).search_state(study)
    return SearchStateInfo(
        generations=[state.generation for state in states],
        sigma=[state.sigma for state in states],
        condition_number=[state.condition_number for state in states],
        axis_lengths=[
            [state.sigma * math.sqrt(state.eigenvalues[i]) for state in states]
            for i in range(len(states[0].eigenvalues))
        ],
    )


def plot_search_state(study: Study) -> go.Figure:
    """Plot step size, condition number and axis lengths of CMA-ES over the generations.

    A search that has settled has short axes; a large condition number says that it found a
    direction that matters little, or a narrow valley.

    Args:
        study: A study of a TaylorGLO search.
    """
    info = _get_search_state_info(study)
    if info is None:
        return style.nothing_to_plot(TITLE, style.NO_SEARCH)
    if len(info.generations) < 2:
        return style.nothing_to_plot(TITLE, style.NO_GENERATION)
    figure = make_subplots(
        rows=2,
        cols=2,
        specs=[[{}, {"rowspan": 2}], [{}, None]],
        shared_xaxes=True,
        horizontal_spacing=0.13,
        vertical_spacing=0.08,
    )
    style.apply(figure, TITLE)
    for row, values, colour, name in (
        (1, info.sigma, style.BLUE, "step size σ"),
        (2, info.condition_number, style.VERMILION, "condition number"),
    ):
        figure.add_scatter(
            x=style.from_one(info.generations),
            y=style.short(values),
            mode="lines+markers",
            marker={"size": 5},
            line={"color": colour, "width": 2},
            hovertemplate=f"generation %{{x}}: {name} %{{y:.4g}}<extra></extra>",
            row=row,
            col=1,
        )
        figure.update_yaxes(title_text=name, type="log", row=row, col=1)
    n_axes = len(info.axis_lengths)
    colours = style.on_generation_scale(range(n_axes), n_axes - 1)
    for i, (lengths, colour) in enumerate(zip(info.axis_lengths, colours, strict=True)):
        figure.add_scatter(
            x=style.from_one(info.generations),
            y=style.short(lengths),
            mode="lines",
            line={"color": colour, "width": 2},
            hovertemplate=f"generation %{{x}}: axis {i + 1} of {n_axes} (from the shortest) has "
            "standard deviation %{y:.4g}<extra></extra>",
            row=1,
            col=2,
        )
    figure.update_yaxes(
        title_text="standard deviation along each principal axis", type="log", row=1, col=2
    )
    figure.update_yaxes(exponentformat="power", nticks=6)
    figure.update_xaxes(range=[0.6, info.generations[-1] + 1.4])
    figure.update_xaxes(title_text="generation", row=2, col=1)
    figure.update_xaxes(title_text="generation", showticklabels=True, row=1, col=2)
    return figure.update_layout(showlegend=False)
