"""What stands in for the fields that a recipe's file leaves out, where others decide it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PAPER_LOSS: dict[str, Any] = {
    "base": "none",
    "order": 3,
    "variables": ("x", "y"),
    "folded": False,
    "class_reduction": "mean",
}
PAPER_SEARCH: dict[str, Any] = {
    "popsize": 28,
    "sigma": 1.2,
    "n_generations": 60,
    "space": "theta",
    "filter": "none",
    "start": None,
}
# Without known losses a search takes longer, and has nothing to fall back on.
COLD_SEARCH: dict[str, Any] = {"popsize": 16, "sigma": 1.2, "n_generations": 12}
COLD_SELECTION: dict[str, Any] = {"candidates": 8}

BOX = {
    "alpha": (-4.0, 6.0),
    "beta": (-6.0, 6.0),
    "gamma": (-4.0, 6.0),
    "delta": (-6.0, 6.0),
    "log_scale": (-5.0, 1.0),
    "smoothing": (0.0, 0.7),
}
"""Where good anchored losses lie. Without known losses CMA-ES starts in the middle, and σ = 1.2 is
a quarter of the width."""

Shape = tuple[float, float, float, float, float]
"""α, β, γ, δ and ε: all parameters of an anchored loss but the logarithm s of its scale."""

CROSS_ENTROPY: Shape = (0.0, 0.0, 0.0, 0.0, 0.0)
LABEL_SMOOTHING: Shape = (0.0, 0.0, 0.0, 0.0, 0.4)
POLY: Shape = (8.0, 0.0, 0.0, 0.0, 0.0)  # PolyLoss-1 with its epsilon 8

SCALES = (-4.5, -3.5, -2.5, -1.5, -0.5, 0.5)
"""Logarithms of the scales at which each known loss is trained first."""
STANDARD: dict[Shape, tuple[float, ...]] = {
    CROSS_ENTROPY: (-3.0, -1.5, 0.0),
    LABEL_SMOOTHING: (-2.0, 0.0),
    POLY: (-4.0, -2.0),
}
"""Standard losses of the family that are trained with them, and their scales."""
STANDARD_NAMES = {
    CROSS_ENTROPY: "cross-entropy",
    LABEL_SMOOTHING: "label smoothing 0.4",
    POLY: "PolyLoss-1 (epsilon 8)",
}
NEIGHBORS = (-0.6, -0.2, 0.2, 0.6)
"""Distances from the best scale, in the second round."""


def rounds_of_known(n_shapes: int, *, scaled: bool) -> tuple[int, int]:
    """Trainings in each round, with or without different scales."""
    if not scaled:
        return n_shapes + len(STANDARD), 2 * len(NEIGHBORS)
    return n_shapes * len(SCALES) + sum(map(len, STANDARD.values())), 2 * len(NEIGHBORS)


def complete(content: object) -> object:
    """The content of a recipe's file, with what its preset and its other fields imply.

    What the file says has priority. Wrong values stay, for the fields to refuse.
    """
    if not isinstance(content, Mapping):
        return content
    loss, search = content.get("loss", {}), content.get("search", {})
    if not isinstance(loss, Mapping) or not isinstance(search, Mapping):
        return content
    implied: dict[str, Any] = {}
    if content.get("preset") == "paper":
        # Of the early abort the defaults are the paper's.
        implied = {"early_abort": {}, "selection": None}
        implied_loss, implied_search = PAPER_LOSS, PAPER_SEARCH | {"scale": "free"}
    elif search.get("method") == "glo":  # trees have no base
        implied_loss, implied_search = PAPER_LOSS, PAPER_SEARCH
    else:
        implied_loss, implied_search = _implied_by_form(loss)
        base, reduction = (implied_loss | {**loss}).get("base"), loss.get("class_reduction")
        if base == "none" or reduction == "mean" or search.get("space") == "theta":
            implied_search["start"] = None  # no loss of the library is of this kind
    if "start" in implied_search | {**search} and not _has_known(search.get("start")):
        implied_search = COLD_SEARCH | implied_search
        selection = content.get("selection", implied.get("selection", {}))
        if isinstance(selection, Mapping):
            content = {**content, "selection": {**COLD_SELECTION, **selection}}
    return {
        **implied,
        **content,
        "loss": {**implied_loss, **loss},
        "search": {**implied_search, **search},
    }


def _has_known(start: object) -> bool:
    """Whether known losses are trained first."""
    return isinstance(start, Mapping) and bool(start.get("losses") or start.get("study"))


def _implied_by_form(loss: Mapping[Any, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of loss and search that are allowed with order and variables of the polynomial."""
    order, variables = loss.get("order", 3), loss.get("variables", ["x", "y"])
    has_logits = isinstance(variables, list | tuple) and "z" in variables
    implied_loss = {"base": "none"} if has_logits else {}
    if variables not in (["x", "y"], ("x", "y")):
        return implied_loss, {"space": "theta", "filter": "none", "start": None}
    if order == 3:
        return implied_loss, {}
    filter = "steady" if order in (1, 2) else "trainable"
    return implied_loss, {"space": "theta", "filter": filter, "start": None}
