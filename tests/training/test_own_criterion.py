"""Settings of a module's own criterion: in the recipe, or refused; never dropped in silence."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from searches import small_recipe
from torch import nn
from trainings import cpu

from optuna_taylorglo.errors import RecipeError
from optuna_taylorglo.recipes.load import load_recipe
from optuna_taylorglo.recipes.schema import LossSettings
from optuna_taylorglo.training.criterion import refuse_lost_settings
from optuna_taylorglo.training.training import Training

WEIGHT = torch.tensor([0.1, 1 / 3, 0.0123456])


@pytest.mark.parametrize(
    ("criterion", "field", "words"),
    [
        (nn.CrossEntropyLoss(weight=WEIGHT), "class_weights", "[0.1, 0.333333, 0.0123456]"),
        (nn.CrossEntropyLoss(label_smoothing=0.1), "label_smoothing", "0.1"),
        (nn.CrossEntropyLoss(ignore_index=255), "ignore_index", "255"),
        (nn.NLLLoss(weight=WEIGHT), "class_weights", "[0.1, 0.333333, 0.0123456]"),
        (partial(nn.functional.cross_entropy, label_smoothing=0.2), "label_smoothing", "0.2"),
    ],
)
def test_a_setting_that_would_be_dropped_comes_with_the_line_for_the_recipe(
    criterion: object, field: str, words: str
) -> None:
    with pytest.raises(RecipeError) as caught:
        refuse_lost_settings(criterion, LossSettings())
    assert caught.value.field == f"loss.{field}"
    assert f"loss: {{{field}: {words}}}" in str(caught.value)
    # The line, taken into the recipe, ends the matter.
    value = tuple(WEIGHT.tolist()) if field == "class_weights" else float(words)
    refuse_lost_settings(criterion, LossSettings(**{field: value}))


def test_weights_as_the_message_rounds_them_are_the_same() -> None:
    loss = LossSettings(class_weights=(0.1, 0.333333, 0.0123456))
    refuse_lost_settings(nn.CrossEntropyLoss(weight=WEIGHT), loss)
    with pytest.raises(RecipeError, match="weight"):
        refuse_lost_settings(nn.CrossEntropyLoss(weight=WEIGHT * 1.001), loss)


@pytest.mark.parametrize(
    "criterion", [None, nn.CrossEntropyLoss(), nn.functional.cross_entropy, nn.Linear(3, 3)]
)
def test_a_criterion_without_settings_is_replaced(criterion: object) -> None:
    refuse_lost_settings(criterion, LossSettings())


def test_a_sum_and_a_smoothing_that_is_searched_have_no_field() -> None:
    with pytest.raises(RecipeError, match="reduction='sum', which would be dropped"):
        refuse_lost_settings(nn.CrossEntropyLoss(reduction="sum"), LossSettings())
    with pytest.raises(RecipeError, match="take it out of the module"):
        refuse_lost_settings(
            nn.CrossEntropyLoss(label_smoothing=0.1), LossSettings(base="cross_entropy")
        )


@pytest.mark.parametrize("weights", ["balanced", [1.0] * 9 + [2.0], None])
def test_a_module_with_weights_is_refused_unless_the_recipe_has_them(
    tmp_path: Path, weights: Any
) -> None:
    recipe = load_recipe(
        small_recipe(
            tmp_path / "recipe.yaml",
            model={"class_path": "own_nets.WeighsClasses", "init_args": {}},
            loss={"class_weights": weights},
        )
    )
    machine = cpu(tmp_path, "own_nets")
    if isinstance(weights, list):
        training = Training(recipe, machine)
        assert training.run(nn.CrossEntropyLoss(), seed=0, steps=2) >= 0
    else:
        with pytest.raises(RecipeError, match=r"class_weights: \[1.0, 1.0, .*, 2.0\]"):
            Training(recipe, machine)
