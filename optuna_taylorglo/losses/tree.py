"""Loss functions as expression trees, which GLO evolves, and the form in which they are kept.

A loss is ``L = -(1/n) Σ_i f(x_i, y_i)`` with f a tree over the target x, the softmax output y and
the constants 1 and -1 (Gonzalez & Miikkulainen, "Improved Training Speed, Accuracy, and Data
Utilization Through Loss Function Optimization"). Coefficients, one for each node, multiply what
the nodes give: GLO's second stage finds them for the best tree of its first.

This module needs no torch. Trees are kept in files and databases in prefix form, a flat list of
operators: an operator before its operands, ``["-", "log", "y", "/", "x", "y"]`` for Baikal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

OPERATORS: Mapping[str, int] = MappingProxyType(
    {
        "x": 0,
        "y": 0,
        "1": 0,
        "-1": 0,
        "+": 2,
        "-": 2,
        "*": 2,
        "/": 2,
        "log": 1,
        "square": 1,
        "sqrt": 1,
    }
)
"""What a node may be, and how many operands it takes; without any it is a leaf."""

MAX_DEPTH = 17
"""Edges from a root to its farthest leaf, at most: Koza's limit of genetic programming."""

MAX_SIZE = 255
"""Nodes of a tree at most."""


@dataclass(frozen=True, order=True)
class Tree:
    """A function of x and y; immutable, comparable, and always one that can be evaluated.

    Attributes:
        operator: One of `OPERATORS`.
        children: The operands, as many as it takes.

    Raises:
        ValueError: If the operator is unknown, operands are missing or too many, or the tree gets
            deeper than `MAX_DEPTH` or larger than `MAX_SIZE`.
    """

    operator: str
    children: tuple[Tree, ...] = ()

    def __post_init__(self) -> None:
        arity = _arity(self.operator)
        if len(self.children) != arity:
            raise ValueError(
                f"{self.operator!r} takes {_count(arity, 'operand')}, not {len(self.children)}."
            )
        if self.depth > MAX_DEPTH:
            raise ValueError(f"the tree is deeper than {MAX_DEPTH}.")
        if self.size > MAX_SIZE:
            raise ValueError(f"the tree has {self.size} nodes, more than {MAX_SIZE}.")

    @cached_property
    def size(self) -> int:
        """Number of nodes."""
        return 1 + sum(child.size for child in self.children)

    @cached_property
    def depth(self) -> int:
        """Edges from the root to the farthest leaf; 0 for a leaf."""
        return 1 + max(child.depth for child in self.children) if self.children else 0

    def nodes(self) -> Iterator[Tree]:
        """The subtrees of all nodes in prefix order, itself first."""
        yield self
        for child in self.children:
            yield from child.nodes()

    def to_prefix(self) -> list[str]:
        """The operators in prefix form; `tree_from_prefix` gives the tree back."""
        return [node.operator for node in self.nodes()]


def tree_from_prefix(content: object) -> Tree:
    """The tree of a prefix form, which may come from anywhere.

    Args:
        content: What should be a list of operators.

    Raises:
        ValueError: If it is none; the message says what is wrong with it.
    """
    if not isinstance(content, list | tuple):
        raise ValueError("a tree in prefix form is a list of operators.")
    if not content:
        raise ValueError("the tree is empty.")
    if len(content) > MAX_SIZE:
        raise ValueError(f"the tree has {len(content)} nodes, more than {MAX_SIZE}.")
    missing = 1
    for position, operator in enumerate(content):
        if missing == 0:
            raise ValueError(f"the tree ends before entry {position} of {len(content)}.")
        missing += _arity(operator) - 1
    if missing:
        raise ValueError(f"the tree lacks {_count(missing, 'operand')} at its end.")
    operands: list[Tree] = []
    for operator in reversed(content):
        children = tuple(operands.pop() for _ in range(OPERATORS[operator]))
        operands.append(Tree(operator, children))
    return operands[0]


def check_coefficients(tree: Tree, coefficients: Sequence[float] | None) -> tuple[float, ...]:
    """The coefficients of a tree as exact floats, all 1 for None.

    Args:
        tree: The tree.
        coefficients: One for each node, in prefix order.

    Raises:
        ValueError: If they are not that many finite numbers.
    """
    if coefficients is None:
        return (1.0,) * tree.size
    try:
        values = tuple(float(value) for value in coefficients)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"coefficients must be numbers, not {coefficients!r}.") from error
    if len(values) != tree.size:
        raise ValueError(
            f"coefficients has {len(values)} values; the tree takes {tree.size}, one for each node "
            "in prefix order."
        )
    for position, value in enumerate(values):
        if not math.isfinite(value):
            raise ValueError(f"coefficients[{position}] is {value}; all must be finite.")
    return values


def _arity(operator: object) -> int:
    if isinstance(operator, str) and operator in OPERATORS:
        return OPERATORS[operator]
    found = f"{operator[:20]!r}" if isinstance(operator, str) else f"a {type(operator).__name__}"
    raise ValueError(f"{found} is no operator; known are {', '.join(OPERATORS)}.")


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


CROSS_ENTROPY = tree_from_prefix(["*", "x", "log", "y"])
"""With the sum over classes, cross-entropy."""

BAIKAL = tree_from_prefix(["-", "log", "y", "/", "x", "y"])
"""The loss that GLO found (`losses.baikal`)."""

BAIKAL_CMA_COEFFICIENTS = (2.7279, 0.9863, 1.5352, -1.1135, 1.3716, -0.8411)
"""On the nodes of `BAIKAL` they give BaikalCMA, what CMA-ES made of it."""
