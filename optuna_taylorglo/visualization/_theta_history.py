"""Where the search looks: mean and spread of each parameter over the generations."""

from __future__ import annotations

import math
from dataclasses import dataclass

import plotly.graph_objects as go
from optuna.study import Study
from plotly.subplots import make_subplots

from optuna_taylorglo.losses.tree import Tree, formula
from optuna_taylorglo.search.candidates import form_of
from optuna_taylorglo.search.glo import GLOSampler
from optuna_taylorglo.search.history import SearchHistory, read_history
from optuna_taylorglo.visualization import _style as style

TITLE = "Where the search looks: mean ± σ"

_COLUMNS = 2
_LONGEST_LABEL = 28
_ROW, _GAP, _TOP, _BOTTOM = 125, 34, 80, 60
"""In pixels: a row of panels, the gap above the next one, and the figure's margins."""

_SYMBOLS = {
    "alpha": "α",
    "beta": "β",
    "gamma": "γ",
    "delta": "δ",
    "log_scale": "s",
    "smoothing": "ε",
}
_ANCHOR_MEANINGS = {"log_scale": "logarithm of the scale", "smoothing": "label smoothing"}
_CANONICAL_MEANINGS = (
    "target, linear",
    "target, square",
    "all classes, square",
    "all classes, cube",
)


@dataclass(frozen=True)
class ThetaHistoryInfo:
    """What `plot_theta_history` draws: the distribution that each generation is drawn from.

    Attributes:
        generations: The generations, the one in hand included.
        labels: Label of each parameter, with what it multiplies.
        means: Mean of each parameter, one value per generation.
        stds: Its standard deviation, one value per generation.
    """

    generations: list[int]
    labels: list[str]
    means: list[list[float]]
    stds: list[list[float]]


def _get_theta_history_info(study: Study, history: SearchHistory) -> ThetaHistoryInfo:
    from optuna_taylorglo.search.candidates import make_sampler

    sampler = make_sampler(history.recipe, history.n_classes)
    states = sampler.search_state(study)
    tree = sampler.best_tree if isinstance(sampler, GLOSampler) else None
    labels = _labels(history) if tree is None else _node_labels(tree)
    places = range(len(labels) if states else 0)
    return ThetaHistoryInfo(
        generations=[state.generation for state in states],
        labels=labels,
        means=[[state.mean[i] for state in states] for i in places],
        stds=[[state.stds[i] for state in states] for i in places],
    )


def _node_labels(tree: Tree) -> list[str]:
    """What each coefficient of a tree multiplies, in prefix order."""
    return [f"c{i}  {_shortened(formula(node))}" for i, node in enumerate(tree.nodes())]


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_LABEL else text[: _LONGEST_LABEL - 1] + "…"


def _labels(history: SearchHistory) -> list[str]:
    if history.recipe.search.method == "glo":
        return []
    if history.recipe.search.space == "canonical":
        meanings: tuple[str, ...] = _CANONICAL_MEANINGS
    else:
        meanings = form_of(history.recipe).parameter_meanings
    meanings += tuple(_ANCHOR_MEANINGS[n] for n in history.names if n in _ANCHOR_MEANINGS)
    symbols = [_SYMBOLS.get(name, name.replace("theta_", "θ")) for name in history.names]
    return [f"{symbol}  {meaning}" for symbol, meaning in zip(symbols, meanings, strict=True)]


def plot_theta_history(study: Study) -> go.Figure:
    """Plot mean and standard deviation of each parameter in the distribution of the search.

    Every generation is drawn from a normal distribution, which CMA-ES moves and shapes by what the
    generation before came to. A band that narrows around a line says that the search has settled
    on a value; one that stays wide, that the parameter matters little.

    Args:
        study: A study of a TaylorGLO search.

    Returns:
        The figure; empty, with a warning, if there is nothing to plot.

    Examples:
        >>> import optuna
        >>> from optuna_taylorglo.visualization import plot_theta_history
        >>> study = optuna.load_study(study_name="digits_mlp", storage="sqlite:///taylorglo.db")
        >>> figure = plot_theta_history(study)
        >>> [title.text for title in figure.layout.annotations[:2]]
        ['θ0  center of x', 'θ1  center of y']
    """
    history = read_history(study)
    if history is None:
        return style.nothing_to_plot(TITLE, style.NO_SEARCH)
    info = _get_theta_history_info(study, history)
    if not info.generations:
        return style.nothing_to_plot(TITLE, style.NO_COEFFICIENTS)
    if len(info.generations) < 2:
        return style.nothing_to_plot(TITLE, style.NO_GENERATION)
    n_rows = math.ceil(len(info.labels) / _COLUMNS)
    height = _TOP + _BOTTOM + _ROW * n_rows
    figure = make_subplots(
        rows=n_rows,
        cols=_COLUMNS,
        shared_xaxes=True,
        horizontal_spacing=0.11,
        vertical_spacing=_GAP / (height - _TOP - _BOTTOM),
        subplot_titles=info.labels,
    )
    style.apply(figure, TITLE, height=height)
    style.titles_to_the_left(figure)
    generations = style.from_one(info.generations)
    for i, (label, means, stds) in enumerate(zip(info.labels, info.means, info.stds, strict=True)):
        place = {"row": i // _COLUMNS + 1, "col": i % _COLUMNS + 1}
        low, high = ([m + sign * s for m, s in zip(means, stds, strict=True)] for sign in (-1, 1))
        figure.add_scatter(
            x=[*generations, *reversed(generations)],
            y=style.short([*low, *reversed(high)]),
            fill="toself",
            fillcolor=style.translucent(style.BLUE, 0.2),
            line={"width": 0},
            mode="lines",
            hoverinfo="skip",
            **place,
        )
        figure.add_scatter(
            x=generations,
            y=style.short(means),
            mode="lines",
            name=label,
            line={"color": style.BLUE, "width": 2},
            customdata=style.short(stds),
            hovertemplate=f"{label}: %{{y:.4f}} ± %{{customdata:.4f}}<br>generation %{{x}}"
            "<extra></extra>",
            **place,
        )
    figure.update_yaxes(nticks=4)
    figure.update_xaxes(range=[generations[0] - 0.4, generations[-1] + 0.4], nticks=6)
    for i in range(_COLUMNS):
        last = (len(info.labels) - 1 - i) // _COLUMNS + 1
        figure.update_xaxes(title_text="generation", showticklabels=True, row=last, col=i + 1)
    margin = {"t": _TOP, "b": _BOTTOM, "l": 45, "r": 15}
    return figure.update_layout(showlegend=False, margin=margin)
