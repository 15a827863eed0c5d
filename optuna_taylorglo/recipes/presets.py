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
}


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
    return {
        **implied,
        **content,
        "loss": {**implied_loss, **loss},
        "search": {**implied_search, **search},
    }


def _implied_by_form(loss: Mapping[Any, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of loss and search that are allowed with order and variables of the polynomial."""
    order, variables = loss.get("order", 3), loss.get("variables", ["x", "y"])
    has_logits = isinstance(variables, list | tuple) and "z" in variables
    implied_loss = {"base": "none"} if has_logits else {}
    if variables not in (["x", "y"], ("x", "y")):
        return implied_loss, {"space": "theta", "filter": "none"}
    if order == 3:
        return implied_loss, {}
    return implied_loss, {"space": "theta", "filter": "steady" if order in (1, 2) else "trainable"}
