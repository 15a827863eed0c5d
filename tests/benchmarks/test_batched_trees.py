"""Gradients of trees that the benchmarks write out by hand are those of the losses."""

from __future__ import annotations

import random
import sys

import pytest
import torch
from searches import ROOT
from torch.nn.functional import one_hot

from optuna_taylorglo.losses.tree_loss import TreeLoss
from optuna_taylorglo.search.glo import first_tree

sys.path.insert(0, str(ROOT / "benchmarks"))


@pytest.mark.parametrize("spread", [1.0, 10.0], ids=["undecided", "sure"])
def test_they_are_those_of_autograd_wherever_that_is_finite(spread: float) -> None:
    from batched_trees import tree_gradient

    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 8, 5, generator=generator, dtype=torch.float64) * spread
    target = torch.arange(8) % 5
    x = one_hot(target, 5).double()
    compared = 0
    for seed in range(150):
        dice = random.Random(seed)
        tree = first_tree(dice, 4)
        rows = [[dice.uniform(0.5, 1.5) for _ in range(tree.size)] for _ in range(2)]
        pairs = torch.tensor(rows, dtype=torch.float64).t()
        columns = [pair.view(2, 1, 1) for pair in pairs]
        y = torch.softmax(logits, -1)
        found = tree_gradient(tree, y, x.expand_as(y), iter(columns))
        for network, coefficients in enumerate(rows):
            loss = TreeLoss(tree, coefficients, class_reduction="sum", reduction="sum")
            inputs = logits[network].clone().requires_grad_()
            value = loss(inputs, target)
            if not value.isfinite():
                continue
            (expected,) = torch.autograd.grad(value, inputs)
            if expected.isfinite().all():
                compared += 1
                torch.testing.assert_close(found[network], expected, rtol=1e-6, atol=1e-9)
    assert compared > 100
