"""The line that several verbs end with: best candidate and cross-entropy beside it."""

from __future__ import annotations

from optuna_taylorglo.search.history import SearchHistory
from optuna_taylorglo.verdict.winner import Selection


def fitness_line(history: SearchHistory, selection: Selection | None = None) -> str:
    """Best candidate and cross-entropy, in words that say how each number came about."""
    parts = []
    if selection is not None:
        chosen = selection.winner
        parts.append(
            f"{history.recipe.fitness.metric}: {chosen.mean:.4f}, mean of {len(chosen.values)} "
            f"full trainings of {chosen.name}, the best of {len(selection.finalists)} losses"
        )
    elif history.best is not None:
        parts.append(
            f"{history.recipe.fitness.metric}: {history.best.values[0]:.4f}, one training of the "
            f"best of {len(history.ranked)} candidates (expect worse on other seeds)"
        )
    if history.cross_entropy is not None:
        budget = "evaluations'" if selection is not None else "same"
        parts.append(f"cross-entropy at the {budget} budget: {history.cross_entropy}")
        recipe = history.recipe
        same_length = recipe.budget.evaluation == recipe.budget.full
        if selection is not None and same_length and _is_behind(selection, history):
            parts.append(
                "On validation it is not better than cross-entropy as it is: this search found no "
                "loss to take instead."
            )
    return "\n".join(parts) or "No candidate is complete yet."


def _is_behind(selection: Selection, history: SearchHistory) -> bool:
    sign, mean = history.recipe.fitness.sign, selection.winner.mean
    reference = history.cross_entropy
    return mean is not None and reference is not None and sign * (mean - reference.mean) <= 0
