"""The winner and the best loss of each generation as curves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go
from optuna.study import Study
from plotly.colors import sample_colorscale

from optuna_taylorglo.evolution.history import Candidate, SearchHistory, read_history
from optuna_taylorglo.losses.expansion import FloatArray
from optuna_taylorglo.verdict.selection import is_undecided, selected_loss
from optuna_taylorglo.visualization import _style as style

if TYPE_CHECKING:
    from optuna_taylorglo.losses.tree_loss import EvolvedLoss

TITLE = "Winner and best losses"


def _probabilities() -> FloatArray:
    """0.01 to 0.99, denser towards both ends, where losses have their poles; shape (33,)."""
    low = np.geomspace(0.01, 0.5, 17)
    return np.concatenate([low, 1 - low[-2::-1]])


def plot_loss_functions(
    study: Study, *, normalize: bool = False, progress: float = 0.0
) -> go.Figure:
    """Plot the winner and the best loss of each generation in binary mode, shifted to end at 0.

    Binary mode is the loss with two classes over the probability y of the target, here from 0.01
    to 0.99.

    Args:
        study: A study of a TaylorGLO search.
        normalize: Whether each curve is divided by its slope at y = 1/2 relative to
            cross-entropy's, which leaves only its shape. Curves that rise there are left out:
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
        reason = "a loss over raw logits is not a function of the probability."
        return style.nothing_to_plot(title, reason)
    if not history.best_of_each:
        return style.nothing_to_plot(title, style.NO_GENERATION)
    settings = history.recipe.loss
    is_mean = settings.class_reduction == "mean" and settings.base != "cross_entropy"
    reduction = 2 if is_mean else 1
    best = _best_curves(history, reduction if normalize else None, progress)
    if not best:
        reason = "no curve is finite and falls at y = 1/2, where scale would be divided out."
        return style.nothing_to_plot(title, reason)
    label = winner_label(study, history)
    selected = _curve(selected_loss(study).loss, reduction if normalize else None, progress)
    y, last = _probabilities(), max(history.n_finished - 1, 1)
    cross_entropy = (-np.log(y) + np.log(y[-1])) / reduction
    figure = style.apply(go.Figure(), title)

    def add(values: FloatArray, line: dict[str, Any], text: str, **trace: Any) -> None:
        template = f"{text}<br>loss %{{y:.3f}} at y = %{{x:.2f}}<extra></extra>"
        places = {"x": y.round(4).tolist(), "y": values.round(4).tolist()}
        figure.add_scatter(**places, mode="lines", line=line, hovertemplate=template, **trace)

    for candidate, values in best:
        (color,) = sample_colorscale(style.LIGHT_TO_DARK, [candidate.generation / last])
        text = f"generation {candidate.generation + 1}, trial {candidate.trial}"
        text += f", fitness {candidate.fitness:.4f}"
        add(values, {"color": color, "width": 1.5}, text, showlegend=False)
    black = {"color": "black", "dash": "dash", "width": 2.5}
    add(cross_entropy, black, "cross-entropy", name="cross-entropy")
    if selected is not None:
        orange = {"color": style.VERMILION, "width": 4}
        add(selected, orange, style.plain(label), name=style.wrapped(label))
    # Lines have no color axis: an invisible marker brings the color bar.
    marker = {"color": [1], "coloraxis": "coloraxis"}
    figure.add_scatter(x=[None], y=[None], mode="markers", marker=marker, showlegend=False)
    drawn = [values for _, values in best] + ([] if selected is None else [selected])
    low, high = np.min(drawn), max(np.max(drawn), -np.log(0.1) / reduction)
    margin = 0.04 * (high - low)
    unit = "slope of cross-entropy at ½" if normalize else f"0 at y = {y[-1]:g}"
    figure.update_xaxes(title_text="probability y of the target", range=[0, 1])
    figure.update_yaxes(title_text=f"loss ({unit})", range=[low - margin, high + margin])
    bar = {"title": {"text": "generation"}} | style.whole_ticks(last + 1)
    scale = {"colorscale": style.LIGHT_TO_DARK, "cmin": 1, "cmax": last + 1, "colorbar": bar}
    return figure.update_layout(coloraxis=scale)


def plot_losses(losses: Mapping[str, EvolvedLoss]) -> go.Figure:
    """Plot losses with two classes over the probability of the target, as steep as cross-entropy.

    Args:
        losses: Losses by the names that the figure shows.

    Returns:
        The figure. A loss that cannot begin to learn with two classes has no curve.

    Examples:
        >>> from optuna_taylorglo import BaikalLoss
        >>> from optuna_taylorglo.visualization import plot_losses
        >>> figure = plot_losses({"Baikal": BaikalLoss()})
        >>> [trace.name for trace in figure.data]
        ['cross-entropy', 'Baikal']
    """
    figure, y = style.apply(go.Figure(), "Losses, scale divided out"), _probabilities()
    curves = {name: _curve(loss, 1, 0.0) for name, loss in losses.items()}
    black = {"color": "black", "dash": "dash"}
    figure.add_scatter(x=y, y=np.log(y[-1] / y), mode="lines", line=black, name="cross-entropy")
    for name, curve in curves.items():
        if curve is not None:
            figure.add_scatter(x=y, y=curve, mode="lines", name=style.plain(name))
    figure.update_xaxes(title_text="probability y of the target", range=[0, 1])
    least = min((float(curve.min()) for curve in curves.values() if curve is not None), default=0.0)
    shown = [min(least, 0.0) - 0.2, 1.1 * float(np.log(y[-1] / y[0]))]
    return figure.update_yaxes(title_text="loss (slope of cross-entropy at ½)", range=shown)


def _best_curves(
    history: SearchHistory, reduction: int | None, progress: float
) -> list[tuple[Candidate, FloatArray]]:
    """The best candidate of each generation with its curve, if it has one."""
    from optuna_taylorglo.evolution.candidates import candidate_loss

    found = []
    for best in history.best_of_each:
        loss = candidate_loss(history.recipe, best.parameters, history.n_classes)
        if (curve := _curve(loss, reduction, progress)) is not None:
            found.append((best, curve))
    return found


def _curve(loss: EvolvedLoss, reduction: int | None, progress: float) -> FloatArray | None:
    """A loss at `_probabilities`, 0 at the last; None where it is not finite.

    With a reduction, the slope at y = 1/2 is made that of cross-entropy divided by it; a curve that
    rises there is None.
    """
    from optuna_taylorglo.losses.describe import TargetCurve

    curve = TargetCurve(loss, 2, progress=progress)
    values = curve(_probabilities())
    values = values - values[-1]
    if reduction is not None:
        # Cross-entropy in binary mode is -log y, with a slope of -2 at y = 1/2.
        scale = -float(curve.slope(np.array(0.5))) * reduction / 2
        if scale <= 0:
            return None
        values = values / scale
    return values if np.isfinite(values).all() else None


def winner_label(study: Study, history: SearchHistory) -> str:
    """The name of the selected loss, and whether the search ends with it."""
    decided = history.finished and not is_undecided(study, history.recipe)
    return f"{'winner' if decided else 'best so far'}, {selected_loss(study).name}"
