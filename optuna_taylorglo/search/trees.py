"""Genetic programming on trees, and which of them are the same function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from functools import lru_cache
from itertools import product
from random import Random
from typing import TypeVar

from optuna_taylorglo.losses.tree import MAX_SIZE, OPERATORS, Tree

T = TypeVar("T")

LEAVES = tuple(name for name, arity in OPERATORS.items() if arity == 0)
FUNCTIONS = tuple(name for name, arity in OPERATORS.items() if arity > 0)

FIRST_DEPTH = 3
"""Greatest depth of the first generation's trees; Baikal's is 2."""

NEW_PART_DEPTH = 2
"""Greatest depth of the part that a mutation puts into a tree."""

_LEAF_SHARE = 1 / 3
"""Probability that a tree that need not be full ends before its depth."""

_TRIES = 50
"""Children that may turn out too deep, or without y, until a parent takes their place."""


def one_of(dice: Random, items: Sequence[T]) -> T:
    """One of several, each equally likely."""
    return items[int(dice.random() * len(items))]


def random_tree(dice: Random, depth: int, *, full: bool) -> Tree:
    """A random tree.

    Args:
        dice: Random numbers.
        depth: Its depth, or its greatest depth.
        full: Whether every leaf lies at that depth (Koza's "full"), or some before ("grow").
    """
    if depth == 0 or (not full and dice.random() < _LEAF_SHARE):
        return Tree(one_of(dice, LEAVES))
    operator = one_of(dice, FUNCTIONS)
    children = (random_tree(dice, depth - 1, full=full) for _ in range(OPERATORS[operator]))
    return Tree(operator, tuple(children))


def first_tree(dice: Random, max_depth: int) -> Tree:
    """A tree of the first generation: ramped half-and-half, drawn until it depends on y."""
    while True:
        depth = 1 + int(dice.random() * min(FIRST_DEPTH, max_depth))
        tree = random_tree(dice, depth, full=dice.random() < 0.5)
        if depends_on_outputs(tree):
            return tree


def child(dice: Random, parent: Callable[[], Tree], *, crossover: float, max_depth: int) -> Tree:
    """A tree made of one or two others.

    Args:
        dice: Random numbers.
        parent: Draws a parent.
        crossover: Probability that a part of a second parent takes the place of a part of the
            first; otherwise a new part does.
        max_depth: Its greatest depth.

    Returns:
        The first child that depends on y; the first parent if there is none.
    """
    crosses = dice.random() < crossover
    first = parent()
    for _ in range(_TRIES):
        if crosses:
            part = one_of(dice, list(parent().nodes()))
        else:
            part = random_tree(dice, int(dice.random() * (NEW_PART_DEPTH + 1)), full=False)
        position = int(dice.random() * first.size)
        if first.size - list(first.nodes())[position].size + part.size > MAX_SIZE:
            continue
        made = _with_part(first, position, part, max_depth)
        if made is not None and depends_on_outputs(made):
            return made
    return first


def _with_part(tree: Tree, position: int, part: Tree, max_depth: int) -> Tree | None:
    """The tree with another part at a node, counted in prefix order; None if it gets too deep."""
    if position == 0:
        return part if part.depth <= max_depth else None
    children = list(tree.children)
    i, position = 0, position - 1
    while position >= children[i].size:
        position -= children[i].size
        i += 1
    made = _with_part(children[i], position, part, max_depth - 1)
    if made is None:
        return None
    children[i] = made
    return Tree(tree.operator, tuple(children))


# Functions are compared at these targets and outputs, in decimal arithmetic, which rounds the same
# on every machine: workers must agree on which trees are new.
_TARGETS = [Decimal(x) for x in ("0", "1", "0.3718281828459")]
_OUTPUTS = [
    Decimal(y)
    for y in (
        "0.0031830988618379",
        "0.1170710678118655",
        "0.3660254037844386",
        "0.6180339887498949",
        "0.8660254037844387",
        "0.9917293060986577",
    )
]
_GRID = tuple(product(_TARGETS, _OUTPUTS))

_EXACT = Context(prec=34, traps=[])
_COMPARED = Context(prec=12, traps=[])
_LEAST = Decimal("1e-20")
"""Smaller values are rounding errors of 0."""

Value = Decimal | None
"""A value, or None where the function is not finite: no operation makes that finite again."""

FunctionKey = tuple[Value, ...]


@lru_cache(maxsize=2**16)
def function_key(tree: Tree) -> FunctionKey:
    """Values on the grid to twelve digits: equal keys mean equal functions."""
    return tuple(
        value if value is None else _COMPARED.plus(value) if abs(value) >= _LEAST else Decimal(0)
        for value in _values(tree)
    )


def depends_on_outputs(tree: Tree) -> bool:
    """Whether the function changes with y where it is finite; a loss that does not has no slope."""
    key, n = function_key(tree), len(_OUTPUTS)
    rows = (set(key[i : i + n]) - {None} for i in range(0, len(key), n))
    return "y" in tree.to_prefix() and any(len(row) > 1 for row in rows)


@lru_cache(maxsize=2**17)
def _values(tree: Tree) -> FunctionKey:
    """The tree on the grid, as `losses.tree_values` has it; cached, as children share parts."""
    if tree.operator in ("x", "y"):
        return tuple(point["xy".index(tree.operator)] for point in _GRID)
    if not tree.children:
        return (Decimal(tree.operator),) * len(_GRID)
    operation = _OPERATIONS[tree.operator]
    points = zip(*map(_values, tree.children), strict=True)
    results = (None if None in operands else operation(*operands) for operands in points)
    return tuple(value if value is not None and value.is_finite() else None for value in results)


_OPERATIONS: dict[str, Callable[..., Decimal]] = {
    "+": _EXACT.add,
    "-": _EXACT.subtract,
    "*": _EXACT.multiply,
    "/": _EXACT.divide,
    "log": _EXACT.ln,
    "square": lambda a: _EXACT.multiply(a, a),
    "sqrt": _EXACT.sqrt,
}
