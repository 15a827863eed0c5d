"""The winner and the best loss of each generation as curves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go
from optuna.study import Study

from optuna_taylorglo.losses.expansion import FloatArray
from optuna_taylorglo.search.history import SearchHistory, read_history
from optuna_taylorglo.verdict.winner import SelectedLoss, is_undecided, selected_loss
from optuna_taylorglo.visualization import _style as style

if TYPE_CHECKING:
    from optuna_taylorglo.losses.load import EvolvedLoss

TITLE = "Winner and best losses"

# A cubic is smooth to the eye at this many points, and 60 of them are still a small figure.
_POINTS = 33
_LEAST_PROBABILITY = 0.01


@dataclass(frozen=True)
class LossFunctionsInfo:
    """What `plot_loss_functions` draws.

    Attributes:
        probability: Predicted probability of the target's class, shape (P,).
        generations: Generation of each curve.
        trials: Trial of each curve.
        fitness: Fitness of each curve.
        curves: Loss of each at each probability, 0 at the last.
        cross_entropy_probability: The same without 0, where cross-entropy has its pole.
        cross_entropy: Cross-entropy there, in the class reduction of the others.
        winner: Loss of the winner at each probability; None where it rises and scale is divided
            out, or is not finite.
        winner_name: What it is.
    """

    probability: list[float]
    generations: list[int]
    trials: list[int]
    fitness: list[float]
    curves: list[list[float]]
    cross_entropy_probability: list[float]
    cross_entropy: list[float]
    winner: list[float] | None = None
    winner_name: str = ""


def _get_loss_functions_info(
    history: SearchHistory,
    winner: SelectedLoss | None = None,
    *,
    undecided: bool = False,
    normalize: bool = False,
    progress: float = 0.0,
) -> LossFunctionsInfo:
    from optuna_taylorglo.losses.describe import target_curve
    from optuna_taylorglo.losses.tree_loss import TreeLoss
    from optuna_taylorglo.search.candidates import candidate_loss

    settings = history.recipe.loss
    anchored = settings.base == "cross_entropy"
    reduction = 2 if settings.class_reduction == "mean" and not anchored else 1
    losses = [
        candidate_loss(history.recipe, best.parameters, history.n_classes)
        for best in history.best_of_each
    ]
    with_poles = anchored or any(isinstance(loss, TreeLoss) for loss in losses)
    y = _probabilities() if with_poles else np.linspace(0, 1, _POINTS)
    y_log = np.geomspace(_LEAST_PROBABILITY, 1, _POINTS)
    # Cross-entropy in binary mode is -log y, with a slope of -2 at y = 1/2.
    cross_entropy = -np.log(y_log) / reduction
    info = LossFunctionsInfo(y.tolist(), [], [], [], [], y_log.tolist(), cross_entropy.tolist())

    def drawn(loss: EvolvedLoss) -> list[float] | None:
        curve = target_curve(loss, 2, progress=progress)
        values = curve(y)
        values = values - values[-1]
        if normalize:
            slope = -float(curve.slope(np.array(0.5))) * reduction / 2
            if slope <= 0:
                return None
            values = values / slope
        return [float(value) for value in values] if np.isfinite(values).all() else None

    for best, loss in zip(history.best_of_each, losses, strict=True):
        curve = drawn(loss)
        if curve is not None:
            info.generations.append(best.generation)
            info.trials.append(best.trial)
            info.fitness.append(best.fitness or 0.0)
            info.curves.append(curve)
    if winner is None:
        return info
    decided = history.finished and not undecided
    name = f"{'winner' if decided else 'best so far'}, {winner.name}"
    return replace(info, winner=drawn(winner.loss), winner_name=name)


def _probabilities() -> FloatArray:
    """Places, the closer the nearer to the poles: at 0, and with label smoothing at 1."""
    low = np.geomspace(_LEAST_PROBABILITY, 0.5, _POINTS // 2 + 1)
    return np.concatenate([low, 1 - low[-2::-1]])


def plot_loss_functions(
    study: Study, *, normalize: bool = False, progress: float = 0.0
) -> go.Figure:
    """Plot the winner and the best loss of each generation in binary mode, shifted to 0 at y = 1.

    Binary mode is the loss with two classes, over the probability y that the target's class gets.
    Losses anchored at cross-entropy, and trees, are drawn up to y = 0.99, and are 0 there.

    Args:
        study: A study of a TaylorGLO search.
        normalize: Whether each curve is divided by its slope at y = 1/2 relative to
            cross-entropy's, which leaves its shape only. Curves that rise there are left out:
            such a loss cannot begin to learn with two classes.
        progress: Training progress, for losses in ``t``.

    Returns:
        The figure; empty, with a warning, if there is nothing to plot.

    Examples:
        >>> import optuna
        >>> from optuna_taylorglo.visualization import plot_loss_functions
        >>> study = optuna.load_study(study_name="digits_mlp", storage="sqlite:///taylorglo.db")
        >>> figure = plot_loss_functions(study, normalize=True)
        >>> figure.layout.title.text
        'Winner and best losses, scale divided out'
    """
    title = TITLE + (", scale divided out" if normalize else "")
    history = read_history(study)
    if history is None:
        return style.nothing_to_plot(title, style.NO_SEARCH)
    if "z" in history.recipe.loss.variables:
        reason = "a loss over raw logits is no function of the probability."
        return style.nothing_to_plot(title, reason)
    if not history.best_of_each:
        return style.nothing_to_plot(title, style.NO_GENERATION)
    info = _get_loss_functions_info(
        history,
        selected_loss(study),
        undecided=is_undecided(study, history.recipe),
        normalize=normalize,
        progress=progress,
    )
    if not info.curves:
        reason = "no curve is finite, and falls where scale would be divided out."
        return style.nothing_to_plot(title, reason)
    last = info.generations[-1]
    figure = style.new_figure(title)
    for generation, trial, fitness, curve, color in zip(
        info.generations,
        info.trials,
        info.fitness,
        info.curves,
        style.on_generation_scale(info.generations, last),
        strict=True,
    ):
        figure.add_scatter(
            x=style.short(info.probability, 4),
            y=style.short(curve, 4),
            mode="lines",
            line={"color": color, "width": 1.5},
            showlegend=False,
            hovertemplate=f"generation {generation + 1}, trial {trial}, fitness {fitness:.4f}<br>"
            "loss %{y:.3f} at y = %{x:.2f}<extra></extra>",
        )
    figure.add_scatter(
        x=style.short(info.cross_entropy_probability, 4),
        y=style.short(info.cross_entropy, 4),
        mode="lines",
        name="cross-entropy",
        line={"color": "#000000", "dash": "dash", "width": 2.5},
        hovertemplate="cross-entropy %{y:.3f} at y = %{x:.2f}<extra></extra>",
    )
    if info.winner is not None:
        figure.add_scatter(
            x=style.short(info.probability, 4),
            y=style.short(info.winner, 4),
            mode="lines",
            name=style.wrapped(info.winner_name),
            line={"color": style.VERMILION, "width": 4},
            hovertemplate=f"{style.plain(info.winner_name)}<br>"
            "loss %{y:.3f} at y = %{x:.2f}<extra></extra>",
        )
    # Lines have no color axis of their own: a marker that is not there brings the key.
    figure.add_scatter(
        x=[None],
        y=[None],
        mode="markers",
        marker={"color": [1], "showscale": True, **style.generation_bar(last)},
        showlegend=False,
        hoverinfo="skip",
    )
    figure.update_xaxes(title_text="probability y of the target", range=[0, 1])
    figure.update_yaxes(
        title_text="loss (slope of cross-entropy at ½)"
        if normalize
        else f"loss, 0 at y = {info.probability[-1]:g}",
        range=_range(info),
    )
    return figure.update_layout(legend=style.LEGEND_BELOW)


def _range(info: LossFunctionsInfo) -> list[float]:
    """All of the curves, and of cross-entropy what it takes to see where it goes."""
    curves = [*info.curves, *([] if info.winner is None else [info.winner])]
    values = [value for curve in curves for value in curve]
    low, high = min(values), max(*values, info.cross_entropy[len(info.cross_entropy) // 2])
    margin = 0.04 * (high - low) or 0.1
    return [low - margin, high + margin]
