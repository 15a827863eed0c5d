"""The parameters of the best candidates over the generations."""

from __future__ import annotations

from dataclasses import dataclass

import plotly.graph_objects as go
from optuna.study import Study

from optuna_taylorglo.search.candidates import form_of
from optuna_taylorglo.search.history import SearchHistory, read_history
from optuna_taylorglo.visualization import _style as style

TITLE = "Parameters of the best candidate of each generation"

_SYMBOLS = {
    "alpha": "α",
    "beta": "β",
    "gamma": "γ",
    "delta": "δ",
    "log_scale": "s",
    "smoothing": "ε",
}
_ANCHOR_MEANINGS = {"log_scale": "logarithm of the scale", "smoothing": "label smoothing"}
_CANONICAL_MEANINGS = ("target, linear", "target, square", "all classes, square", "all, cube")


@dataclass(frozen=True)
class ThetaHistoryInfo:
    """What `plot_theta_history` draws.

    Attributes:
        generations: Generations with a best candidate.
        trials: Trial of each.
        labels: Label of each parameter, with what it multiplies.
        values: Of each parameter, one value per generation.
    """

    generations: list[int]
    trials: list[int]
    labels: list[str]
    values: list[list[float]]


def _get_theta_history_info(history: SearchHistory) -> ThetaHistoryInfo:
    bests = history.best_of_each
    return ThetaHistoryInfo(
        generations=[best.generation for best in bests],
        trials=[best.trial for best in bests],
        labels=_labels(history),
        values=[[best.parameters[i] for best in bests] for i in range(len(history.names))],
    )


def _labels(history: SearchHistory) -> list[str]:
    if history.recipe.search.space == "canonical":
        meanings: tuple[str, ...] = _CANONICAL_MEANINGS
    else:
        meanings = form_of(history.recipe).parameter_meanings
    meanings += tuple(_ANCHOR_MEANINGS[n] for n in history.names if n in _ANCHOR_MEANINGS)
    symbols = [_SYMBOLS.get(name, name.replace("theta_", "θ")) for name in history.names]
    return [f"{symbol}  {meaning}" for symbol, meaning in zip(symbols, meanings, strict=True)]


def plot_theta_history(study: Study) -> go.Figure:
    """Plot every parameter of the best candidate of each generation.

    Args:
        study: A study of a TaylorGLO search.
    """
    history = read_history(study)
    if history is None:
        return style.nothing_to_plot(TITLE, style.NO_SEARCH)
    info = _get_theta_history_info(history)
    if not info.generations:
        return style.nothing_to_plot(TITLE, style.NO_GENERATION)
    figure = style.new_figure(TITLE)
    for i, (label, values) in enumerate(zip(info.labels, info.values, strict=True)):
        figure.add_scatter(
            x=style.from_one(info.generations),
            y=style.short(values),
            mode="lines+markers",
            name=label,
            line={
                "color": style.CATEGORIES[i % len(style.CATEGORIES)],
                "dash": style.DASHES[i // len(style.CATEGORIES) % len(style.DASHES)],
                "width": 2,
            },
            marker={"size": 5},
            customdata=info.trials,
            hovertemplate=f"{label}: %{{y:.4f}}<br>generation %{{x}}, trial %{{customdata}}"
            "<extra></extra>",
        )
    figure.update_xaxes(title_text="generation")
    figure.update_yaxes(title_text="value")
    return figure.update_layout(legend={"title": {"text": "parameter, and of which term"}})
