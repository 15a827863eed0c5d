"""The line that several verbs end with: best candidate and cross-entropy beside it."""

from __future__ import annotations

from optuna_taylorglo.search.history import SearchHistory


def fitness_line(history: SearchHistory) -> str:
    """Best candidate and cross-entropy, in words that say how each number came about."""
    parts = []
    if history.best is not None:
        parts.append(
            f"{history.recipe.fitness.metric}: {history.best.values[0]:.4f}, one training of the "
            f"best of {len(history.ranked)} candidates (expect less of it on other seeds)"
        )
    if history.cross_entropy is not None:
        parts.append(f"cross-entropy at the same budget: {history.cross_entropy}")
    return "\n".join(parts) or "No candidate is complete yet."
