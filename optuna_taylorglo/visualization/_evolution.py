"""How the fitness of candidates got better."""

from __future__ import annotations

import plotly.graph_objects as go
from optuna.study import Study

from optuna_taylorglo.search.history import CrossEntropy, read_history
from optuna_taylorglo.visualization import _style as style

TITLE = "Evolution of the fitness"


def plot_evolution(study: Study, *, candidates: bool = True) -> go.Figure:
    """Plot best and mean fitness of each generation, with cross-entropy beside them.

    Args:
        study: A study of a TaylorGLO search.
        candidates: Whether every candidate is drawn too, as a faint dot.

    Returns:
        The figure; empty, with a warning, if there is nothing to plot.

    Examples:
        >>> import optuna
        >>> from optuna_taylorglo.visualization import plot_evolution
        >>> study = optuna.load_study(study_name="digits_mlp", storage="sqlite:///taylorglo.db")
        >>> figure = plot_evolution(study)
        >>> [trace.name for trace in figure.data]
        ['candidates', None, 'cross-entropy', 'mean', 'best', 'new best']
    """
    history = read_history(study)
    if history is None:
        return style.nothing_to_plot(TITLE, style.NO_SEARCH)
    bests, cross_entropy = history.best_of_each, history.cross_entropy
    if not bests:
        return style.nothing_to_plot(TITLE, style.NO_GENERATION)
    trained = [c for c in history.candidates if c.fitness is not None]
    generations = [history.generations[best.generation] for best in bests]
    numbers = style.from_one(best.generation for best in bests)
    ends = [0.6, trained[-1].generation + 1.4]
    figure = style.new_figure(TITLE)
    if candidates:
        figure.add_scatter(
            x=style.from_one(c.generation for c in trained),
            y=style.short(c.fitness for c in trained),
            mode="markers",
            name="candidates",
            marker={"color": style.GRAY, "size": 5, "opacity": 0.35},
            hovertemplate="a candidate of generation %{x}: %{y:.4f}<extra></extra>",
        )
    if cross_entropy is not None:
        _add_cross_entropy(figure, cross_entropy, ends)
    figure.add_scatter(
        x=numbers,
        y=style.short(generation.mean for generation in generations),
        mode="lines",
        name="mean",
        line={"color": style.BLUE, "dash": "dot", "width": 2},
        customdata=[generation.ended_early for generation in generations],
        hovertemplate="generation %{x}: mean %{y:.4f} of the candidates that trained, "
        "%{customdata} ended early<extra></extra>",
    )
    figure.add_scatter(
        x=numbers,
        y=style.short(best.fitness for best in bests),
        mode="lines",
        name="best",
        line={"color": style.BLUE, "width": 2.5},
        customdata=[best.trial for best in bests],
        hovertemplate="generation %{x}: best %{y:.4f}, trial %{customdata}<extra></extra>",
    )
    records = {trial.number for trial in history.new_bests}
    new_bests = [best for best in bests if best.trial in records]
    figure.add_scatter(
        x=style.from_one(best.generation for best in new_bests),
        y=style.short(best.fitness for best in new_bests),
        mode="markers",
        name="new best",
        marker={
            "color": style.VERMILION,
            "size": 11,
            "symbol": "diamond",
            "line": {"color": "white", "width": 1},
        },
        customdata=[best.trial for best in new_bests],
        hovertemplate="new best in generation %{x}: %{y:.4f}, trial %{customdata}<extra></extra>",
    )
    # From below the lowest line: candidates that hardly learn would squeeze all the others.
    lines = [y for trace in figure.data if trace.mode == "lines" for y in trace.y]
    margin = 0.05 * (max(lines) - min(lines)) or 0.01
    fitness = history.recipe.fitness
    smaller = ", smaller is better" if fitness.mode == "min" else ""
    figure.update_xaxes(title_text="generation", range=ends)
    figure.update_yaxes(
        title_text=f"fitness ({style.plain(fitness.metric)}{smaller})",
        range=[min(lines) - margin, max(lines) + margin],
    )
    glo = history.recipe.search.glo
    if glo is not None and trained[-1].generation >= glo.n_generations:
        _add_stages(figure, glo.n_generations + 0.5)
    return figure.update_layout(legend=style.LEGEND_BELOW)


def _add_stages(figure: go.Figure, boundary: float) -> None:
    """A line between GLO's stages, their names above it."""
    figure.add_vline(x=boundary, line={"color": style.GRAY, "width": 1})
    for name, anchor in (("trees ", "right"), (" coefficients", "left")):
        figure.add_annotation(
            text=name,
            x=boundary,
            xanchor=anchor,
            y=1,
            yref="paper",
            yanchor="bottom",
            showarrow=False,
            font={"size": 12, "color": style.GRAY},
        )


def _add_cross_entropy(figure: go.Figure, fitness: CrossEntropy, ends: list[float]) -> None:
    """Its mean as a line, its range over seeds as a band."""
    if fitness.low < fitness.high:
        figure.add_scatter(
            x=[*ends, *reversed(ends)],
            y=style.short([fitness.low, fitness.low, fitness.high, fitness.high]),
            fill="toself",
            fillcolor="rgba(0,0,0,0.08)",
            line={"width": 0},
            mode="lines",
            hoverinfo="skip",
            showlegend=False,
        )
    figure.add_scatter(
        x=ends,
        y=style.short([fitness.mean, fitness.mean]),
        mode="lines",
        name="cross-entropy",
        line={"color": "#000000", "dash": "dash", "width": 1.5},
        hovertemplate=f"cross-entropy at the same budget: {fitness}<extra></extra>",
    )
