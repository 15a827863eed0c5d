"""Trees: what they may be, and their prefix form."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from random_trees import random_trees

from optuna_taylorglo.losses.tree import (
    BAIKAL,
    CROSS_ENTROPY_TREE,
    MAX_DEPTH,
    MAX_SIZE,
    OPERATORS,
    Tree,
    check_coefficients,
    tree_from_prefix,
)

X, Y = Tree("x"), Tree("y")


def full_tree(depth: int) -> list[str]:
    """Prefix form of a tree that has two operands everywhere."""
    return ["+", *full_tree(depth - 1), *full_tree(depth - 1)] if depth else ["y"]


def test_prefix_form_and_back_through_json():
    for tree in random_trees(300):
        again = tree_from_prefix(json.loads(json.dumps(tree.to_prefix())))
        assert again == tree
        assert hash(again) == hash(tree)
        assert tree.size == len(tree.to_prefix()) == len(list(tree.nodes()))


def test_the_nodes_come_in_the_order_of_the_prefix_form():
    quotient = Tree("/", (X, Y))
    assert list(BAIKAL.nodes()) == [BAIKAL, Tree("log", (Y,)), Y, quotient, X, Y]
    assert (BAIKAL.depth, BAIKAL.size) == (2, 6)
    assert (Y.depth, Y.size) == (0, 1)


def test_trees_have_an_order_that_does_not_depend_on_the_process():
    code = (
        "from random_trees import random_trees;"
        "print([t.to_prefix() for t in sorted(random_trees(50))])"
    )
    trees = sorted(random_trees(50))
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(filter(None, sys.path))},
        )
        assert done.stdout.strip() == str([tree.to_prefix() for tree in trees])


WRONG: list[tuple[Any, str]] = [
    ([], "the tree is empty"),
    ("xy", "a tree in prefix form is a list of operators"),
    (None, "a tree in prefix form is a list of operators"),
    ({"+": ["x", "y"]}, "a tree in prefix form is a list of operators"),
    (["+", "x"], "the tree lacks 1 operand at its end"),
    (["+", "*"], "the tree lacks 3 operands at its end"),
    (["log", "y", "x"], "the tree ends before entry 2 of 3"),
    (["sin", "x"], "'sin' is no operator; known are x, y, 1, -1, "),
    (["__import__('os')"], "is no operator"),
    (["+", 1, "x"], "a int is no operator"),
    (["+", ["x"], "y"], "a list is no operator"),
    (["sqrt"] * (MAX_DEPTH + 1) + ["y"], f"the tree is deeper than {MAX_DEPTH}"),
    (full_tree(8), f"the tree has 511 nodes, more than {MAX_SIZE}"),
    (["sqrt"] * 10**6, "the tree has 1000000 nodes"),
]


@pytest.mark.parametrize(("content", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_is_no_tree_is_refused(content, message):
    with pytest.raises(ValueError, match=message):
        tree_from_prefix(content)


def test_trees_up_to_the_limits_are_trees():
    assert tree_from_prefix(["sqrt"] * MAX_DEPTH + ["y"]).depth == MAX_DEPTH
    assert tree_from_prefix(full_tree(7)).size == MAX_SIZE


@pytest.mark.parametrize("operator", OPERATORS)
def test_operators_take_as_many_operands_as_they_take(operator):
    with pytest.raises(ValueError, match=f"takes {OPERATORS[operator] or 'no'} operand"):
        Tree(operator, (X,) * 3)


@pytest.mark.parametrize(
    ("coefficients", "message"),
    [
        ([1.0], "coefficients has 1 values; the tree takes 4"),
        ([1, 2, 3, float("nan")], r"coefficients\[3\] is nan; all must be finite"),
        (["a"] * 4, "coefficients must be numbers"),
        (3, "coefficients must be numbers"),
    ],
)
def test_wrong_coefficients_are_named(coefficients, message):
    with pytest.raises(ValueError, match=message):
        check_coefficients(CROSS_ENTROPY_TREE, coefficients)
