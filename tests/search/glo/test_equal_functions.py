"""Equal functions are recognized, however they are written; different ones are not."""

from __future__ import annotations

import math
import random
from decimal import Decimal

import mpmath
import pytest
import torch

from optuna_taylorglo.losses.tree import BAIKAL, Tree, tree_from_prefix
from optuna_taylorglo.losses.tree_loss import tree_values
from optuna_taylorglo.search import glo as trees
from optuna_taylorglo.search.glo import depends_on_outputs, function_key, random_tree


def tree(text: str) -> Tree:
    return tree_from_prefix(text.split())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("+ x y", "+ y x"),
        ("* x log y", "* log y x"),
        ("+ + x y 1", "+ x + y 1"),
        ("- y -1", "+ y 1"),
        ("+ y - 1 1", "y"),
        ("* * -1 -1 y", "y"),
        ("/ y * y y", "/ 1 y"),
        ("log square y", "+ log y log y"),
        ("sqrt square y", "y"),
        ("log * y / 1 y", "- x x"),
        ("/ y - x x", "log - 1 + 1 1"),
    ],
    ids=lambda text: text.replace(" ", ""),
)
def test_equal_functions_have_one_key(one: str, other: str) -> None:
    assert function_key(tree(one)) == function_key(tree(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("- x y", "- y x"),
        ("/ x y", "/ y x"),
        ("y", "square y"),
        ("x", "square x"),  # equal for hard labels, but not for soft ones
        ("sqrt square - y x", "- y x"),
        ("log y", "log + y y"),
        ("* y + 1 1", "y"),
        ("/ y x", "/ 1 x"),
        # Half is not between any two of its values on one side of it.
        ("sqrt square - y / 1 + 1 1", "- / 1 + 1 1 y"),
    ],
    ids=lambda text: text.replace(" ", ""),
)
def test_different_functions_have_different_keys(one: str, other: str) -> None:
    assert function_key(tree(one)) != function_key(tree(other))


@pytest.mark.parametrize("text", ["x", "1", "- y y", "/ y y", "log x", "* x log * y / 1 y"])
def test_a_loss_that_does_not_change_with_the_output_is_found(text: str) -> None:
    assert not depends_on_outputs(tree(text))


@pytest.mark.parametrize("text", ["y", "* x log y", "sqrt - y x", "/ y x", "+ 1 * x y"])
def test_one_that_does_is_not(text: str) -> None:
    assert depends_on_outputs(tree(text))


def test_values_are_those_that_a_loss_has() -> None:
    """Torch's, where they are finite; where they are not, neither is the key."""
    grid = trees._GRID
    x, y = (torch.tensor([float(p[i]) for p in grid], dtype=torch.float64) for i in (0, 1))
    finite = 0
    for seed in range(300):
        drawn = random_tree(random.Random(seed), 4, full=seed % 2 == 0)
        values = tree_values(drawn, x, y).tolist()
        for value, known in zip(values, function_key(drawn), strict=True):
            if known is None:
                # Torch's rounding may leave a little of what is 0, and divide by it.
                assert not math.isfinite(value) or abs(value) > 1e6, drawn
            elif abs(known) < 1e12 and math.isfinite(value):
                finite += 1
                assert value == pytest.approx(float(known), rel=1e-6, abs=1e-6), drawn
    assert finite > 2000


def test_baikal_has_the_key_that_every_machine_computes() -> None:
    """Another one would let workers disagree on which trees are new."""
    with mpmath.workdps(60):
        expected = [
            Decimal(mpmath.nstr(mpmath.log(y) - x / y, 12, strip_zeros=False))
            for x, y in (map(mpmath.mpf, map(str, point)) for point in trees._GRID)
        ]
    assert list(function_key(BAIKAL)) == expected
