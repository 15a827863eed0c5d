"""Trees as people write them: numbers multiplied out, brackets where they are needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from optuna_taylorglo.losses.tree import Tree, check_coefficients

_SUM, _QUOTIENT, _PRODUCT, _POWER, _ATOM = range(5)
"""How tightly the outermost operator of a text holds it together. A quotient counts as looser than
a product, so that nobody has to know how "a / b·c" is read."""

_Text = tuple[str, int]


@dataclass(frozen=True)
class _Term:
    """A number times a product of texts, divided by another product of texts."""

    number: float
    above: tuple[_Text, ...] = ()
    below: tuple[_Text, ...] = ()

    def times(self, number: float) -> _Term:
        return replace(self, number=self.number * number)

    def over(self, other: _Term) -> _Term:
        # A quotient by 0 stays one: that the tree has it is what there is to see.
        number, below = (other.number, ()) if other.number else (1.0, (("0", _ATOM),))
        return _Term(
            self.number / number,
            self.above + other.below,
            (*self.below, *other.above, *below),
        )

    def written(self, digits: int) -> _Text:
        size = f"{abs(self.number):.{digits}g}"
        shown = [size] if size != "1" or not self.above else []
        if len(self.above) + len(shown) == 1:
            text, level = self.above[0] if self.above else (size, _ATOM)
            if self.number < 0 or self.below:
                text, level = _inside((text, level), _PRODUCT), _PRODUCT
        else:
            text = "·".join(shown + [_inside(factor, _PRODUCT) for factor in self.above])
            level = _PRODUCT
        if self.number < 0:
            text = f"-{text}"
        if not self.below:
            return text, level
        if len(self.below) == 1:
            divisor = _inside(self.below[0], _POWER)
        else:
            divisor = f"({'·'.join(_inside(factor, _PRODUCT) for factor in self.below)})"
        return f"{text} / {divisor}", _QUOTIENT


def formula(tree: Tree, coefficients: Sequence[float] | None = None, *, digits: int = 4) -> str:
    """The tree as people write it, such as ``log(y) - x / y``, with its numbers multiplied out.

    Args:
        tree: The tree.
        coefficients: One for each node, in prefix order.
        digits: Significant digits of numbers.
    """
    return _term(tree, iter(check_coefficients(tree, coefficients)), digits).written(digits)[0]


def _term(tree: Tree, coefficients: Iterator[float], digits: int) -> _Term:
    """A tree with its coefficients, of which it takes its own."""
    coefficient = next(coefficients)
    operands = [_term(child, coefficients, digits) for child in tree.children]
    return _applied(tree.operator, operands, digits).times(coefficient)


def _applied(operator: str, operands: list[_Term], digits: int) -> _Term:
    match operator, operands:
        case (("1" | "-1"), []):
            return _Term(float(operator))
        case _, []:
            return _Term(1.0, ((operator, _ATOM),))
        case "square", [_Term(number, (), ())]:
            return _Term(number**2)
        case "square", [base]:
            text = _inside(replace(base, number=1.0).written(digits), _ATOM)
            return _Term(base.number**2, ((f"{text}²", _POWER),))
        case _, [inner]:
            name = "√" if operator == "sqrt" else operator
            return _Term(1.0, ((f"{name}({inner.written(digits)[0]})", _ATOM),))
        case "*", [first, second]:
            return _Term(
                first.number * second.number,
                first.above + second.above,
                first.below + second.below,
            )
        case "/", [first, second]:
            return first.over(second)
        case _, [first, second]:
            return _Term(1.0, ((_sum(operator, first, second, digits), _SUM),))
    raise AssertionError(f"{operator} of {len(operands)} operands")  # no Tree has this


def _sum(operator: str, first: _Term, second: _Term, digits: int) -> str:
    if second.number < 0:
        operator, second = "+" if operator == "-" else "-", second.times(-1)
    # a - (b + c) keeps its brackets, a + (b - c) needs none.
    last = _inside(second.written(digits), _QUOTIENT if operator == "-" else _SUM)
    return f"{first.written(digits)[0]} {operator} {last}"


def _inside(operand: _Text, level: int) -> str:
    """An operand's text, in brackets where it is too loose."""
    text, own = operand
    return f"({text})" if own < level else text
