"""Genetic programming on trees: how random ones are drawn, and how two make a third.

Random numbers come from `random.Random.random` alone, the one method of Python's generators whose
numbers are promised to stay the same from version to version.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar

from optuna_taylorglo.losses.tree import MAX_SIZE, OPERATORS, Tree

T = TypeVar("T")

LEAVES = tuple(name for name, arity in OPERATORS.items() if arity == 0)
FUNCTIONS = tuple(name for name, arity in OPERATORS.items() if arity > 0)

FIRST_DEPTH = 3
"""Greatest depth of the first generation's trees; Baikal's is 2."""

NEW_PART_DEPTH = 2
"""Greatest depth of what a mutation puts into a tree."""

_LEAF_SHARE = 1 / 3
"""How often a tree that need not be full ends before its depth."""

_TRIES = 50
"""Children that may turn out too deep, or without y, until a parent takes their place."""


def one_of(dice: Random, items: Sequence[T]) -> T:
    """One of several, each as likely."""
    return items[int(dice.random() * len(items))]


def random_tree(dice: Random, depth: int, *, full: bool) -> Tree:
    """A random tree.

    Args:
        dice: Random numbers.
        depth: Its depth, or what that is at most.
        full: Whether every leaf lies at that depth (Koza's "full"), or some before ("grow").
    """
    if depth == 0 or (not full and dice.random() < _LEAF_SHARE):
        return Tree(one_of(dice, LEAVES))
    operator = one_of(dice, FUNCTIONS)
    children = (random_tree(dice, depth - 1, full=full) for _ in range(OPERATORS[operator]))
    return Tree(operator, tuple(children))


def first_tree(dice: Random, max_depth: int, is_wanted: Callable[[Tree], bool]) -> Tree:
    """A tree of the first generation: ramped half-and-half, drawn until it is wanted."""
    while True:
        depth = 1 + int(dice.random() * min(FIRST_DEPTH, max_depth))
        tree = random_tree(dice, depth, full=dice.random() < 0.5)
        if is_wanted(tree):
            return tree


def child(
    dice: Random,
    parent: Callable[[], Tree],
    *,
    crossover: float,
    max_depth: int,
    is_wanted: Callable[[Tree], bool],
) -> Tree:
    """A tree made of one or two others.

    Args:
        dice: Random numbers.
        parent: Draws a parent.
        crossover: Probability that a part of a second parent takes the place of a part of the
            first; otherwise a new part does.
        max_depth: Its greatest depth.
        is_wanted: Tells whether a tree is worth while.

    Returns:
        The child; the first parent if none was wanted.
    """
    crosses = dice.random() < crossover
    first = parent()
    for _ in range(_TRIES):
        if crosses:
            part = one_of(dice, list(parent().nodes()))
        else:
            part = random_tree(dice, int(dice.random() * (NEW_PART_DEPTH + 1)), full=False)
        made = _with_part(first, int(dice.random() * first.size), part, max_depth)
        if made is not None and is_wanted(made):
            return made
    return first


def _with_part(tree: Tree, position: int, part: Tree, max_depth: int) -> Tree | None:
    """The tree with another part at a node, counted in prefix order; None if it gets too large."""
    old = list(tree.nodes())[position]
    if tree.size - old.size + part.size > MAX_SIZE or part.depth > max_depth:
        return None
    return _replaced(tree, position, part, max_depth)


def _replaced(tree: Tree, position: int, part: Tree, max_depth: int) -> Tree | None:
    if position == 0:
        return part if part.depth <= max_depth else None
    position -= 1
    children = list(tree.children)
    for i, operand in enumerate(children):
        if position < operand.size:
            made = _replaced(operand, position, part, max_depth - 1)
            if made is None:
                return None
            children[i] = made
            return Tree(tree.operator, tuple(children))
        position -= operand.size
    raise AssertionError("a position is that of a node")
