"""The form of a Taylor loss: its terms, its parameters, and the polynomial they stand for.

A loss is ``L = -(1/n) Σ_i f(v_i)``, where ``f`` is a polynomial in a few variables of class ``i``,
expanded around a center ``a`` (Eq. 4 of Gonzalez & Miikkulainen, without constant terms, Eq. 5):

    f(v) = Σ_α  c_α · Π_v (v - a_v)^α_v,     c_α = θ_α / α!   (or θ_α itself when `folded`)

This module needs no torch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

VARIABLES = {
    "x": "target probability of the class (one-hot label)",
    "y": "softmax output for the class",
    "z": "raw logit of the class",
    "t": "training progress in [0, 1]",
}
"""The variables a loss may use, and what each one is."""

PREDICTION_VARIABLES = frozenset({"y", "z"})
"""The variables through which a loss reaches the network; terms without one have no gradient."""

_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def finite_numbers(name: str, values: Sequence[float], count: int, takes: str) -> tuple[float, ...]:
    """So many numbers as exact floats, or a ValueError about what bears the name."""
    try:
        numbers = tuple(float(value) for value in values)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{name} must be a sequence of numbers, not {values!r}.") from error
    if len(numbers) != count:
        raise ValueError(f"{name} has {len(numbers)} values; {takes}.")
    for i, number in enumerate(numbers):
        if not math.isfinite(number):
            raise ValueError(f"{name}[{i}] is {number}; all must be finite.")
    return numbers


@dataclass(frozen=True)
class Expansion:
    """The form of a Taylor loss: everything about it but the numbers in θ.

    Attributes:
        order: Order k of the polynomial, at least 1.
        variables: Names out of `VARIABLES`, the most significant first; at least one of them
            a prediction (``y`` or ``z``).
        folded: Whether 1/α! is already multiplied into θ, as in the numbers published by the
            method's authors. The formula printed in the paper has ``folded=False``.

    Examples:
        >>> from optuna_taylorglo import Expansion
        >>> form = Expansion(order=3)
        >>> form.n_parameters
        8
        >>> form.term_names
        ('y', 'y²', 'y³', 'xy', 'xy²', 'x²y')
        >>> Expansion(order=2, variables=("x", "y", "t")).n_parameters
        7
    """

    order: int = 3
    variables: tuple[str, ...] = ("x", "y")
    folded: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.order, bool) or not isinstance(self.order, int) or self.order < 1:
            raise ValueError(f"order must be an integer of at least 1, not {self.order!r}.")
        variables = tuple(self.variables)
        object.__setattr__(self, "variables", variables)
        wrong = not VARIABLES.keys() >= set(variables) or len(set(variables)) < len(variables)
        if wrong or PREDICTION_VARIABLES.isdisjoint(variables):
            names = ", ".join(f"{name} ({meaning})" for name, meaning in VARIABLES.items())
            raise ValueError(
                f"variables must be different names out of {names}, at least one of y and z among "
                f"them, or the loss has no gradient; not {variables!r}."
            )
        if not isinstance(self.folded, bool):
            raise ValueError(f"folded must be true or false, not {self.folded!r}.")

    def __str__(self) -> str:
        return f"order {self.order} over ({', '.join(self.variables)})"

    @cached_property
    def terms(self) -> tuple[tuple[int, ...], ...]:
        """Multi-indices that reach the network, in the order of θ after the center (Eq. 5)."""
        predictions = [i for i, v in enumerate(self.variables) if v in PREDICTION_VARIABLES]
        return tuple(
            alpha
            for alpha in itertools.product(range(self.order + 1), repeat=len(self.variables))
            if sum(alpha) <= self.order and any(alpha[i] > 0 for i in predictions)
        )

    @property
    def n_parameters(self) -> int:
        """Length of θ: the center, then one coefficient for each term."""
        v, k = len(self.variables), self.order
        untouched = v - len(PREDICTION_VARIABLES.intersection(self.variables))
        return v + math.comb(v + k, k) - math.comb(untouched + k, k)

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """``("theta_0", "theta_1", …)``, the names that trials carry."""
        return tuple(f"theta_{i}" for i in range(self.n_parameters))

    @property
    def term_names(self) -> tuple[str, ...]:
        """The terms as text: ``("y", "y²", "y³", "xy", "xy²", "x²y")`` for the default form."""
        return tuple(
            "".join(_power(v, e) for v, e in zip(self.variables, alpha, strict=True) if e)
            for alpha in self.terms
        )

    @property
    def parameter_meanings(self) -> tuple[str, ...]:
        """What each entry of θ is: ``("center of x", "center of y", "y", "y²", …)``."""
        return tuple(f"center of {v}" for v in self.variables) + self.term_names

    @cached_property
    def factors(self) -> tuple[float, ...]:
        """What multiplies the parameter of each term: 1/α!, or 1 where that is folded into θ."""
        if self.folded:
            return (1.0,) * len(self.terms)
        return tuple(1 / math.prod(map(math.factorial, alpha)) for alpha in self.terms)

    def validate(self, theta: Sequence[float]) -> tuple[float, ...]:
        """θ as exact floats, or a ValueError that says what is wrong with it."""
        takes = f"{self} takes {self.n_parameters}: the center, then the coefficient of each term"
        return finite_numbers("theta", theta, self.n_parameters, takes)

    @cached_property
    def _table(self) -> tuple[IntArray, IntArray, FloatArray, IntArray]:
        """Powers, terms, constants, exponents: by the binomial theorem f is the sum over rows of

        constant · θ[term] · Π_v (-a_v)^exponents_v · v^power,

        each power an index of a flattened ``(k+1,) * v`` array.
        """
        shape = (self.order + 1,) * len(self.variables)
        rows = [
            (
                int(np.ravel_multi_index(power, shape)),
                term,
                factor * math.prod(map(math.comb, alpha, power)),
                tuple(a - p for a, p in zip(alpha, power, strict=True)),
            )
            for term, (alpha, factor) in enumerate(
                zip(self.terms, self.factors, strict=True), start=len(self.variables)
            )
            for power in itertools.product(*(range(e + 1) for e in alpha))
        ]
        powers, terms, constants, exponents = map(np.array, zip(*rows, strict=True))
        return powers, terms, constants, exponents

    def coefficients(self, theta: Sequence[float]) -> FloatArray:
        """Coefficients of f in plain powers; entry [i, j] multiplies x^i y^j for (x, y)."""
        values = np.asarray(self.validate(theta))
        powers, terms, constants, exponents = self._table
        products = constants * values[terms]
        products = products * np.prod((-values[: len(self.variables)]) ** exponents, axis=1)
        dense = np.zeros((self.order + 1,) * len(self.variables))
        np.add.at(dense.reshape(-1), powers, products)
        return dense

    def formula(self, theta: Sequence[float], *, digits: int = 4) -> str:
        """f as text, with the numbers of `theta`."""
        values = self.validate(theta)
        shifts = [_shift(v, a, digits) for v, a in zip(self.variables, values, strict=False)]
        coefficients = zip(self.terms, self.factors, values[len(shifts) :], strict=True)
        terms = [
            f"{factor * c:.{digits}g}·"
            + "·".join(_power(s, e) for s, e in zip(shifts, alpha, strict=True) if e)
            for alpha, factor, c in coefficients
            if factor * c
        ]
        return " + ".join(terms).replace("+ -", "- ") or "0"


THIRD_ORDER = Expansion()
"""The form of Eq. 5."""

expansion = lru_cache(Expansion)
"""`Expansion` of the same arguments, the same one for all callers in the process."""


def _power(base: str, exponent: int) -> str:
    return base if exponent == 1 else base + str(exponent).translate(_SUPERSCRIPTS)


def _shift(variable: str, center: float, digits: int) -> str:
    if center == 0:
        return variable
    return f"({variable} {'-' if center > 0 else '+'} {abs(center):.{digits}g})"
