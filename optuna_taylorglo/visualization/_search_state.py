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
    if not states:
        return None
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

    Returns:
        The figure; empty, with a warning, if there is nothing to plot.

    Examples:
        >>> import optuna
        >>> from optuna_taylorglo.visualization import plot_search_state
        >>> study = optuna.load_study(study_name="digits_mlp", storage="sqlite:///taylorglo.db")
        >>> figure = plot_search_state(study)
        >>> [title.text for title in figure.layout.annotations]
        ['step size σ', 'condition number', 'standard deviation along each principal axis']
    """
    info = _get_search_state_info(study)
    if info is None:
        reason = style.NO_SEARCH if read_history(study) is None else style.NO_COEFFICIENTS
        return style.nothing_to_plot(TITLE, reason)
    if len(info.generations) < 2:
        return style.nothing_to_plot(TITLE, style.NO_GENERATION)
    panels = (
        ("step size σ", [info.sigma], [style.BLUE]),
        ("condition number", [info.condition_number],
         [style.VERMILION]),
        ("standard deviation along each principal axis", info.axis_lengths,
         style.on_generation_scale(range(len(info.axis_lengths)), len(info.axis_lengths) - 1)),
    )  # fmt: skip
    # One below the other: there is room for each on the narrowest page.
    figure = make_subplots(
        rows=3,
        shared_xaxes=True,
        vertical_spacing=0.09,
        row_heights=[1, 1, 2],
        subplot_titles=[name for name, _, _ in panels],
    )
    style.apply(figure, TITLE, height=620)
    style.titles_to_the_left(figure)
    for row, (name, lines, colors) in enumerate(panels, start=1):
        for i, (values, color) in enumerate(zip(lines, colors, strict=True)):
            axis = f", axis {i + 1} of {len(lines)} (from the shortest)" if len(lines) > 1 else ""
            figure.add_scatter(
                x=style.from_one(info.generations),
                y=style.short(values),
                mode="lines" if len(lines) > 1 else "lines+markers",
                marker={"size": 5},
                line={"color": color, "width": 2},
                hovertemplate=f"generation %{{x}}: {name} %{{y:.4g}}{axis}<extra></extra>",
                row=row,
                col=1,
            )
        every = [value for values in lines for value in values]
        figure.update_yaxes(**style.log_axis(every, most=6 if row == 3 else 4), row=row, col=1)
    figure.update_xaxes(range=[info.generations[0] + 0.6, info.generations[-1] + 1.4])
    figure.update_xaxes(title_text="generation", row=3, col=1)
    return figure.update_layout(showlegend=False, margin={"t": 80})
