"""The distribution that CMA-ES draws from, generation by generation."""

from __future__ import annotations

import math

import plotly.graph_objects as go
from optuna.study import Study
from plotly.subplots import make_subplots

from optuna_taylorglo.losses.tree import formula
from optuna_taylorglo.search.candidates import form_of, make_sampler
from optuna_taylorglo.search.glo import GLOSampler
from optuna_taylorglo.search.history import read_history
from optuna_taylorglo.visualization import _style as style

TITLE = "State of the search"

_COLUMNS = 2
_LONGEST_LABEL = 32
_LABELS = {
    "alpha": "α  target, linear",
    "beta": "β  target, square",
    "gamma": "γ  all classes, square",
    "delta": "δ  all classes, cube",
    "log_scale": "s  logarithm of the scale",
    "smoothing": "ε  label smoothing",
}


def plot_search_state(study: Study) -> go.Figure:
    """Plot the distribution of CMA-ES over the generations.

    Each generation is drawn from a normal distribution N(m, σ²C). One panel for each parameter
    shows its mean and, as a band, one standard deviation each way: a band that narrows says that
    the search has settled on a value, one that stays wide that the parameter matters little. The
    last two panels show the step size σ and the condition number of C, largest over smallest
    eigenvalue; a large one tells of a direction that matters little, or of a narrow valley.

    Args:
        study: A study of a TaylorGLO search.

    Returns:
        The figure; empty, with a warning, if there is nothing to plot.

    Examples:
        >>> import optuna
        >>> from optuna_taylorglo.visualization import plot_search_state
        >>> study = optuna.load_study(study_name="digits_mlp", storage="sqlite:///taylorglo.db")
        >>> figure = plot_search_state(study)
        >>> [title.text for title in figure.layout.annotations[-3:]]
        ['θ7  x²y', 'step size σ', 'condition number']
    """
    history = read_history(study)
    if history is None:
        return style.nothing_to_plot(TITLE, style.NO_SEARCH)
    sampler = make_sampler(history.recipe, history.n_classes)
    states = sampler.search_state(study)
    if not states:
        reason = "GLO's second stage, the search for coefficients, has not begun yet."
        return style.nothing_to_plot(TITLE, reason)
    if len(states) < 2:
        return style.nothing_to_plot(TITLE, style.NO_GENERATION)
    if isinstance(sampler, GLOSampler):
        assert sampler.best_tree is not None
        labels = [f"c{i}  {formula(node)}" for i, node in enumerate(sampler.best_tree.nodes())]
    else:
        meanings = form_of(history.recipe).parameter_meanings
        thetas = {f"theta_{i}": f"θ{i}  {meaning}" for i, meaning in enumerate(meanings)}
        labels = [(_LABELS | thetas)[name] for name in history.names]
    panels = [
        (_shortened(label), [s.mean[i] for s in states], [s.stds[i] for s in states])
        for i, label in enumerate(labels)
    ]
    panels.append(("step size σ", [s.sigma for s in states], []))
    panels.append(("condition number", [s.condition_number for s in states], []))
    n_rows = math.ceil(len(panels) / _COLUMNS)
    figure = make_subplots(
        rows=n_rows,
        cols=_COLUMNS,
        horizontal_spacing=0.12,
        vertical_spacing=0.35 / n_rows,
        subplot_titles=[label for label, _, _ in panels],
    )
    style.apply(figure, TITLE, height=140 * n_rows + 130)
    figure.update_annotations(font_size=13)
    x = [state.generation + 1 for state in states]
    for i, (label, values, stds) in enumerate(panels):
        place = {"row": i // _COLUMNS + 1, "col": i % _COLUMNS + 1}
        figure.update_yaxes(nticks=4, **place)
        if stds:
            low, high = (
                [v + sign * s for v, s in zip(values, stds, strict=True)] for sign in (-1, 1)
            )
            style.add_band(figure, x, low, high, style.BLUE, **place)
        else:
            figure.update_yaxes(type="log", nticks=3, **place)
        figure.add_scatter(
            x=x,
            y=values,
            mode="lines",
            name=label,
            line={"color": style.BLUE if stds else style.VERMILION},
            customdata=stds,
            hovertemplate=f"generation %{{x}}: {label} %{{y:.4g}}"
            f"{' ± %{customdata:.4g}' if stds else ''}<extra></extra>",
            **place,
        )
    figure.update_xaxes(range=[x[0] - 0.4, x[-1] + 0.4], nticks=6)
    figure.update_xaxes(title_text="generation", row=n_rows)
    return figure.update_layout(showlegend=False, margin={"l": 45, "r": 15})


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_LABEL else text[: _LONGEST_LABEL - 1] + "…"
