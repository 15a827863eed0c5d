"""Baselines: what is tried, on what, and which of it is taken."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from verdicts import Recorder

from optuna_taylorglo.losses.taylor import TaylorLoss
from optuna_taylorglo.verdict.baselines import GRID_FACTORS, baseline
from optuna_taylorglo.verdict.families import BASELINES, DEFAULT_BASELINES, FAMILIES
from optuna_taylorglo.verdict.tasks import Task


def test_the_default_opponents_are_known_and_none_has_an_untuned_learning_rate() -> None:
    assert set(DEFAULT_BASELINES) <= set(BASELINES)
    assert DEFAULT_BASELINES == ("ce", "ce-tuned", "label-smoothing", "best-standard")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_standard_loss_is_tuned_jointly_with_its_learning_rate(name: str, recipe: Any) -> None:
    family = FAMILIES[name]
    best_value, best_rate = family.grid[2], 0.3 * recipe.optimizer.lr

    def fitness(task: Task) -> float | None:
        assert task.loss.learning_rate is not None
        value = task.loss.settings[family.parameter]
        if value == family.grid[0]:
            return None  # diverged
        # Negative: what diverges is worse than any value.
        return -abs(math.log(task.loss.learning_rate / best_rate)) - abs(value - best_value)

    do = Recorder(fitness)
    found = baseline(name, recipe, do)
    assert found.settings == {family.parameter: best_value}
    assert found.learning_rate == pytest.approx(best_rate)
    n_tried = len(family.grid) * len(GRID_FACTORS)
    assert len(do.tasks) == n_tried
    assert f"learning rate {best_rate:.3g} (best of {n_tried})" in found.label
    assert f"{best_value:g}" in found.label
    # At the candidates' budget, from the same weights, and never by the test set.
    assert {task.length for task in do.tasks} == {recipe.budget.evaluation}
    assert len({task.seed for task in do.tasks}) == 1
    assert not any(task.on_test_set for task in do.tasks)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_value_that_a_family_allows_builds_a_loss(name: str, recipe: Any) -> None:
    family = FAMILIES[name]
    do = Recorder(lambda task: 0.0)
    baseline(name, recipe, do)
    logits, target = torch.randn(4, 10), torch.arange(4)
    for task in do.tasks:
        assert torch.isfinite(task.loss.criterion()(logits, target))
    for value in (*family.grid, family.low, family.high):
        assert family.low <= value <= family.high


def test_a_loss_file_is_an_opponent_too(tmp_path: Any, recipe: Any) -> None:
    path = tmp_path / "mine.json"
    TaylorLoss([0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0]).save(path)
    loss = baseline(str(path), recipe, Recorder(lambda task: 0.0))
    assert (loss.name, loss.label, loss.kind) == ("mine", str(path), "taylor")
