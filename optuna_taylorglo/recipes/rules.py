"""What a recipe's field may hold: small rules that check a value and say what is allowed."""

import difflib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optuna_taylorglo.errors import RecipeError


@dataclass(frozen=True)
class Rule:
    """A check of one value.

    Attributes:
        allowed: What the rule accepts, in words that follow "must be".
        parse: Returns the value in its stored type; raises ValueError when it is not allowed. A
            message, if the error has one, is shown beside `allowed`.
    """

    allowed: str
    parse: Callable[[Any], Any]

    def apply(self, field: str, value: Any) -> Any:
        """Checks `value` for `field`; raises RecipeError naming both."""
        try:
            return self.parse(value)
        except ValueError as error:
            hint = f" ({error})" if str(error) else ""
            message = f"{show(value)} is not allowed, must be {self.allowed}{hint}"
            raise RecipeError(field, message) from None


def show(value: Any) -> str:
    """A value as a message shows it: in YAML's spelling of null and booleans, and never long."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 100 else text[:97] + "..."


def nearest(name: object, known: Iterable[str]) -> str:
    """The words "did you mean ...?" for a misspelt name, or nothing when none is near."""
    close = difflib.get_close_matches(str(name).lower(), known, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else ""


def number(
    *, above: float | None = None, at_least: float | None = None, below: float | None = None
) -> Rule:
    """A finite real number within the given limits, stored as float."""
    limits = [
        f"{word} {limit:g}"
        for word, limit in (("above", above), ("at least", at_least), ("below", below))
        if limit is not None
    ]

    def parse(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError("text, not a number" if isinstance(value, str) else "")
        try:
            result = float(value)
        except OverflowError:
            raise ValueError from None
        if (
            not math.isfinite(result)
            or (above is not None and result <= above)
            or (at_least is not None and result < at_least)
            or (below is not None and result >= below)
        ):
            raise ValueError
        return result

    return Rule(" ".join(["a finite number", " and ".join(limits)]).strip(), parse)


def integer(at_least: int, at_most: int | None = None) -> Rule:
    """A whole number within the given limits; 4e3 is one, 2.5 is not."""

    def parse(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError("text, not a number" if isinstance(value, str) else "")
        if not math.isfinite(value) or value != int(value):
            raise ValueError
        if value < at_least or (at_most is not None and value > at_most):
            raise ValueError
        return int(value)

    upper = "" if at_most is None else f" and at most {at_most}"
    return Rule(f"a whole number of at least {at_least}{upper}", parse)


def boolean() -> Rule:
    """true or false, and nothing that merely looks like them."""

    def parse(value: Any) -> bool:
        if not isinstance(value, bool):
            raise ValueError
        return value

    return Rule("true or false", parse)


def choice(*options: str) -> Rule:
    """One of a few words."""

    def parse(value: Any) -> str:
        if not isinstance(value, str) or value not in options:
            raise ValueError(nearest(value, options))
        return value

    return Rule(" or ".join((", ".join(options[:-1]), options[-1])), parse)


def text(allowed: str, valid: Callable[[str], bool]) -> Rule:
    """A string for which `valid` holds; `allowed` says so in words."""

    def parse(value: Any) -> str:
        if not isinstance(value, str) or not valid(value):
            raise ValueError
        return value

    return Rule(allowed, parse)


def sequence(allowed: str, item: Rule, valid: Callable[[tuple[Any, ...]], bool]) -> Rule:
    """A list whose items keep `item` and which as a whole keeps `valid`; stored as a tuple."""

    def parse(value: Any) -> tuple[Any, ...]:
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise ValueError
        items = tuple(item.parse(entry) for entry in value)
        if not valid(items):
            raise ValueError
        return items

    return Rule(allowed, parse)


def json_mapping(refused: Mapping[str, str]) -> Rule:
    """A mapping from names to plain JSON values, copied.

    Args:
        refused: Names that may not be keys, each with the reason.
    """

    def parse(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise ValueError
        for name in value:
            if not isinstance(name, str) or not name.isidentifier():
                raise ValueError(f"{show(name)} is no argument name")
            if name in refused:
                raise ValueError(f"{name} {refused[name]}")
        try:
            plain = json.dumps(dict(value), allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(str(error)) from None
        copy: dict[str, Any] = json.loads(plain)
        return copy

    return Rule("a mapping from argument names to plain JSON values", parse)
