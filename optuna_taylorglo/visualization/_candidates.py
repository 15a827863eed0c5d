"""Every candidate as a point of a plane."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go
from optuna.study import Study

from optuna_taylorglo.losses.canonical import has_canonical_form, to_canonical
from optuna_taylorglo.losses.expansion import FloatArray
from optuna_taylorglo.search.candidates import form_of
from optuna_taylorglo.search.history import Candidate, SearchHistory, read_history
from optuna_taylorglo.visualization import _style as style

TITLE = "All candidates (t-SNE)"
SPACES = ("theta", "canonical")

_FEWEST = 4
_PERPLEXITY = 30.0


@dataclass(frozen=True)
class CandidatesInfo:
    """What `plot_candidates` draws.

    Attributes:
        candidates: The candidates.
        coordinates: Their places in the plane, shape (N, 2).
        best: Place in the list of the one with the best fitness, None if all ended early.
    """

    candidates: list[Candidate]
    coordinates: FloatArray
    best: int | None


def _get_candidates_info(
    history: SearchHistory, *, space: str = "theta", seed: int = 0
) -> CandidatesInfo:
    candidates = history.candidates
    if len(candidates) < _FEWEST:
        return CandidatesInfo([], np.empty((0, 2)), None)
    points = _points(history, space)
    best = None if history.best is None else history.best.number
    place = next((i for i, c in enumerate(candidates) if c.trial == best), None)
    return CandidatesInfo(candidates, _tsne(points, seed), place)


def _points(history: SearchHistory, space: str) -> FloatArray:
    """What t-SNE works on, shape (N, number of parameters), θ as four if that is asked for."""
    if space == "theta" or history.recipe.search.space == "canonical":
        return np.array([c.parameters for c in history.candidates])
    form = form_of(history.recipe)
    points = np.array(
        [
            (
                *to_canonical(c.parameters[: form.n_parameters], form),
                *c.parameters[form.n_parameters :],
            )
            for c in history.candidates
        ]
    )
    # They are products of parameters, some far out; without this those alone would be seen.
    points = np.arcsinh(points)
    spread = points.std(axis=0)
    return np.asarray((points - points.mean(axis=0)) / np.where(spread > 0, spread, 1.0))


def _tsne(points: FloatArray, seed: int) -> FloatArray:
    from sklearn.manifold import TSNE

    embedding = TSNE(
        perplexity=min(_PERPLEXITY, (len(points) - 1) / 3), init="pca", random_state=seed
    )
    return np.asarray(embedding.fit_transform(points), dtype=np.float64)


def plot_candidates(study: Study, *, space: str = "theta", seed: int = 0) -> go.Figure:
    """Plot every candidate in a plane where similar ones lie near each other (t-SNE).

    Args:
        study: A study of a TaylorGLO search.
        space: "theta" compares the parameters that were searched, "canonical" the four numbers
            that a third-order loss over (x, y) consists of, so that different θ of one function
            fall together.
        seed: Seed of t-SNE.

    Raises:
        ValueError: If `space` is neither, or the losses of the study have no canonical form.
    """
    if space not in SPACES:
        raise ValueError(f"space must be one of {', '.join(SPACES)}, not {space!r}.")
    title = TITLE + (", canonical coordinates" if space == "canonical" else "")
    history = read_history(study)
    if history is None:
        return style.nothing_to_plot(title, style.NO_SEARCH)
    form = form_of(history.recipe)
    if space == "canonical" and not has_canonical_form(form):
        raise ValueError(
            f"space 'canonical' is not allowed for {form}: it exists up to order 3 over (x, y)."
        )
    info = _get_candidates_info(history, space=space, seed=seed)
    if not info.candidates:
        return style.nothing_to_plot(title, f"fewer than {_FEWEST} candidates are evaluated yet.")
    last = max(c.generation for c in info.candidates)
    figure = style.new_figure(title)
    for ended_early in (True, False):
        shown = [i for i, c in enumerate(info.candidates) if (c.fitness is None) == ended_early]
        if shown:
            _add_points(figure, info, shown, last, ended_early=ended_early)
    if info.best is not None:
        best = info.candidates[info.best]
        figure.add_scatter(
            x=style.short([info.coordinates[info.best, 0]], 4),
            y=style.short([info.coordinates[info.best, 1]], 4),
            mode="markers",
            name="best of all",
            marker={
                "symbol": "star",
                "size": 17,
                "color": style.VERMILION,
                "line": {"color": "white", "width": 1},
            },
            hovertemplate=f"best of all: trial {best.trial}, generation {best.generation + 1}, "
            f"fitness {best.fitness:.4f}<extra></extra>",
        )
    # Distances along the axes of t-SNE have no unit: only who is near whom has a meaning.
    figure.update_xaxes(title_text="t-SNE 1 (near means similar)")
    figure.update_yaxes(title_text="t-SNE 2")
    for update in (figure.update_xaxes, figure.update_yaxes):
        update(showticklabels=False, ticks="", showgrid=False)
    return figure.update_layout(legend=style.LEGEND_BELOW)


def _add_points(
    figure: go.Figure, info: CandidatesInfo, shown: list[int], last: int, *, ended_early: bool
) -> None:
    candidates = [info.candidates[i] for i in shown]
    scale = style.generation_bar(last)
    outcome = "ended early" if ended_early else "fitness %{customdata[1]}"
    figure.add_scatter(
        x=style.short(info.coordinates[shown, 0], 4),
        y=style.short(info.coordinates[shown, 1], 4),
        mode="markers",
        name="ended early" if ended_early else "trained",
        marker={
            "symbol": "x-thin" if ended_early else "circle",
            "size": 6 if ended_early else 8,
            "color": style.from_one(c.generation for c in candidates),
            "showscale": not ended_early,
            "line": (
                {
                    "width": 1.5,
                    "color": style.from_one(c.generation for c in candidates),
                    **{key: scale[key] for key in ("colorscale", "cmin", "cmax")},
                }
                if ended_early
                else {"width": 0.5, "color": "white"}
            ),
            **scale,
        },
        customdata=[[c.trial, "" if c.fitness is None else f"{c.fitness:.4f}"] for c in candidates],
        hovertemplate=f"trial %{{customdata[0]}}, generation %{{marker.color}}: {outcome}"
        "<extra></extra>",
    )
