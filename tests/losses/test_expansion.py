from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
import sympy

from optuna_taylorglo.losses.expansion import (
    Expansion,
    expansion,
    multi_indices,
)

FORMS = [("x", "y"), ("x", "y", "t"), ("x", "y", "z"), ("y",), ("x", "z"), ("x", "y", "z", "t")]


@pytest.mark.parametrize("order", range(1, 7))
@pytest.mark.parametrize("n_variables", range(1, 5))
def test_multi_indices_are_all_of_them_in_the_papers_order(order: int, n_variables: int) -> None:
    found = multi_indices(order, n_variables)
    assert len(found) == math.comb(n_variables + order, order)
    assert found == sorted(set(found))
    assert all(sum(alpha) <= order and min(alpha) >= 0 for alpha in found)


@pytest.mark.parametrize(
    ("order", "variables", "count"),
    [
        (2, ("x", "y"), 5),
        (3, ("x", "y"), 8),
        (4, ("x", "y"), 12),
        (5, ("x", "y"), 17),
        (3, ("x", "y", "t"), 13),
        (3, ("x", "y", "z"), 19),
    ],
)
def test_published_parameter_counts(order: int, variables: tuple[str, ...], count: int) -> None:
    form = Expansion(order, variables)
    assert form.n_parameters == count
    assert form.parameter_names == tuple(f"theta_{i}" for i in range(count))


def test_third_order_has_twelve_parameters_before_trimming() -> None:
    assert 2 + len(multi_indices(3, 2)) == 12


def test_third_order_is_equation_5() -> None:
    form = Expansion()
    assert form.terms == ((0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (2, 1))
    assert form.term_names == ("y", "y²", "y³", "xy", "xy²", "x²y")
    assert form.parameter_meanings[:3] == ("center of x", "center of y", "y")
    assert [form.factor(alpha) for alpha in form.terms] == [1, 1 / 2, 1 / 6, 1, 1 / 2, 1 / 2]
    folded = Expansion(folded=True)
    assert {folded.factor(alpha) for alpha in folded.terms} == {1.0}


@pytest.mark.parametrize("order", range(1, 7))
@pytest.mark.parametrize("variables", FORMS)
def test_trimming_keeps_what_reaches_the_network(order: int, variables: tuple[str, ...]) -> None:
    form = Expansion(order, variables)
    kept = {
        alpha
        for alpha in itertools.product(range(order + 1), repeat=len(variables))
        if sum(alpha) <= order
        and sum(e for v, e in zip(variables, alpha, strict=True) if v in "yz") > 0
    }
    assert set(form.terms) == kept
    assert len(form.terms) == len(kept)
    assert list(form.terms) == sorted(form.terms)
    assert form.n_parameters == len(variables) + len(kept)
    assert len(form.parameter_meanings) == form.n_parameters


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
    terms = itertools.product(range(order + 1), repeat=len(variables))
    terms = [
        alpha
        for alpha in terms
        if sum(alpha) <= order
        and any(e for v, e in zip(variables, alpha, strict=True) if v in ("y", "z"))
    ]
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


def test_formula_with_symbols() -> None:
    assert Expansion().formula() == (
        "θ₂·(y - θ₁) + 1/2·θ₃·(y - θ₁)² + 1/6·θ₄·(y - θ₁)³ + θ₅·(x - θ₀)·(y - θ₁)"
        " + 1/2·θ₆·(x - θ₀)·(y - θ₁)² + 1/2·θ₇·(x - θ₀)²·(y - θ₁)"
    )


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


@pytest.mark.parametrize("order", [0, -1, 2.0, "3", None, True])
def test_refuses_an_order_that_is_no_order(order: object) -> None:
    with pytest.raises(ValueError, match=r"order must be an integer of at least 1"):
        Expansion(order)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (("x", "w"), "variables has 'w'"),
        (("x", "y", "y"), "names one twice"),
        (("x",), "no prediction"),
        (("x", "t"), "no prediction"),
        ((), "no prediction"),
        ("xy", "variables must be a sequence of names"),
        (None, "variables must be a sequence of names"),
    ],
)
def test_refuses_variables_that_make_no_loss(variables: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Expansion(3, variables)  # type: ignore[arg-type]


def test_refuses_folded_that_is_no_boolean() -> None:
    with pytest.raises(ValueError, match="folded must be true or false, not 1"):
        Expansion(folded=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("theta", "message"),
    [
        ([1.0] * 7, "theta has 7 values; .* takes 8"),
        ([1.0] * 9, "theta has 9 values; .* takes 8"),
        ([], "theta has 0 values"),
        ([0.0] * 5 + [math.nan] + [0.0] * 2, "theta_5 is nan"),
        ([0.0] * 2 + [-math.inf] + [0.0] * 5, "theta_2 is -inf"),
        (["a"] * 8, "theta must be a sequence of numbers"),
        (None, "theta must be a sequence of numbers"),
        ([[0.0]] * 8, "theta must be a sequence of numbers"),
        ([10**400] * 8, "theta must be a sequence of numbers"),
    ],
)
def test_refuses_a_theta_that_is_none(theta: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Expansion().validate(theta)  # type: ignore[arg-type]


def test_an_absurd_order_is_refused_by_its_length_and_not_enumerated() -> None:
    form = Expansion(10**9, ("x", "y", "z", "t"))
    with pytest.raises(ValueError, match="theta has 8 values; order 1000000000 over"):
        form.validate([0.0] * 8)


def test_expansion_is_shared_equal_and_hashable() -> None:
    assert expansion(4, ("x", "y"), True) is expansion(4, ("x", "y"), True)
    assert expansion(4, ("x", "y"), True) == Expansion(4, ("x", "y"), True)
    assert Expansion(3, ["x", "y"]) == Expansion()  # type: ignore[arg-type]
    assert len({Expansion(), Expansion(folded=True), Expansion(2), Expansion(3)}) == 3
