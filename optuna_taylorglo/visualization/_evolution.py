"""How the fitness of candidates grew."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import plotly.graph_objects as go
from optuna.study import Study

from optuna_taylorglo.attributes import CROSS_ENTROPY
from optuna_taylorglo.visualization._history import NO_GENERATION, NO_SEARCH, read_history
from optuna_taylorglo.visualization._style import (
    BLUE,
    GREY,
    LEGEND_BELOW,
    VERMILION,
    new_figure,
    nothing_to_plot,
    plain,
    short,
)

TITLE = "Evolution of the fitness"


@dataclass(frozen=True)
class EvolutionInfo:
    """What `plot_evolution` draws.

    Attributes:
        metric: The fitness.
        generations: Finished generations in which at least one candidate trained to the end.
        best: Best fitness of each.
        best_trial: Trial of each best.
        mean: Mean fitness of the candidates of each that trained to the end.
        ended_early: Aborted or stopped candidates of each.
        new_bests: Places in `generations` where the best so far was surpassed.
        points: (generation, fitness) of every candidate that trained to the end, those of the
            generation in hand included.
        cross_entropy: Cross-entropy's fitness at the same budget, one value a seed.
    """

    metric: str
    generations: list[int]
    best: list[float]
    best_trial: list[int]
    mean: list[float]
    ended_early: list[int]
    new_bests: list[int]
    points: list[tuple[int, float]]
    cross_entropy: list[float]

    @property
    def last(self) -> int:
        """The last generation with a point."""
        return max(generation for generation, _ in self.points)


def _get_evolution_info(study: Study) -> EvolutionInfo | None:
    history = read_history(study)
    if history is None:
        return None
    info = EvolutionInfo(
        metric=history.recipe.fitness.metric,
        generations=[],
        best=[],
        best_trial=[],
        mean=[],
        ended_early=[],
        new_bests=[],
        points=[(c.generation, c.fitness) for c in history.candidates if c.fitness is not None],
        cross_entropy=list(study.user_attrs.get(CROSS_ENTROPY, {}).values()),
    )
    for best in history.best_of_each():
        candidates = history.generations[best.generation]
        values = [c.fitness for c in candidates if c.fitness is not None]
        if not info.best or max(values) > max(info.best):
            info.new_bests.append(len(info.generations))
        info.generations.append(best.generation)
        info.best.append(max(values))
        info.best_trial.append(best.trial)
        info.mean.append(statistics.fmean(values))
        info.ended_early.append(len(candidates) - len(values))
    return info


def plot_evolution(study: Study, *, candidates: bool = True) -> go.Figure:
    """Plot best and mean fitness of each generation, with cross-entropy beside them.

    Args:
        study: A study of a TaylorGLO search.
        candidates: Whether every candidate is drawn too, as a faint dot.
    """
    info = _get_evolution_info(study)
    if info is None:
        return nothing_to_plot(TITLE, NO_SEARCH)
    if not info.generations:
        return nothing_to_plot(TITLE, NO_GENERATION)
    figure = new_figure(TITLE)
    if candidates:
        figure.add_scatter(
            x=[generation for generation, _ in info.points],
            y=short(value for _, value in info.points),
            mode="markers",
            name="candidates",
            marker={"color": GREY, "size": 5, "opacity": 0.35},
            hovertemplate="a candidate of generation %{x}: %{y:.4f}<extra></extra>",
        )
    if info.cross_entropy:
        _add_cross_entropy(figure, info)
    figure.add_scatter(
        x=info.generations,
        y=short(info.mean),
        mode="lines",
        name="mean",
        line={"color": BLUE, "dash": "dot", "width": 2},
        customdata=info.ended_early,
        hovertemplate="generation %{x}: mean %{y:.4f} of the candidates that trained, "
        "%{customdata} ended early<extra></extra>",
    )
    figure.add_scatter(
        x=info.generations,
        y=short(info.best),
        mode="lines",
        name="best",
        line={"color": BLUE, "width": 2.5},
        customdata=info.best_trial,
        hovertemplate="generation %{x}: best %{y:.4f}, trial %{customdata}<extra></extra>",
    )
    figure.add_scatter(
        x=[info.generations[i] for i in info.new_bests],
        y=short(info.best[i] for i in info.new_bests),
        mode="markers",
        name="new best",
        marker={
            "color": VERMILION,
            "size": 11,
            "symbol": "diamond",
            "line": {"color": "white", "width": 1},
        },
        customdata=[info.best_trial[i] for i in info.new_bests],
        hovertemplate="new best in generation %{x}: %{y:.4f}, trial %{customdata}<extra></extra>",
    )
    figure.update_xaxes(title_text="generation", range=[-0.4, info.last + 0.4])
    figure.update_yaxes(title_text=f"fitness ({plain(info.metric)})", range=_range(info))
    return figure.update_layout(legend=LEGEND_BELOW)


def _range(info: EvolutionInfo) -> list[float]:
    """From below the lowest line: candidates that hardly learn would squeeze all the others."""
    lines = [*info.mean, *info.best, *info.cross_entropy]
    margin = 0.05 * (max(lines) - min(lines)) or 0.01
    return [min(lines) - margin, max(lines) + margin]


def _add_cross_entropy(figure: go.Figure, info: EvolutionInfo) -> None:
    ends = [-0.4, info.last + 0.4]
    values = info.cross_entropy
    low, mean, high = min(values), statistics.fmean(values), max(values)
    if low < high:
        figure.add_scatter(
            x=[*ends, *reversed(ends)],
            y=short([low, low, high, high]),
            fill="toself",
            fillcolor="rgba(0,0,0,0.08)",
            line={"width": 0},
            mode="lines",
            hoverinfo="skip",
            showlegend=False,
        )
    figure.add_scatter(
        x=ends,
        y=short([mean, mean]),
        mode="lines",
        name="cross-entropy",
        line={"color": "#000000", "dash": "dash", "width": 1.5},
        hovertemplate=f"cross-entropy at the same budget: mean {mean:.4f}, {low:.4f} to "
        f"{high:.4f} on {len(values)} seeds<extra></extra>",
    )
