"""Every candidate as a point of a plane."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from optuna.study import Study

from optuna_taylorglo.evolution.candidates import Point, form_of, stored_candidate
from optuna_taylorglo.evolution.glo import TreePoint
from optuna_taylorglo.evolution.history import SearchHistory, read_history
from optuna_taylorglo.losses.canonical import has_canonical_form, to_canonical
from optuna_taylorglo.losses.expansion import FloatArray
from optuna_taylorglo.verdict.selection import load_selection
from optuna_taylorglo.visualization import _style as style
from optuna_taylorglo.visualization._loss_functions import winner_label

TITLE = "All candidates by fitness (t-SNE)"

_FEWEST = 4
_WORST = 0.2  # share of the candidates that have one color, because they hardly learned


def plot_candidates(study: Study, *, seed: int = 0) -> go.Figure:
    """Plot every candidate by its fitness, in a plane where similar ones lie near each other.

    The plane is made by t-SNE of the four numbers that a third-order loss over (x, y) consists of,
    so that different θ of one function are close; of θ where there is no such form; of their values
    for trees. The worst fifth of the candidates have one color.

    Args:
        study: A study of a TaylorGLO search.
        seed: Seed of t-SNE.

    Returns:
        The figure; empty, with a warning, if there is nothing to plot.

    Examples:
        >>> import optuna
        >>> from optuna_taylorglo.visualization import plot_candidates
        >>> study = optuna.load_study(study_name="digits_mlp", storage="sqlite:///taylorglo.db")
        >>> figure = plot_candidates(study)
        >>> [trace.name for trace in figure.data]
        ['ended early', 'trained', 'winner, trial 7']
    """
    history = read_history(study)
    if history is None:
        return style.nothing_to_plot(TITLE, style.NO_SEARCH)
    candidates = history.candidates
    if len(candidates) < _FEWEST:
        return style.nothing_to_plot(TITLE, f"fewer than {_FEWEST} candidates are evaluated yet.")
    places, winner = _places(study, history, seed)
    figure = style.apply(go.Figure(), TITLE, height=480)
    early = [i for i, c in enumerate(candidates) if c.fitness is None]
    trained = [i for i in range(len(candidates)) if i not in early]
    color = [c.fitness for c in candidates if c.fitness is not None]
    gray = {"size": 6, "color": style.GRAY, "line": {"width": 1.5, "color": style.GRAY}}
    colored = {"size": 8, "color": color, "coloraxis": "coloraxis"}
    for name, indices, outcome, marker in (
        ("ended early", early, "ended early", gray | {"symbol": "x-thin"}),
        ("trained", trained, "fitness %{marker.color:.4f}", colored),
    ):
        if indices:
            figure.add_scatter(
                x=places[indices, 0].tolist(),
                y=places[indices, 1].tolist(),
                mode="markers",
                name=name,
                showlegend=name != "trained",  # it has a color bar
                marker=marker,
                customdata=[[candidates[i].trial, candidates[i].generation + 1] for i in indices],
                hovertemplate="trial %{customdata[0]}, generation %{customdata[1]}: "
                f"{outcome}<extra></extra>",
            )
    if trained:
        figure.update_layout(coloraxis=_color_axis(color, history))
    if winner is not None:
        label = winner_label(study, history)
        figure.add_scatter(
            x=[winner[0]],
            y=[winner[1]],
            mode="markers",
            name=style.wrapped(label),
            marker={"symbol": "star", "size": 17, "color": style.VERMILION},
            hovertemplate=f"{style.plain(label)}<extra></extra>",
        )
    # Only distances mean something.
    figure.update_xaxes(title_text="t-SNE 1 (near means similar)")
    figure.update_yaxes(title_text="t-SNE 2")
    bare = {"showticklabels": False, "showgrid": False}
    return figure.update_xaxes(**bare).update_yaxes(**bare)


def _color_axis(fitness: Sequence[float], history: SearchHistory) -> dict[str, object]:
    """The better the darker; the worst fifth has one color."""
    settings = history.recipe.fitness
    signed = [settings.sign * value for value in fitness]
    low, high = sorted(settings.sign * v for v in (float(np.quantile(signed, _WORST)), max(signed)))
    return {
        "colorscale": style.LIGHT_TO_DARK,
        "reversescale": settings.mode == "min",
        "cmin": low,
        "cmax": high,
        "colorbar": {"title": {"text": style.plain(settings.metric)}},
    }


def _places(
    study: Study, history: SearchHistory, seed: int
) -> tuple[FloatArray, FloatArray | None]:
    """Candidates in the plane, shape (N, 2), and the winner or the best, if any has trained."""
    from sklearn.manifold import TSNE

    points = [candidate.parameters for candidate in history.candidates]
    selection, best = load_selection(study), history.best
    trial = None if best is None else best.number
    winner = None if best is None else stored_candidate(history.recipe, best)
    if selection is not None:
        trial, winner = selection.winner.trial, selection.winner.parameters
    n = len(points)
    place = next((i for i, c in enumerate(history.candidates) if c.trial == trial), n)
    if winner is not None and place == n:
        points.append(winner)
    perplexity = min(30.0, (len(points) - 1) / 3)
    embedding = TSNE(perplexity=perplexity, init="pca", random_state=seed)
    places = embedding.fit_transform(_coordinates(history, points)).astype(np.float64)
    return places[:n], None if winner is None else places[place]


def _coordinates(history: SearchHistory, points: Sequence[Point]) -> FloatArray:
    """What t-SNE works on, shape (N, number of coordinates)."""
    recipe = history.recipe
    if recipe.search.method == "glo":
        return _scaled([_tree_values(point) for point in points if isinstance(point, TreePoint)])
    parameters = [tuple(map(float, p)) for p in points if not isinstance(p, TreePoint)]
    form = form_of(recipe)
    if recipe.search.space == "canonical" or not has_canonical_form(form):
        return np.array(parameters)
    n = form.n_parameters  # followed by an anchor's
    return _scaled([(*to_canonical(p[:n], form), *p[n:]) for p in parameters])


def _tree_values(point: TreePoint) -> FloatArray:
    """A tree as a function: its values over the output, for both targets, 0 where not finite."""
    import torch

    from optuna_taylorglo.losses.tree_loss import tree_values

    x = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    y = torch.linspace(0.05, 0.95, 10, dtype=torch.float64)[None]
    values = tree_values(point.tree, x, y, coefficients=point.coefficients or None)
    return np.asarray(values.nan_to_num(0.0, 0.0, 0.0).flatten().numpy())


def _scaled(points: Sequence[Sequence[float] | FloatArray]) -> FloatArray:
    """Coordinates with mean 0 and spread 1, outliers drawn in by arcsinh."""
    values = np.arcsinh(np.array(points))
    spread = values.std(axis=0)
    return np.asarray((values - values.mean(axis=0)) / np.where(spread > 0, spread, 1.0))
