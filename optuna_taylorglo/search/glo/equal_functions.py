"""Which trees are the same function, so that it is evaluated once.

Trees are compared by their values on a fixed grid of targets and outputs. What folding constants,
exchanging operands or canceling terms would show to be equal has equal values there. They are
computed in decimal arithmetic, which is the same on every processor, to many more digits than are
compared: so all workers agree on which trees are new.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Context, Decimal
from functools import lru_cache
from itertools import product

from optuna_taylorglo.losses.tree import Tree

_TARGETS = tuple(map(Decimal, ("0", "1", "0.3718281828459")))
_OUTPUTS = tuple(
    map(
        Decimal,
        (
            "0.0031830988618379",
            "0.1170710678118655",
            "0.3660254037844386",
            "0.6180339887498949",
            "0.8660254037844387",
            "0.9917293060986577",
        ),
    )
)
_GRID = tuple(product(_TARGETS, _OUTPUTS))

_EXACT = Context(prec=34, traps=[])
_COMPARED = Context(prec=12, traps=[])
_LEAST = Decimal("1e-20")
"""What is smaller is what rounding left of 0."""

Value = Decimal | None
"""A value, or None where the function is not finite: no operation makes that finite again."""

FunctionKey = tuple[Value, ...]


@lru_cache(maxsize=2**16)
def function_key(tree: Tree) -> FunctionKey:
    """Values on the grid to twelve digits: equal keys mean equal functions."""
    return tuple(map(_rounded, _values(tree)))


def depends_on_outputs(tree: Tree) -> bool:
    """Whether the function changes with y where it is finite; a loss that does not has no slope."""
    if not any(node.operator == "y" for node in tree.nodes()):
        return False
    key, n = function_key(tree), len(_OUTPUTS)
    rows = [key[i : i + n] for i in range(0, len(key), n)]
    return any(len(set(row) - {None}) > 1 for row in rows)


def _rounded(value: Value) -> Value:
    if value is None or abs(value) >= _LEAST:
        return None if value is None else _COMPARED.plus(value)
    return Decimal(0)


@lru_cache(maxsize=2**17)
def _values(tree: Tree) -> FunctionKey:
    """The tree on the grid, as `losses.tree_values` has it; kept, as children share most parts."""
    if tree.operator == "x":
        return tuple(x for x, _ in _GRID)
    if tree.operator == "y":
        return tuple(y for _, y in _GRID)
    if not tree.children:
        return (Decimal(tree.operator),) * len(_GRID)
    operation = _OPERATIONS[tree.operator]
    points = zip(*map(_values, tree.children), strict=True)
    return tuple(_finite(operation, operands) for operands in points)


def _finite(operation: Callable[..., Decimal], operands: tuple[Value, ...]) -> Value:
    if None in operands:
        return None
    result = operation(*operands)
    return result if result.is_finite() else None


_OPERATIONS: dict[str, Callable[..., Decimal]] = {
    "+": _EXACT.add,
    "-": _EXACT.subtract,
    "*": _EXACT.multiply,
    "/": _EXACT.divide,
    "log": _EXACT.ln,
    "square": lambda a: _EXACT.multiply(a, a),
    "sqrt": _EXACT.sqrt,
}
