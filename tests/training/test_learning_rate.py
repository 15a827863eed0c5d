"""A module's own learning rate times a factor: as if the module had been written so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import own_optimizers
import pytest
import torch
from torch import Tensor, nn
from trainings import digits_training, trained

from optuna_taylorglo.errors import RecipeError
from optuna_taylorglo.training.callbacks import CannotScale
from optuna_taylorglo.training.training import Training

CE = nn.CrossEntropyLoss()


def training_of(folder: Path, name: str = "Scheduled", **arguments: Any) -> Training:
    return digits_training(folder, f"own_optimizers.{name}", arguments, optimizer=None)


def weights(training: Training) -> dict[str, Tensor]:
    found: dict[str, Tensor] = trained(training, 24, check_at=range(2, 24, 2)).net.state_dict()
    return found


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    "kind", ["constant", "two_groups", "plateau", *sorted(own_optimizers.SCHEDULES)]
)
def test_it_is_the_same_as_a_module_with_that_rate_written_in(tmp_path: Path, kind: str) -> None:
    training = training_of(tmp_path, lr=0.01, kind=kind)
    scaled = weights(training.at_learning_rate_factor(0.3))
    assert same(scaled, weights(training_of(tmp_path, lr=0.01 * 0.3, kind=kind)))
    assert not same(scaled, weights(training))


def test_a_rate_that_is_set_by_hand_before_each_step_is_multiplied(tmp_path: Path) -> None:
    training = training_of(tmp_path, "ByHand", lr=0.01)
    assert training.learning_rate_obstacle() is None
    scaled = weights(training.at_learning_rate_factor(3))
    assert same(scaled, weights(training_of(tmp_path, "ByHand", lr=0.03)))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("SetsRateInsideAStep", "it sets the learning rate in the middle of an optimizer's step"),
        ("WithoutRate", "its optimizer RatelessOptimizer has no learning rate"),
    ],
)
def test_what_cannot_be_multiplied_says_why(tmp_path: Path, name: str, reason: str) -> None:
    training = training_of(tmp_path, name)
    said = f"own_optimizers.{name} cannot be multiplied: {reason}"
    assert training.learning_rate_obstacle() == said
    with pytest.raises(CannotScale, match=reason):
        training.at_learning_rate_factor(2).run(CE, seed=0, steps=2)
    # As it is, it trains.
    assert training.run(CE, seed=0, steps=2) > 0


def test_a_plain_net_needs_the_recipes_optimizer(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"^optimizer: missing.*DigitsCNN, a plain net"):
        digits_training(tmp_path, optimizer=None)


def test_what_a_module_does_not_use_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    digits_training(tmp_path, "own_optimizers.Scheduled", schedule={"milestones": [3]})
    for section in ("optimizer", "schedule"):
        assert f"{section}: not used, own_optimizers.Scheduled configures its own" in caplog.text
    caplog.clear()
    training_of(tmp_path)
    assert "not used" not in caplog.text
