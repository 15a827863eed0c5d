"""Random trees, the same for the same generator."""

from __future__ import annotations

import numpy as np

from optuna_taylorglo.losses.tree import OPERATORS, Tree

LEAVES = [operator for operator, arity in OPERATORS.items() if arity == 0]
NODES = list(OPERATORS)


def random_tree(rng: np.random.Generator, max_depth: int = 6) -> Tree:
    """Any tree, of this depth at most."""
    allowed = NODES if max_depth else LEAVES
    operator = allowed[rng.integers(len(allowed))]
    children = [random_tree(rng, max_depth - 1) for _ in range(OPERATORS[operator])]
    return Tree(operator, tuple(children))


def random_trees(n: int, seed: int = 0, max_depth: int = 6) -> list[Tree]:
    """So many different trees over y that are more than a leaf."""
    rng = np.random.default_rng(seed)
    found: dict[Tree, None] = {}
    while len(found) < n:
        tree = random_tree(rng, max_depth)
        if tree.size > 2 and "y" in tree.to_prefix():
            found[tree] = None
    return list(found)
