from __future__ import annotations

import itertools
import math
import re
from typing import Any

import numpy as np
import pytest
import sympy

from optuna_taylorglo.losses.expansion import Expansion

FORMS = [("x", "y"), ("x", "y", "t"), ("x", "y", "z"), ("y",), ("x", "z"), ("x", "y", "z", "t")]


def test_third_order_is_equation_5() -> None:
    form = Expansion()
    assert form.terms == ((0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (2, 1))
    assert form.term_names == ("y", "y²", "y³", "xy", "xy²", "x²y")
    assert form.parameter_meanings[:3] == ("center of x", "center of y", "y")
    assert form.factors == (1, 1 / 2, 1 / 6, 1, 1 / 2, 1 / 2)
    assert set(Expansion(folded=True).factors) == {1.0}
    counts = {(2, "xy"): 5, (3, "xy"): 8, (4, "xy"): 12, (3, "xyt"): 13, (3, "xyz"): 19}
    for (order, variables), count in counts.items():
        assert Expansion(order, tuple(variables)).n_parameters == count


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize(
    ("order", "variables"),
    [(k, v) for k in range(1, 7) for v in FORMS if k * len(v) <= 18],
)
def test_coefficients_equal_sympys(order: int, variables: tuple[str, ...], folded: bool) -> None:
    form = Expansion(order, variables, folded)
    rng = np.random.default_rng([order, len(variables), folded])
    numerators = rng.integers(-20, 21, form.n_parameters)
    theta = [sympy.Rational(int(value), 8) for value in numerators]
    symbols = sympy.symbols(variables)
    exponents = itertools.product(range(order + 1), repeat=len(variables))
    terms = [
        alpha
        for alpha in exponents
        if sum(alpha) <= order
        and any(e for v, e in zip(variables, alpha, strict=True) if v in ("y", "z"))
    ]
    assert list(form.terms) == terms
    assert form.n_parameters == len(variables) + len(terms) == len(form.parameter_meanings)
    polynomial = sympy.Integer(0)
    for value, alpha in zip(theta[len(variables) :], terms, strict=True):
        term = value
        for symbol, center, exponent in zip(symbols, theta, alpha, strict=False):
            term *= (symbol - center) ** exponent
            if not folded:
                term /= sympy.factorial(exponent)
        polynomial += term
    found = form.coefficients([float(value) for value in theta])
    expected = np.zeros_like(found)
    for powers, value in sympy.Poly(polynomial, *symbols).terms():
        expected[powers] = float(value)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("variables", FORMS)
def test_formula_with_numbers_is_the_function(variables: tuple[str, ...], folded: bool) -> None:
    form = Expansion(3, variables, folded)
    rng = np.random.default_rng(0)
    theta = rng.normal(size=form.n_parameters)
    theta[0] = 0.0
    text = form.formula(theta, digits=17).replace("·", "*")
    text = re.sub("[²³]", lambda power: "**2" if power[0] == "²" else "**3", text)
    point = dict(zip(variables, rng.normal(size=len(variables)), strict=True))
    dense = form.coefficients(theta)
    expected = sum(
        value * math.prod(point[v] ** e for v, e in zip(variables, powers, strict=True))
        for powers, value in np.ndenumerate(dense)
    )
    assert eval(text, {}, point) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *[((order,), "order must be an integer of at least 1") for order in (0, 2.0, "3", True)],
        *[
            ((3, variables), "variables must be different names out of x .*, at least one of y")
            for variables in (("x", "w"), ("x", "y", "y"), ("x", "t"), ())
        ],
        ((3, ("x", "y"), 1), "folded must be true or false, not 1"),
    ],
)
def test_refuses_a_wrong_form(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Expansion(*arguments)


@pytest.mark.parametrize(
    ("theta", "message"),
    [
        ([1.0] * 7, "theta has 7 values; .* takes 8"),
        ([0.0] * 5 + [math.nan] + [0.0] * 2, r"theta\[5\] is nan"),
        (["a"] * 8, "theta must be a sequence of numbers"),
        (None, "theta must be a sequence of numbers"),
        ([10**400] * 8, "theta must be a sequence of numbers"),
    ],
)
def test_refuses_a_wrong_theta(theta: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Expansion().validate(theta)


def test_an_absurd_order_is_refused_by_its_length_and_not_enumerated() -> None:
    form = Expansion(10**9, ("x", "y", "z", "t"))
    with pytest.raises(ValueError, match="theta has 8 values; order 1000000000 over"):
        form.validate([0.0] * 8)
