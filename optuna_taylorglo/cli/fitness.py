"""The line that several verbs end with: best candidate and cross-entropy beside it."""

from __future__ import annotations

from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.search.history import Progress


def fitness_line(state: Progress, recipe: Recipe) -> str:
    """Best candidate and cross-entropy, in words that say how each number came about."""
    parts = []
    if state.best is not None:
        parts.append(
            f"{recipe.fitness.metric}: {state.best.values[0]:.4f}, one training of the best of "
            f"{state.counts_of_complete} candidates (expect less of it on other seeds)"
        )
    if state.cross_entropy:
        low, high = min(state.cross_entropy), max(state.cross_entropy)
        mean = sum(state.cross_entropy) / len(state.cross_entropy)
        parts.append(
            f"cross-entropy at the same budget: {mean:.4f}, mean of {len(state.cross_entropy)} "
            f"seeds ({low:.4f} to {high:.4f})"
        )
    return "\n".join(parts) or "No candidate is complete yet."
