"""Figures of a search and of its verdict; each function returns a plotly Figure."""

from optuna_taylorglo.visualization._basin import plot_basin
from optuna_taylorglo.visualization._candidates import plot_candidates
from optuna_taylorglo.visualization._loss_functions import plot_loss_functions, plot_losses
from optuna_taylorglo.visualization._search import plot_evolution, plot_search_state
from optuna_taylorglo.visualization._verdict import (
    plot_comparison,
    plot_learning_curves,
    plot_sweep,
)

__all__ = [
    "plot_basin",
    "plot_candidates",
    "plot_comparison",
    "plot_evolution",
    "plot_learning_curves",
    "plot_loss_functions",
    "plot_losses",
    "plot_search_state",
    "plot_sweep",
]
