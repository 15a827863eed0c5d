"""Loss functions as expression trees, which GLO evolves: their form, formula and expansion."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

import numpy as np

from optuna_taylorglo.losses.expansion import THIRD_ORDER, Expansion, FloatArray, finite_numbers

OPERATORS: Mapping[str, int] = MappingProxyType(
    {"x": 0, "y": 0, "1": 0, "-1": 0}
    | {"+": 2, "-": 2, "*": 2, "/": 2, "log": 1, "square": 1, "sqrt": 1}
)
"""What a node may be, and how many operands it takes; a leaf takes none."""

MAX_DEPTH = 17  # of a tree: Koza's limit of genetic programming
MAX_SIZE = 255  # nodes of a tree


@dataclass(frozen=True, order=True)
class Tree:
    """An operator and its operands, a function of x and y; immutable and always valid."""

    operator: str
    children: tuple[Tree, ...] = ()

    def __post_init__(self) -> None:
        arity = _arity(self.operator)
        if len(self.children) != arity:
            raise ValueError(f"{self.operator!r} takes {arity} operands, not {len(self.children)}.")
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
        """The operators in prefix form; `tree_from_prefix` is the inverse."""
        return [node.operator for node in self.nodes()]


def tree_from_prefix(content: object) -> Tree:
    """The tree of a list of operators, each before its operands; a ValueError if it is none."""
    if not isinstance(content, list | tuple):
        raise ValueError("a tree in prefix form is a list of operators.")
    if len(content) > MAX_SIZE:
        raise ValueError(f"the tree has {len(content)} nodes, more than {MAX_SIZE}.")
    rest = list(reversed(content))

    def read() -> Tree:
        if not rest:
            raise ValueError("the tree lacks an operand at its end.")
        operator = rest.pop()
        return Tree(operator, tuple(read() for _ in range(_arity(operator))))

    tree = read()
    if rest:
        raise ValueError(f"the tree ends before entry {tree.size} of {len(content)}.")
    return tree


def check_coefficients(tree: Tree, coefficients: Sequence[float] | None) -> tuple[float, ...]:
    """The coefficients of a tree's nodes in prefix order as exact floats, all 1 for None."""
    if coefficients is None:
        return (1.0,) * tree.size
    takes = f"the tree takes {tree.size}, one for each node in prefix order"
    return finite_numbers("coefficients", coefficients, tree.size, takes)


def _arity(operator: object) -> int:
    if isinstance(operator, str) and operator in OPERATORS:
        return OPERATORS[operator]
    raise ValueError(f"{repr(operator)[:20]} is no operator; known are {', '.join(OPERATORS)}.")


CROSS_ENTROPY_TREE = tree_from_prefix(["*", "x", "log", "y"])
"""With the sum over classes, cross-entropy."""

BAIKAL = tree_from_prefix(["-", "log", "y", "/", "x", "y"])
"""The loss that GLO found."""

BAIKAL_CMA_COEFFICIENTS = (2.7279, 0.9863, 1.5352, -1.1135, 1.3716, -0.8411)
"""On the nodes of `BAIKAL` they give BaikalCMA, which CMA-ES found."""


# How tightly the outermost operator of a text binds; no reader must know how "a / b·c" is read.
_SUM, _QUOTIENT, _PRODUCT, _POWER, _ATOM = range(5)

_Text = tuple[str, int]


@dataclass(frozen=True)
class _Term:
    """A number times a product of texts, divided by another product of texts."""

    number: float
    above: tuple[_Text, ...] = ()
    below: tuple[_Text, ...] = ()

    def written(self, digits: int) -> _Text:
        size = f"{abs(self.number):.{digits}g}"
        factors = [*([(size, _ATOM)] if size != "1" or not self.above else []), *self.above]
        text, level = factors[0]
        if len(factors) > 1:
            text, level = "·".join(_inside(factor, _PRODUCT) for factor in factors), _PRODUCT
        elif self.number < 0 or self.below:
            text, level = _inside(factors[0], _PRODUCT), _PRODUCT
        if self.number < 0:
            text = f"-{text}"
        if not self.below:
            return text, level
        if len(self.below) == 1:
            return f"{text} / {_inside(self.below[0], _POWER)}", _QUOTIENT
        divisor = "·".join(_inside(factor, _PRODUCT) for factor in self.below)
        return f"{text} / ({divisor})", _QUOTIENT


def formula(tree: Tree, coefficients: Sequence[float] | None = None, *, digits: int = 4) -> str:
    """The tree as text, such as ``log(y) - x / y``, with its numbers multiplied out."""
    return _term(tree, iter(check_coefficients(tree, coefficients)), digits).written(digits)[0]


def _term(tree: Tree, coefficients: Iterator[float], digits: int) -> _Term:
    """A tree times its coefficient; consumes the coefficients of its nodes."""
    coefficient = next(coefficients)
    operands = [_term(child, coefficients, digits) for child in tree.children]
    match tree.operator, operands:
        case (("1" | "-1") as number, []):
            term = _Term(float(number))
        case leaf, []:
            term = _Term(1.0, ((leaf, _ATOM),))
        case "square", [_Term(number, (), ())]:
            term = _Term(number**2)
        case "square", [base]:
            text = _inside(replace(base, number=1.0).written(digits), _ATOM)
            term = _Term(base.number**2, ((f"{text}²", _POWER),))
        case name, [inner]:
            name = "√" if name == "sqrt" else name
            term = _Term(1.0, ((f"{name}({inner.written(digits)[0]})", _ATOM),))
        case "*", [a, b]:
            term = _Term(a.number * b.number, a.above + b.above, a.below + b.below)
        case "/", [a, b]:
            # A quotient by 0 stays one, to be seen.
            number, below = (b.number, ()) if b.number else (1.0, (("0", _ATOM),))
            term = _Term(a.number / number, a.above + b.below, (*a.below, *b.above, *below))
        case sign, [a, b]:
            if b.number < 0:
                sign, b = "+" if sign == "-" else "-", replace(b, number=-b.number)
            # a - (b + c) keeps its brackets, a + (b - c) needs none.
            last = _inside(b.written(digits), _QUOTIENT if sign == "-" else _SUM)
            term = _Term(1.0, ((f"{a.written(digits)[0]} {sign} {last}", _SUM),))
    return replace(term, number=term.number * coefficient)


def _inside(operand: _Text, level: int) -> str:
    """An operand's text, in brackets where it binds too loosely."""
    text, own = operand
    return f"({text})" if own < level else text


def expanded_theta(
    tree: Tree,
    coefficients: Sequence[float] | None = None,
    *,
    form: Expansion = THIRD_ORDER,
    center: tuple[float, float] = (0.0, 0.5),
) -> tuple[float, ...]:
    """θ of a tree's expansion: the center, then its derivatives there (Eq. 4) by terms of Eq. 5."""
    if form.variables != ("x", "y"):
        raise ValueError(f"form is {form}; a tree is expanded over (x, y).")
    with np.errstate(all="ignore"):
        series = _series(tree, iter(check_coefficients(tree, coefficients)), center, form.order)
    theta = list(center)
    for i, j in form.terms:
        factorials = 1 if form.folded else math.factorial(i) * math.factorial(j)
        theta.append(float(series[i, j]) * factorials)
    if not np.isfinite([series[0, 0], *theta]).all():
        raise ValueError(
            f"center is x = {center[0]}, y = {center[1]}, where {formula(tree, coefficients)} or a "
            "derivative of it is not finite."
        )
    return form.validate(theta)


def _series(
    tree: Tree, factors: Iterator[float], center: tuple[float, float], order: int
) -> FloatArray:
    """The series of a tree times its coefficient; consumes the coefficients of its nodes.

    Entry [i, j] multiplies (x - x0)^i (y - y0)^j, and is 0 where i + j > k.
    """
    factor, operator = next(factors), tree.operator
    operands = [_series(child, factors, center, order) for child in tree.children]
    result, powers = np.zeros((order + 1, order + 1)), np.arange(order + 1)
    match operator, operands:
        case (("1" | "-1"), []):
            result[0, 0] = float(operator)
        case _, []:
            result[0, 0] = center["xy".index(operator)]
            result[(1, 0) if operator == "x" else (0, 1)] = 1.0
        case "+", [a, b]:
            result = a + b
        case "-", [a, b]:
            result = a - b
        case "*", [a, b]:
            result = _product(a, b)
        case "/", [a, b]:
            result = _product(a, _composed((-1.0) ** powers / b[0, 0] ** (powers + 1), b))
        case "square", [a]:
            result = _product(a, a)
        case "log", [a]:
            value, higher = a[0, 0], powers[1:]
            result = _composed(np.array([np.log(value), *(-((-1 / value) ** higher) / higher)]), a)
        case "sqrt", [a]:
            # Binomial series: √(a + δ) = √a Σ_m C(1/2, m) (δ/a)^m.
            binomials = np.cumprod([1.0, *((1.5 - powers[1:]) / powers[1:])])
            result = _composed(np.sqrt(a[0, 0]) * binomials / a[0, 0] ** powers, a)
    return factor * result


def _composed(outer: FloatArray, series: FloatArray) -> FloatArray:
    """``Σ_m outer[m] δ^m`` with δ the series without its constant, by Horner's rule."""
    delta = series.copy()
    delta[0, 0] = 0.0
    result = np.zeros_like(series)
    for coefficient in outer[::-1]:
        result = _product(result, delta)
        result[0, 0] += coefficient
    return result


def _product(a: FloatArray, b: FloatArray) -> FloatArray:
    size = len(a)
    result = np.zeros_like(a)
    for i in range(size):
        for j in range(size - i):
            result[i:, j:] += a[i, j] * b[: size - i, : size - j]
    degrees = np.add.outer(np.arange(size), np.arange(size))
    return np.where(degrees < size, result, 0.0)
