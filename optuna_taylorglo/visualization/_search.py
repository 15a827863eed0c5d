"""A search over its generations: the fitness, and the distribution that CMA-ES draws from."""

from __future__ import annotations

import math

import numpy as np
import plotly.graph_objects as go
from optuna.study import Study
from plotly.subplots import make_subplots

from optuna_taylorglo.evolution.candidates import form_of, make_sampler, parameter_names
from optuna_taylorglo.evolution.glo import GLOSampler
from optuna_taylorglo.evolution.history import read_history
from optuna_taylorglo.losses.tree import formula
from optuna_taylorglo.visualization import _style as style

EVOLUTION = "Evolution of the fitness"
STATE = "State of the search"

_LABELS = {
    "alpha": "α  target, linear",
    "beta": "β  target, square",
    "gamma": "γ  all classes, square",
    "delta": "δ  all classes, cube",
    "log_scale": "s  logarithm of the scale",
    "smoothing": "ε  label smoothing",
}
_RATE_LABEL = "s  logarithm of the learning rate's factor"


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
        return style.nothing_to_plot(EVOLUTION, style.NO_SEARCH)
    bests = history.best_of_each
    if not bests:
        return style.nothing_to_plot(EVOLUTION, style.NO_GENERATION)
    trained = [c for c in history.candidates if c.fitness is not None]
    generations = [history.generations[best.generation] for best in bests]
    means = [generation.mean or 0.0 for generation in generations]
    ends = [0.6, trained[-1].generation + 1.4]
    shown = [*means, *(best.fitness or 0.0 for best in bests)]
    figure = style.apply(go.Figure(), EVOLUTION)
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
    line = {"mode": "lines", "line": {"color": style.BLUE, "width": 2.5}}
    diamond = {"color": style.VERMILION, "size": 10, "symbol": "diamond"}
    new = [best for best in bests if best.trial in records]
    for name, drawn, look in (
        ("best", bests, line),
        ("new best", new, {"mode": "markers", "marker": diamond}),
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
    ticks = style.whole_ticks(trained[-1].generation + 1)
    figure.update_xaxes(title_text="generation", range=ends, **ticks)
    figure.update_yaxes(
        title_text=f"fitness ({style.metric(fitness)})",
        range=[min(shown) - margin, max(shown) + margin],
    )
    search = history.recipe.search
    n_first, stages = len(search.rounds), ("known losses", "CMA-ES")
    if search.glo is not None:
        n_first, stages = search.glo.n_generations, ("trees", "coefficients")
    if n_first and trained[-1].generation >= n_first:
        for text, side in zip(stages, ("top left", "top right"), strict=True):
            figure.add_vline(
                x=n_first + 0.5,
                line={"color": style.GRAY, "width": 1},
                annotation={"text": text, "yanchor": "bottom"},
                annotation_position=side,
            )
    return figure


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
        return style.nothing_to_plot(STATE, style.NO_SEARCH)
    sampler = make_sampler(history.recipe, history.n_classes)
    states = sampler.search_state(study)
    if not states:
        reason = "CMA-ES has not begun yet: other candidates come first."
        return style.nothing_to_plot(STATE, reason)
    if len(states) < 2:
        return style.nothing_to_plot(STATE, style.NO_GENERATION)
    if isinstance(sampler, GLOSampler):
        assert sampler.best_tree is not None
        labels = [f"c{i}  {formula(node)}" for i, node in enumerate(sampler.best_tree.nodes())]
    else:
        meanings = form_of(history.recipe).parameter_meanings
        thetas = {f"theta_{i}": f"θ{i}  {meaning}" for i, meaning in enumerate(meanings)}
        scale = history.recipe.search.scale
        rate = {"log_scale": _RATE_LABEL} if scale == "learning_rate" else {}
        names = parameter_names(history.recipe)
        labels = [(_LABELS | rate | thetas)[name] for name in names]
    labels = [label if len(label) <= 32 else label[:31] + "…" for label in labels]
    panels = [
        (label, [s.mean[i] for s in states], [s.stds[i] for s in states])
        for i, label in enumerate(labels)
    ]
    panels.append(("step size σ", [s.sigma for s in states], []))
    panels.append(("condition number", [s.condition_number for s in states], []))
    n_rows = math.ceil(len(panels) / 2)
    figure = make_subplots(
        rows=n_rows,
        cols=2,
        horizontal_spacing=0.12,
        vertical_spacing=0.3 / n_rows,
        subplot_titles=[label for label, _, _ in panels],
    )
    style.apply(figure, STATE, height=140 * n_rows + 130)
    figure.update_annotations(font_size=13)
    x = [state.generation + 1 for state in states]
    for i, (label, values, stds) in enumerate(panels):
        place = {"row": i // 2 + 1, "col": i % 2 + 1}
        figure.update_yaxes(nticks=4, **place)
        if stds:
            low, high = np.subtract(values, stds), np.add(values, stds)
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
    ticks = style.whole_ticks(x[-1], most=5)
    figure.update_xaxes(range=[x[0] - 0.4, x[-1] + 0.4], showticklabels=False, **ticks)
    for i in range(len(panels))[-2:]:  # the lowest of each column
        place = {"row": i // 2 + 1, "col": i % 2 + 1}
        figure.update_xaxes(title_text="generation", showticklabels=True, **place)
    return figure.update_layout(showlegend=False, margin={"l": 45, "r": 15})
