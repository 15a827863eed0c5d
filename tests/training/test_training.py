"""One training: what it returns, when it validates, and what it says about a wrong recipe."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from own_nets import Squares
from searches import ROOT
from torch import Tensor, nn
from trainings import RecordedTraining, Validations, cpu, digits_training, trained, weights

from lightning_modules.data import Digits
from optuna_taylorglo.errors import RecipeError
from optuna_taylorglo.evolution.candidates import loss_conventions
from optuna_taylorglo.losses.taylor import TaylorLoss
from optuna_taylorglo.recipes.load import load_recipe
from optuna_taylorglo.training.training import Training
from optuna_taylorglo.verdict.tasks import ComparedLoss

STEPS_PER_PASS = 16
CE = nn.CrossEntropyLoss()


class Reversing(nn.Module):
    """Cross-entropy that turns round after two passes, so that the best is not the last."""

    steps = 0

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        self.steps += logits.requires_grad
        factor = 1 if self.steps <= 2 * STEPS_PER_PASS else -0.3
        return factor * nn.functional.cross_entropy(logits, labels)


@pytest.mark.parametrize(
    ("fitness", "choose", "expected_steps"),
    [
        ({}, lambda values: values[-1], [40]),
        ({"take": "best"}, max, [16, 32, 40]),
        ({"take": "best", "metric": "val_nll", "mode": "min"}, min, [16, 32, 40]),
    ],
)
def test_fitness_is_the_last_validation_or_the_best_of_one_per_pass(
    tmp_path: Path,
    fitness: dict[str, str],
    choose: Callable[[list[float]], float],
    expected_steps: list[int],
) -> None:
    training = digits_training(tmp_path, fitness=fitness)
    assert training.steps_per_pass == STEPS_PER_PASS
    seen = Validations()
    value = training.run(Reversing(), seed=0, steps=40, on_validation=seen)
    assert seen.steps == expected_steps
    assert value == choose(seen.values)
    assert (value == seen.values[-1]) == (fitness == {})


def test_validations_are_made_when_asked_for_and_change_nothing(tmp_path: Path) -> None:
    training = digits_training(tmp_path)
    seen = Validations()
    fitness = training.run(CE, seed=0, steps=7, check_at=[3, 5, 7, 9], on_validation=seen)
    assert seen.steps == [3, 5, 7]
    assert fitness == training.run(CE, seed=0, steps=7)
    # A training that ends there is the same up to there.
    assert seen.values[0] == training.run(CE, seed=0, steps=3)


def test_the_same_seed_gives_the_same_weights_to_the_last_bit(tmp_path: Path) -> None:
    training = digits_training(tmp_path)
    modules = [trained(training, 6, seed) for seed in (1, 1, 2)]
    first, again, other = map(weights, modules)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    # The order of the data, too, is the seed's.
    assert [module.trainer.datamodule.seed for module in modules] == [1, 1, 2]


def test_the_test_set_judges_by_the_metric_of_the_same_name(tmp_path: Path) -> None:
    training = digits_training(tmp_path)
    kept: list[Any] = []
    accuracy = training.run(CE, seed=0, steps=20, on_test_set=True, on_trained=kept.append)
    data = Digits(tmp_path)
    data.setup("test")
    batches = [data.on_after_batch_transfer(raw, 0) for raw in data.test_dataloader()]
    images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    with torch.no_grad():
        hits = kept[0].net.eval()(images).argmax(dim=1) == labels
    assert accuracy == pytest.approx(hits.float().mean().item())
    assert accuracy != training.run(CE, seed=0, steps=20)
    fitness = {"metric": "val_nll", "mode": "min"}
    training = digits_training(tmp_path, "own_nets.LogsLikelihood", fitness=fitness)
    with pytest.raises(RecipeError, match=r"'test_nll'.*LogsLikelihood, which logs test_accuracy"):
        training.run(CE, seed=0, steps=2, on_test_set=True)


def test_the_likelihood_does_not_depend_on_the_loss_that_trained(tmp_path: Path) -> None:
    training = digits_training(tmp_path, fitness={"metric": "val_nll", "mode": "min"})
    # Half the loss at twice the rate is the same training.
    half = TaylorLoss([0.0] * 8, base="cross_entropy", log_scale=torch.tensor(0.5).log())
    twice = training.at_learning_rate(2 * training.recipe.optimizer.lr)
    found = twice.run(half, seed=0, steps=10)
    assert found == pytest.approx(training.run(CE, seed=0, steps=10), rel=1e-4)


def test_a_recipe_without_an_optimizer_trains_a_plain_net_by_the_default_one(
    tmp_path: Path,
) -> None:
    best = load_recipe(ROOT / "studies" / "digits_mlp_wrong_labels.yaml")
    assert Training(best.changed(optimizer=None), cpu(tmp_path)).recipe == best
    assert digits_training(tmp_path, "own_nets.OwnModule", optimizer=None).recipe.optimizer is None


@pytest.mark.parametrize(
    ("metric", "warned"), [("val_accuracy", False), ("val_loss", True), ("MyLoss/val", True)]
)
def test_an_own_module_is_warned_of_a_metric_called_loss_and_of_unused_sections(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, metric: str, warned: bool
) -> None:
    changes: Any = {"schedule": {"milestones": [3]}} if warned else {"optimizer": None}
    fitness = {"metric": metric, "mode": "min"}
    with caplog.at_level(logging.WARNING):
        digits_training(tmp_path, "own_nets.OwnModule", fitness=fitness, **changes)
    assert ("cannot compare candidates" in caplog.text) == warned
    for section in ("optimizer", "schedule"):
        unused = f"{section}: not used, own_nets.OwnModule configures its own"
        assert (unused in caplog.text) == warned


def test_wrong_arguments_are_named_with_their_field_and_value(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"fraction must be in \(0, 1\], got 2.0") as caught:
        digits_training(tmp_path, data={"init_args": {"fraction": 2.0}})
    assert caught.value.field == "data.init_args"
    assert "{'fraction': 2.0}" in caught.value.problem


def test_an_error_inside_a_users_class_is_not_taken_for_a_wrong_recipe(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a width of 3 is a bug of mine") as caught:
        digits_training(tmp_path, "own_nets.RefusesItsWidth")
    assert caught.type is ValueError
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        digits_training(tmp_path, "own_nets.CallsItselfWrongly")


def pixel_training(folder: Path, **changes: Any) -> RecordedTraining:
    """Logits (N, C, H, W): semantic segmentation with unlabeled pixels."""
    return digits_training(
        folder,
        "own_nets.PixelNet",
        data={"class_path": "own_nets.Squares", "init_args": {}},
        optimizer={"lr": 0.3},
        batch_size=16,
        loss={"ignore_index": 255, "class_weights": "balanced", "class_reduction": "sum"},
        **changes,
    )


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("taylor", {"theta": [0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0], "class_reduction": "sum"}),
        ("tree", {"tree": ["*", "x", "log", "y"], "class_reduction": "sum"}),
        ("cross-entropy", {}),
    ],
)
def test_a_loss_of_each_family_learns_pixels(
    tmp_path: Path, kind: str, settings: dict[str, Any]
) -> None:
    training = pixel_training(tmp_path)
    loss = ComparedLoss("l", "l", kind, settings=settings)
    criterion = loss.criterion(loss_conventions(training.recipe))
    assert criterion.ignore_index == 255
    assert training.run(criterion, seed=0, steps=40) > 0.75


def test_metrics_are_over_labeled_pixels(tmp_path: Path) -> None:
    training = pixel_training(tmp_path, fitness={"metric": "val_nll", "mode": "min"})
    kept: list[Any] = []
    criterion = nn.CrossEntropyLoss(ignore_index=255)
    value = training.run(criterion, seed=0, steps=20, on_trained=kept.append)
    images, labels = map(torch.cat, zip(*Squares(16).val_dataloader(), strict=True))
    with torch.no_grad():
        expected = criterion(kept[0].net(images), labels)
    assert value == pytest.approx(expected.item(), abs=1e-5)
