from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

from optuna_taylorglo.losses.expansion import Expansion

FORMS = [("x", "y"), ("x", "y", "t"), ("x", "y", "z"), ("y",), ("x", "z"), ("x", "y", "z", "t")]


def test_third_order_is_equation_5() -> None:
    form = Expansion()
    assert form.terms == ((0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (2, 1))
    assert form.term_names == ("y", "y²", "y³", "xy", "xy²", "x²y")
    assert form.parameter_meanings[:3] == ("center of x", "center of y", "y")
    assert form.factors == (1, 1 / 2, 1 / 6, 1, 1 / 2, 1 / 2)
    assert str(form) == "order 3 over (x, y)"


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("order", range(1, 6))
@pytest.mark.parametrize("variables", FORMS)
def test_formula_and_coefficients_are_the_same_function(
    variables: tuple[str, ...], order: int, folded: bool
) -> None:
    form = Expansion(order, variables, folded)
    assert form.n_parameters == len(variables) + len(form.terms) == len(form.parameter_names)
    rng = np.random.default_rng(order)
    theta = rng.normal(size=form.n_parameters)
    theta[0] = 0.0
    text = form.formula(theta, digits=17).replace("·", "*")
    text = re.sub("[²³⁴⁵]", lambda power: f"**{'²³⁴⁵'.index(power[0]) + 2}", text)
    point = dict(zip(variables, rng.normal(size=len(variables)), strict=True))
    expected = sum(
        value * math.prod(point[v] ** e for v, e in zip(variables, powers, strict=True))
        for powers, value in np.ndenumerate(form.coefficients(theta))
    )
    assert eval(text, {}, point) == pytest.approx(expected, rel=1e-9, abs=1e-9)


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
        ([10**400] * 8, "theta must be a sequence of numbers"),
    ],
)
def test_refuses_a_wrong_theta(theta: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Expansion().validate(theta)
    # Without listing the terms of an absurd order.
    with pytest.raises(ValueError, match="theta has 8 values; order 1000000000 over"):
        Expansion(10**9).validate([0.0] * 8)
