"""A candidate of a GLO search, and how a trial holds it."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from optuna.trial import FrozenTrial

from optuna_taylorglo.attributes import TREE
from optuna_taylorglo.losses.tree import Tree, tree_from_prefix
from optuna_taylorglo.study.optuna_private import FIXED_PARAMS


class TreePoint(NamedTuple):
    """A tree, and in the second stage what its nodes are multiplied by.

    Attributes:
        prefix: The tree in prefix form.
        coefficients: One for each node; none in the first stage.
    """

    prefix: tuple[str, ...]
    coefficients: tuple[float, ...] = ()

    @property
    def tree(self) -> Tree:
        return known_tree(self.prefix)


@lru_cache(maxsize=2**16)
def known_tree(prefix: tuple[str, ...]) -> Tree:
    """The tree of a prefix form.

    Raises:
        ValueError: If it is none.
    """
    return tree_from_prefix(prefix)


def coefficient_names(n: int) -> tuple[str, ...]:
    """Parameters that hold the coefficients of a tree of n nodes."""
    return tuple(f"c_{i}" for i in range(n))


def stored_point(trial: FrozenTrial) -> TreePoint | None:
    """The candidate that a trial holds; None if it holds none, or something that is none."""
    prefix = trial.user_attrs.get(TREE)
    if not isinstance(prefix, list) or not all(isinstance(entry, str) for entry in prefix):
        return None
    try:
        tree = known_tree(tuple(prefix))
    except ValueError:
        return None
    params = trial.system_attrs.get(FIXED_PARAMS, {}) | trial.params
    values = [params.get(name) for name in coefficient_names(tree.size)]
    if all(value is None for value in values):
        return TreePoint(tuple(prefix))
    numbers = [float(value) for value in values if _is_number(value)]
    return TreePoint(tuple(prefix), tuple(numbers)) if len(numbers) == len(values) else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
