"""How trees are drawn and bred."""

from __future__ import annotations

from random import Random

import pytest

from optuna_taylorglo.losses.tree import BAIKAL, MAX_SIZE, Tree, tree_from_prefix
from optuna_taylorglo.search.glo import (
    FIRST_DEPTH,
    child,
    depends_on_outputs,
    first_tree,
    random_tree,
)


def leaves_at(tree: Tree, depth: int = 0) -> set[int]:
    if not tree.children:
        return {depth}
    return set.union(*(leaves_at(operand, depth + 1) for operand in tree.children))


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_full_trees_have_all_leaves_at_their_depth(depth: int) -> None:
    for seed in range(30):
        assert leaves_at(random_tree(Random(seed), depth, full=True)) == {depth}


def test_trees_that_grow_are_of_many_shapes_within_their_depth() -> None:
    drawn = [random_tree(Random(seed), 3, full=False) for seed in range(200)]
    assert {tree.depth for tree in drawn} == {0, 1, 2, 3}
    assert any(len(leaves_at(tree)) > 1 for tree in drawn)


def test_first_trees_depend_on_the_output_and_have_every_operator() -> None:
    drawn = [first_tree(Random(seed), 6) for seed in range(200)]
    assert all(map(depends_on_outputs, drawn))
    assert {tree.depth for tree in drawn} == {*range(FIRST_DEPTH + 1)}
    assert len({node.operator for tree in drawn for node in tree.nodes()}) == 11
    assert max(first_tree(Random(s), 1).depth for s in range(50)) == 1


def bred(seed: int, parents: list[Tree], crossover: float, max_depth: int = 4) -> Tree:
    dice = Random(seed)
    remaining = iter(parents * 100)
    return child(
        dice,
        lambda: next(remaining),
        crossover=crossover,
        max_depth=max_depth,
    )


def test_crossover_brings_a_part_of_the_second_parent_and_nothing_else() -> None:
    mother, father = BAIKAL, tree_from_prefix(["square", "sqrt", "+", "y", "1"])
    children = {bred(seed, [mother, father], 1.0) for seed in range(200)}
    assert len(children) > 10
    known = set(mother.to_prefix()) | set(father.to_prefix())
    for each in children:
        assert set(each.to_prefix()) <= known
        assert each.depth <= 4
    # A part at the root, which is the whole of it.
    assert father in children


def test_mutation_brings_what_neither_parent_has() -> None:
    children = {bred(seed, [BAIKAL], 0.0) for seed in range(200)}
    operators = {operator for each in children for operator in each.to_prefix()}
    assert operators == {"x", "y", "1", "-1", "+", "-", "*", "/", "log", "square", "sqrt"}


@pytest.mark.parametrize("crossover", [0.0, 1.0])
def test_no_child_is_too_deep_or_without_the_output(crossover: float) -> None:
    parents = [random_tree(Random(seed), 4, full=True) for seed in range(40)]
    parents = [tree for tree in parents if depends_on_outputs(tree)]
    for seed in range(200):
        made = bred(seed, parents[seed % 7 :], crossover)
        assert made.depth <= 4
        assert depends_on_outputs(made)


def test_what_would_be_too_large_is_not_made() -> None:
    """Seven levels of products have 255 nodes, all that a tree may have."""
    whole = tree_from_prefix(["y"])
    for _ in range(7):
        whole = Tree("*", (whole, whole))
    assert whole.size == MAX_SIZE
    for seed in range(40):
        assert bred(seed, [whole, whole], 1.0, max_depth=17).size <= MAX_SIZE
