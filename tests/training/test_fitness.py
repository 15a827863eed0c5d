"""Fitness at the door: metrics that a plain network has, their direction, and own losses."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from searches import small_recipe
from torch import nn
from trainings import cpu, digits_training

from lightning_modules.metrics import metric_of
from optuna_taylorglo.errors import RecipeError
from optuna_taylorglo.losses.taylor import TaylorLoss
from optuna_taylorglo.recipes.load import load_recipe
from optuna_taylorglo.recipes.schema import FitnessSettings
from optuna_taylorglo.training.training import Training

OWN = {"class_path": "own_nets.OwnModule", "init_args": {}}


@pytest.mark.parametrize(
    ("fitness", "said"),
    [
        ({"metric": "val_loss"}, ["own loss", "metric: val_nll and mode: min"]),
        ({"metric": "val_loss", "mode": "min"}, ["own loss", "val_nll"]),
        ({"metric": "val_nll"}, ["fitness.mode: max", "write mode: min"]),
        ({"metric": "val_ece"}, ["write mode: min"]),
        ({"mode": "min"}, ["min is not allowed with val_accuracy", "write mode: max"]),
        ({"metric": "val_recall"}, ["'val_recall' is not logged", "val_accuracy, val_balanced"]),
        ({"metric": "accuracy"}, ["'accuracy' is not logged", "val_accuracy"]),
    ],
)
def test_a_fitness_that_a_plain_network_has_not_is_refused_before_any_training(
    tmp_path: Path, fitness: dict[str, str], said: list[str]
) -> None:
    with pytest.raises(RecipeError) as caught:
        digits_training(tmp_path, fitness=fitness)
    assert all(words in str(caught.value) for words in said)


def test_top_5_of_5_classes_is_refused() -> None:
    fitness = FitnessSettings(metric="val_top5_accuracy")
    assert metric_of(fitness, 6) == "top5_accuracy"
    with pytest.raises(RecipeError, match="the data have 5 classes"):
        metric_of(fitness, 5)


@pytest.mark.parametrize(
    ("name", "mode"), [("nll", "min"), ("ece", "min"), ("f1", "max"), ("top5_accuracy", "max")]
)
def test_a_metric_that_is_asked_for_is_measured_on_both_sets(
    tmp_path: Path, name: str, mode: str
) -> None:
    training = digits_training(tmp_path, fitness={"metric": f"val_{name}", "mode": mode})
    criterion = nn.CrossEntropyLoss()
    value = training.run(criterion, seed=0, steps=30)
    test_value = training.run(criterion, seed=0, steps=30, on_test_set=True)
    assert 0 < value != test_value > 0
    assert abs(value - test_value) < 0.4


def test_the_likelihood_does_not_depend_on_the_loss_that_trained(tmp_path: Path) -> None:
    training = digits_training(tmp_path, fitness={"metric": "val_nll", "mode": "min"})
    seen = {}
    for factor in (1.0, 0.5):
        # Half the loss at twice the rate is the same training.
        trained = training.at_learning_rate(training.recipe.optimizer.lr / factor)
        scaled = TaylorLoss([0.0] * 8, base="cross_entropy", log_scale=torch.tensor(factor).log())
        seen[factor] = trained.run(scaled, seed=0, steps=10)
    assert seen[0.5] == pytest.approx(seen[1.0], rel=1e-4)


def test_the_best_of_a_metric_that_is_minimized_is_its_least(tmp_path: Path) -> None:
    fitness = {"metric": "val_nll", "mode": "min", "take": "best"}
    values: list[float] = []
    best = digits_training(tmp_path, fitness=fitness, optimizer={"lr": 3.0}).run(
        nn.CrossEntropyLoss(),
        seed=0,
        steps=64,
        on_validation=lambda step, value: values.append(value),
    )
    assert len(values) == 4
    assert best == min(values) < max(values)


@pytest.mark.parametrize(
    ("metric", "warned"), [("val_accuracy", False), ("val_loss", True), ("MyLoss/val", True)]
)
def test_an_own_module_is_warned_of_a_metric_called_loss(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, metric: str, warned: bool
) -> None:
    changes: dict[str, Any] = {"model": OWN, "fitness": {"metric": metric, "mode": "min"}}
    recipe = load_recipe(small_recipe(tmp_path / "recipe.yaml", **changes))
    with caplog.at_level(logging.WARNING):
        Training(recipe, cpu(tmp_path, "own_nets"))
    assert ("cannot compare candidates" in caplog.text) == warned
