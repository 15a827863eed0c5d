"""A module's own learning rate times a factor: as if the module had been written so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from searches import small_recipe
from torch import Tensor, nn
from trainings import cpu

from optuna_taylorglo.errors import RecipeError
from optuna_taylorglo.recipes.load import load_recipe
from optuna_taylorglo.training.callbacks import CannotScale
from optuna_taylorglo.training.training import Training

CE = nn.CrossEntropyLoss()
KINDS = ["constant", "two_groups", "warm_up", "one_cycle", "milestones", "plateau", "sequence"]


def training_of(folder: Path, name: str = "Scheduled", **arguments: Any) -> Training:
    recipe = small_recipe(
        folder / "recipe.yaml",
        model={"class_path": f"own_optimizers.{name}", "init_args": arguments},
        optimizer=None,
        early_abort=None,
        early_stop=None,
    )
    return Training(load_recipe(recipe), cpu(folder, "own_optimizers"))


def weights(training: Training) -> dict[str, Tensor]:
    modules: list[Any] = []
    checks = range(2, 24, 2)
    training.run(CE, seed=1, steps=24, check_at=checks, on_trained=modules.append)
    found: dict[str, Tensor] = modules[0].net.state_dict()
    return found


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("factor", [0.3, 10.0])
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_same_as_a_module_with_that_rate_written_in(
    tmp_path: Path, kind: str, factor: float
) -> None:
    training = training_of(tmp_path, lr=0.01, kind=kind)
    scaled = weights(training.at_learning_rate_factor(factor))
    assert same(scaled, weights(training_of(tmp_path, lr=0.01 * factor, kind=kind)))
    assert not same(scaled, weights(training))


def test_a_rate_that_is_set_by_hand_before_each_step_is_multiplied(tmp_path: Path) -> None:
    training = training_of(tmp_path, "ByHand", lr=0.01)
    assert training.learning_rate_obstacle() is None
    scaled = weights(training.at_learning_rate_factor(3))
    assert same(scaled, weights(training_of(tmp_path, "ByHand", lr=0.03)))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("SetsRateInsideAStep", "sets the learning rate in the middle of an optimizer's step"),
        ("WithoutRate", "its optimizer RatelessOptimizer has no learning rate"),
    ],
)
def test_what_cannot_be_multiplied_says_why(tmp_path: Path, name: str, reason: str) -> None:
    training = training_of(tmp_path, name)
    assert training.learning_rate_obstacle() == (
        f"own_optimizers.{name} cannot be multiplied: {'it ' * (name[0] == 'S')}{reason}"
    )
    with pytest.raises(CannotScale, match=reason):
        training.at_learning_rate_factor(2).run(CE, seed=0, steps=2)
    # As it is, it trains.
    assert training.run(CE, seed=0, steps=2) > 0


def test_one_step_tells_and_nothing_is_validated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = training_of(tmp_path)
    steps: list[int] = []
    step = training._model_class.training_step

    def counted(self: Any, batch: Any, batch_idx: int) -> Any:
        steps.append(batch_idx)
        return step(self, batch, batch_idx)

    def validated(*arguments: Any) -> None:
        pytest.fail("validated")

    monkeypatch.setattr(training._model_class, "training_step", counted)
    monkeypatch.setattr(training._model_class, "validation_step", validated)
    assert training.learning_rate_obstacle() is None
    assert steps == [0]


def test_a_module_without_an_optimizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="has no configure_optimizers") as caught:
        training_of(tmp_path, "WithoutOptimizer")
    assert caught.value.field == "model.class_path"


def test_a_plain_net_needs_the_recipes_optimizer(tmp_path: Path) -> None:
    recipe = load_recipe(small_recipe(tmp_path / "recipe.yaml", optimizer=None))
    with pytest.raises(RecipeError, match=r"^optimizer: missing.*DigitsCNN, a plain net"):
        Training(recipe, cpu(tmp_path))


def test_what_a_module_does_not_use_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = small_recipe(
        tmp_path / "recipe.yaml",
        model={"class_path": "own_optimizers.Scheduled"},
        schedule={"milestones": [3]},
    )
    Training(load_recipe(recipe), cpu(tmp_path, "own_optimizers"))
    for section in ("optimizer", "schedule"):
        assert f"{section}: not used, own_optimizers.Scheduled configures its own" in caplog.text
    caplog.clear()
    training_of(tmp_path)
    assert "not used" not in caplog.text
