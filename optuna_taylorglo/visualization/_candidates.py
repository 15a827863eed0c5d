"""Every candidate as a point of a plane."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go
from optuna.study import Study

from optuna_taylorglo.losses.canonical import has_canonical_form, to_canonical
from optuna_taylorglo.losses.expansion import FloatArray
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.search.candidates import Point, form_of
from optuna_taylorglo.search.glo import TreePoint
from optuna_taylorglo.search.history import Candidate, SearchHistory, read_history
from optuna_taylorglo.verdict.winner import load_selection
from optuna_taylorglo.visualization import _style as style

TITLE = "All candidates by fitness (t-SNE)"
SPACES = ("theta", "canonical")

_FEWEST = 4
_PERPLEXITY = 30.0

_WORST = 0.2
"""Share of the candidates that the scale of colors does not tell apart: most did not learn."""


@dataclass(frozen=True)
class Winner:
    """The loss that the search ends with, or the best so far.

    Attributes:
        name: What it is.
        parameters: As a candidate's.
        trial: Number of its trial; None for the mean of the final distribution.
    """

    name: str
    parameters: Point
    trial: int | None


@dataclass(frozen=True)
class CandidatesInfo:
    """What `plot_candidates` draws.

    Attributes:
        candidates: The candidates.
        coordinates: Their places in the plane, shape (N, 2).
        winner: The winner; None if all candidates ended early.
        winner_place: Its place in the plane, shape (2,).
    """

    candidates: list[Candidate]
    coordinates: FloatArray
    winner: Winner | None
    winner_place: FloatArray


def _get_candidates_info(
    study: Study, history: SearchHistory, *, space: str | None = None, seed: int = 0
) -> CandidatesInfo:
    candidates = history.candidates
    if len(candidates) < _FEWEST:
        return CandidatesInfo([], np.empty((0, 2)), None, np.empty(2))
    winner = _winner(study, history)
    parameters = [c.parameters for c in candidates]
    place = next((i for i, c in enumerate(candidates) if winner and c.trial == winner.trial), -1)
    if winner is not None and place < 0:
        parameters.append(winner.parameters)
    places = _tsne(_points(history, parameters, space or _best_space(history)), seed)
    return CandidatesInfo(candidates, places[: len(candidates)], winner, places[place])


def _winner(study: Study, history: SearchHistory) -> Winner | None:
    selection = load_selection(study)
    if selection is not None:
        return Winner(
            f"winner, {selection.winner.name}", selection.winner.parameters, selection.winner.trial
        )
    trained = [c for c in history.candidates if c.fitness is not None]
    best = None if history.best is None else history.best.number
    found = next((c for c in trained if c.trial == best), None)
    if found is None:
        return None
    decided = history.finished and history.recipe.selection is None
    return Winner(
        f"{'winner' if decided else 'best so far'}, trial {found.trial}",
        found.parameters,
        found.trial,
    )


def _best_space(history: SearchHistory) -> str:
    """Where candidates lie together that are nearly the same function, if there is such a space."""
    return "canonical" if _has_canonical_form(history.recipe) else "theta"


def _has_canonical_form(recipe: Recipe) -> bool:
    return recipe.search.method == "taylor" and has_canonical_form(form_of(recipe))


def _points(history: SearchHistory, candidates: Sequence[Point], space: str) -> FloatArray:
    """What t-SNE works on, shape (N, number of parameters), θ as four if that is asked for."""
    if history.recipe.search.method == "glo":
        return _scaled(np.array([_tree_values(c) for c in candidates if isinstance(c, TreePoint)]))
    parameters = [tuple(map(float, c)) for c in candidates if not isinstance(c, TreePoint)]
    if space == "theta" or history.recipe.search.space == "canonical":
        return np.array(parameters)
    form = form_of(history.recipe)
    n_theta = form.n_parameters
    points = np.array([(*to_canonical(p[:n_theta], form), *p[n_theta:]) for p in parameters])
    return _scaled(points)


def _tree_values(point: TreePoint) -> FloatArray:
    """A tree as a function: its values over the output, for both targets, 0 where not finite."""
    import torch

    from optuna_taylorglo.losses.tree_loss import tree_values

    x = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    y = torch.linspace(0.05, 0.95, 10, dtype=torch.float64)[None]
    values = tree_values(point.tree, x, y, coefficients=point.coefficients or None)
    return np.asarray(values.nan_to_num(0.0, 0.0, 0.0).flatten().numpy())


def _scaled(points: FloatArray) -> FloatArray:
    """Each column about 0 and with the spread 1."""
    # Some lie far out; without this those alone would be seen.
    points = np.arcsinh(points)
    spread = points.std(axis=0)
    return np.asarray((points - points.mean(axis=0)) / np.where(spread > 0, spread, 1.0))


def _tsne(points: FloatArray, seed: int) -> FloatArray:
    from sklearn.manifold import TSNE

    embedding = TSNE(
        perplexity=min(_PERPLEXITY, (len(points) - 1) / 3), init="pca", random_state=seed
    )
    return np.asarray(embedding.fit_transform(points), dtype=np.float64)


def plot_candidates(study: Study, *, space: str | None = None, seed: int = 0) -> go.Figure:
    """Plot every candidate by its fitness, in a plane where similar ones lie near each other.

    The plane is made by t-SNE. The worst fifth of the candidates have one color, so that the
    others can be told apart.

    Args:
        study: A study of a TaylorGLO search.
        space: "canonical" compares the four numbers that a third-order loss over (x, y) consists
            of, so that different θ of one function fall together; "theta" the parameters that were
            searched. By default the first, where there is such a form. Trees are compared by their
            values.
        seed: Seed of t-SNE.

    Returns:
        The figure; empty, with a warning, if there is nothing to plot.

    Raises:
        ValueError: If `space` is neither, or the losses of the study have no canonical form.

    Examples:
        >>> import optuna
        >>> from optuna_taylorglo.visualization import plot_candidates
        >>> study = optuna.load_study(study_name="digits_mlp", storage="sqlite:///taylorglo.db")
        >>> figure = plot_candidates(study)
        >>> [trace.name for trace in figure.data]
        ['ended early', 'trained', 'winner, trial 7']
    """
    if space not in (None, *SPACES):
        raise ValueError(f"space must be one of {', '.join(SPACES)}, not {space!r}.")
    history = read_history(study)
    if history is None:
        return style.nothing_to_plot(TITLE, style.NO_SEARCH)
    if space == "canonical" and not _has_canonical_form(history.recipe):
        form = form_of(history.recipe) if history.recipe.search.method == "taylor" else "trees"
        raise ValueError(
            f"space 'canonical' is not allowed for {form}: it exists up to order 3 over (x, y)."
        )
    info = _get_candidates_info(study, history, space=space, seed=seed)
    if not info.candidates:
        return style.nothing_to_plot(TITLE, f"fewer than {_FEWEST} candidates are evaluated yet.")
    figure = style.new_figure(TITLE, height=480)
    _add_untrained(figure, info)
    _add_trained(figure, info, history)
    if info.winner is not None:
        figure.add_scatter(
            x=style.short([info.winner_place[0]], 4),
            y=style.short([info.winner_place[1]], 4),
            mode="markers",
            name=style.wrapped(info.winner.name),
            marker={
                "symbol": "star",
                "size": 17,
                "color": style.VERMILION,
                "line": {"color": "white", "width": 1},
            },
            hovertemplate=f"{style.plain(info.winner.name)}<extra></extra>",
        )
    # Distances along the axes of t-SNE have no unit: only who is near whom has a meaning.
    figure.update_xaxes(title_text="t-SNE 1 (near means similar)")
    figure.update_yaxes(title_text="t-SNE 2")
    for update in (figure.update_xaxes, figure.update_yaxes):
        update(showticklabels=False, ticks="", showgrid=False)
    return figure.update_layout(legend=style.LEGEND_BELOW)


def _add_trained(figure: go.Figure, info: CandidatesInfo, history: SearchHistory) -> None:
    shown = [i for i, c in enumerate(info.candidates) if c.fitness is not None]
    if not shown:
        return
    fitness = np.array([info.candidates[i].fitness for i in shown], dtype=float)
    sign = history.recipe.fitness.sign
    worst = float(np.quantile(sign * fitness, _WORST)) * sign
    best = float((sign * fitness).max()) * sign
    scale = [list(stop) for stop in style.GENERATIONS]
    if sign < 0:  # dark is good
        scale = [[1 - place, color] for place, color in reversed(scale)]
    _add_points(figure, info, shown, "trained", "fitness %{marker.color:.4f}")
    figure.data[-1].marker.update(
        symbol="circle",
        size=8,
        color=style.short(fitness),
        colorscale=scale,
        cmin=min(worst, best),
        cmax=max(worst, best),
        showscale=True,
        colorbar=style.color_bar(style.plain(history.recipe.fitness.metric)),
        line={"width": 0.5, "color": "white"},
    )
    figure.data[-1].showlegend = False  # it has a scale


def _add_untrained(figure: go.Figure, info: CandidatesInfo) -> None:
    shown = [i for i, c in enumerate(info.candidates) if c.fitness is None]
    if shown:
        _add_points(figure, info, shown, "ended early", "ended early")
        line = {"width": 1.5, "color": style.GRAY}
        figure.data[-1].marker.update(symbol="x-thin", size=6, color=style.GRAY, line=line)


def _add_points(
    figure: go.Figure, info: CandidatesInfo, shown: list[int], name: str, outcome: str
) -> None:
    candidates = [info.candidates[i] for i in shown]
    figure.add_scatter(
        x=style.short(info.coordinates[shown, 0], 4),
        y=style.short(info.coordinates[shown, 1], 4),
        mode="markers",
        name=name,
        customdata=[[c.trial, c.generation + 1] for c in candidates],
        hovertemplate=f"trial %{{customdata[0]}}, generation %{{customdata[1]}}: {outcome}"
        "<extra></extra>",
    )
