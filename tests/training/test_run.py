"""One training: what it returns, when it validates, and what it says about a wrong recipe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from searches import ROOT, small_recipe
from torch import Tensor, nn
from trainings import cpu, digits_training

from lightning_modules.data import Digits
from optuna_taylorglo.errors import RecipeError
from optuna_taylorglo.recipes.load import load_recipe
from optuna_taylorglo.training.training import Training

STEPS_PER_PASS = 16
CE = nn.CrossEntropyLoss()


class Reversing(nn.Module):
    """Cross-entropy that turns round after two passes, so that the best is not the last."""

    steps = 0

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        self.steps += logits.requires_grad
        factor = 1 if self.steps <= 2 * STEPS_PER_PASS else -0.3
        return factor * nn.functional.cross_entropy(logits, labels)


class Validations(list[tuple[int, float]]):
    """Takes validations in."""

    def __call__(self, step: int, value: float) -> None:
        self.append((step, value))

    @property
    def steps(self) -> list[int]:
        return [step for step, _ in self]

    @property
    def values(self) -> list[float]:
        return [value for _, value in self]


def own_training(folder: Path, **changes: Any) -> Training:
    """With classes of `own_nets`."""
    recipe = load_recipe(small_recipe(folder / "recipe.yaml", **changes))
    return Training(recipe, cpu(folder, "own_nets", "tabular"))


@pytest.mark.parametrize(
    ("take", "choose", "expected_steps"),
    [("last", lambda values: values[-1], [40]), ("best", max, [16, 32, 40])],
)
def test_fitness_is_the_last_validation_or_the_best_of_one_per_pass(
    tmp_path: Path,
    take: str,
    choose: Callable[[list[float]], float],
    expected_steps: list[int],
) -> None:
    training = digits_training(tmp_path, fitness={"take": take})
    assert training.steps_per_pass == STEPS_PER_PASS
    seen = Validations()
    fitness = training.run(Reversing(), seed=0, steps=40, on_validation=seen)
    assert seen.steps == expected_steps
    assert fitness == choose(seen.values)
    if take == "best":
        assert fitness > seen.values[-1]


def test_validations_are_made_when_asked_for_and_change_nothing(tmp_path: Path) -> None:
    training = digits_training(tmp_path)
    seen = Validations()
    fitness = training.run(CE, seed=0, steps=7, check_at=[3, 5, 7, 9], on_validation=seen)
    assert seen.steps == [3, 5, 7]
    assert fitness == training.run(CE, seed=0, steps=7)
    # A training that ends there is the same up to there.
    assert seen.values[0] == training.run(CE, seed=0, steps=3)


def test_plain_loaders_are_validated_at_the_same_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A data module that knows nothing of us, over several epochs of five steps."""
    monkeypatch.syspath_prepend(ROOT / "docs" / "examples" / "own_model")
    training = own_training(
        tmp_path,
        data={"class_path": "tabular.BreastCancer"},
        model={"class_path": "tabular.LightningMLP"},
    )
    assert (training.steps_per_pass, training.in_steps(3, "epochs")) == (5, 15)
    seen = Validations()
    training.run(CE, seed=0, steps=13, check_at=[3, 5, 11], on_validation=seen)
    assert seen.steps == [3, 5, 11, 13]


def test_the_same_seed_gives_the_same_weights_to_the_last_bit(tmp_path: Path) -> None:
    training = digits_training(tmp_path)
    modules: list[Any] = []
    for seed in (1, 1, 2):
        training.run(CE, seed=seed, steps=6, on_trained=modules.append)
    first, again, other = (module.state_dict() for module in modules)
    assert all(torch.equal(first[name], again[name]) for name in first)
    weights = [name for name in first if name.endswith("weight")]
    assert not any(torch.equal(first[name], other[name]) for name in weights)
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


def test_a_module_without_the_test_metric_is_told_which_one(tmp_path: Path) -> None:
    training = own_training(tmp_path, model={"class_path": "own_nets.OwnModule"})
    with pytest.raises(RecipeError, match=r"'test_accuracy'.*OwnModule, which logs test_beauty"):
        training.run(CE, seed=0, steps=2, on_test_set=True)


def test_optimizer_and_schedule_are_the_recipes(tmp_path: Path) -> None:
    training = digits_training(
        tmp_path,
        optimizer={"lr": 0.2, "momentum": 0.5},
        schedule={"unit": "epochs", "milestones": [1], "gamma": 0.1},
    )
    groups: list[dict[str, Any]] = []
    for steps in (STEPS_PER_PASS - 1, STEPS_PER_PASS + 1):
        training.run(
            CE,
            seed=0,
            steps=steps,
            on_trained=lambda module: groups.extend(module.trainer.optimizers[0].param_groups),
        )
    assert [group["lr"] for group in groups] == pytest.approx([0.2, 0.02])
    assert {group["momentum"] for group in groups} == {0.5}


@pytest.mark.parametrize(
    ("section", "arguments", "problem"),
    [
        ("model", {"color": "red"}, "color"),
        ("data", {"color": "red"}, "color"),
        ("data", {"fraction": 2.0}, r"fraction must be in \(0, 1\], got 2.0"),
    ],
)
def test_wrong_arguments_are_named_with_their_field_and_value(
    tmp_path: Path, section: str, arguments: dict[str, Any], problem: str
) -> None:
    with pytest.raises(RecipeError, match=problem) as caught:
        digits_training(tmp_path, **{section: {"init_args": arguments}})
    assert caught.value.field == f"{section}.init_args"
    assert repr(arguments) in caught.value.problem


def test_data_that_do_not_tell_their_classes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"SecretiveDigits has num_classes None") as caught:
        own_training(tmp_path, data={"class_path": "own_nets.SecretiveDigits"})
    assert caught.value.field == "data.class_path"


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("RefusesItsWidth", ValueError, "a width of 3 is a bug of mine"),
        ("CallsItselfWrongly", TypeError, "positional argument"),
    ],
)
def test_an_error_inside_a_users_class_is_not_taken_for_a_wrong_recipe(
    tmp_path: Path, name: str, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message) as caught:
        own_training(tmp_path, model={"class_path": f"own_nets.{name}"})
    assert caught.type is kind


def test_an_error_in_a_users_training_step_passes_through(tmp_path: Path) -> None:
    training = own_training(tmp_path, model={"class_path": "own_nets.FailsInTraining"})
    with pytest.raises(KeyError, match="a bug of mine"):
        training.run(CE, seed=0, steps=2)
