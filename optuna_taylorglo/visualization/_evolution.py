"""Fitness over the generations."""

from __future__ import annotations

import plotly.graph_objects as go
from optuna.study import Study

from optuna_taylorglo.search.history import read_history
from optuna_taylorglo.visualization import _style as style

TITLE = "Evolution of the fitness"


def plot_evolution(study: Study, *, candidates: bool = True) -> go.Figure:
    """Plot best and mean fitness of each generation, and cross-entropy at the same budget.

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
    bests = history.best_of_each
    if not bests:
        return style.nothing_to_plot(TITLE, style.NO_GENERATION)
    trained = [c for c in history.candidates if c.fitness is not None]
    generations = [history.generations[best.generation] for best in bests]
    means = [generation.mean or 0.0 for generation in generations]
    ends = [0.6, trained[-1].generation + 1.4]
    shown = [*means, *(best.fitness or 0.0 for best in bests)]
    figure = style.apply(go.Figure(), TITLE)
    if candidates:
        figure.add_scatter(
            x=[c.generation + 1 for c in trained],
            y=[c.fitness for c in trained],
            mode="markers",
            name="candidates",
            marker={"color": style.GRAY, "size": 5, "opacity": 0.35},
            hovertemplate="candidate of generation %{x}: %{y:.4f}<extra></extra>",
        )
    if (cross_entropy := history.cross_entropy) is not None:
        low, high = cross_entropy.low, cross_entropy.high
        if low < high:
            style.add_band(figure, ends, [low, low], [high, high], "black")
        figure.add_scatter(
            x=ends,
            y=[cross_entropy.mean] * 2,
            mode="lines",
            name="cross-entropy",
            line={"color": "black", "dash": "dash", "width": 1.5},
            hovertemplate=f"cross-entropy at the same budget: {cross_entropy}<extra></extra>",
        )
        shown += [low, high]
    figure.add_scatter(
        x=[best.generation + 1 for best in bests],
        y=means,
        mode="lines",
        name="mean",
        line={"color": style.BLUE, "dash": "dot"},
        customdata=[generation.ended_early for generation in generations],
        hovertemplate="generation %{x}: mean %{y:.4f} of the candidates that trained to the end, "
        "%{customdata} ended early<extra></extra>",
    )
    records = {trial.number for trial in history.new_bests}
    for name, drawn, look in (
        ("best", bests, {"mode": "lines", "line": {"color": style.BLUE, "width": 2.5}}),
        (
            "new best",
            [best for best in bests if best.trial in records],
            {
                "mode": "markers",
                "marker": {"color": style.VERMILION, "size": 10, "symbol": "diamond"},
            },
        ),
    ):
        figure.add_scatter(
            x=[best.generation + 1 for best in drawn],
            y=[best.fitness for best in drawn],
            name=name,
            customdata=[best.trial for best in drawn],
            hovertemplate=f"generation %{{x}}: {name} %{{y:.4f}}, trial %{{customdata}}"
            "<extra></extra>",
            **look,
        )
    # Not of all candidates: those that hardly learned would compress the rest.
    margin = 0.05 * (max(shown) - min(shown)) or 0.01
    fitness = history.recipe.fitness
    smaller = ", smaller is better" if fitness.mode == "min" else ""
    figure.update_xaxes(title_text="generation", range=ends)
    figure.update_yaxes(
        title_text=f"fitness ({style.plain(fitness.metric)}{smaller})",
        range=[min(shown) - margin, max(shown) + margin],
    )
    glo = history.recipe.search.glo
    if glo is not None and trained[-1].generation >= glo.n_generations:
        look = {"line": {"color": style.GRAY, "width": 1}, "annotation_yanchor": "bottom"}
        for text, side in (("trees", "top left"), ("coefficients", "top right")):
            note = {"annotation_text": text, "annotation_position": side}
            figure.add_vline(x=glo.n_generations + 0.5, **look, **note)
    return figure
