"""Settings of a criterion: class weights, and those of a module's own, never dropped in silence."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from trainings import digits_training

from lightning_modules.data import Digits
from optuna_taylorglo.errors import RecipeError
from optuna_taylorglo.recipes.schema import LossSettings
from optuna_taylorglo.training.build import balanced_weights, refuse_lost_settings

LABELS = torch.tensor([0] * 6 + [1] * 3 + [2] * 2)
WEIGHT = torch.tensor([0.1, 1 / 3, 0.0123456])


def loader(labels: torch.Tensor = LABELS, **options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.zeros(len(labels), 1), labels), 4, **options)


@pytest.mark.parametrize("options", [{}, {"shuffle": True, "drop_last": True}])
def test_balanced_is_n_over_classes_times_count_and_drops_no_label(options: Any) -> None:
    expected = (11 / (3 * 6), 11 / (3 * 3), 11 / (3 * 2))
    assert balanced_weights(loader(**options), 3, -100) == expected


def test_ignored_labels_are_not_counted() -> None:
    pixels = torch.full((5, 2, 2), 255)
    pixels[:, 0, 0] = torch.tensor([0, 1, 1, 1, 1])
    assert balanced_weights(loader(pixels), 2, 255) == (5 / 2, 5 / 8)
    # An ignored class is not counted as a class either.
    assert balanced_weights(loader(), 3, 0) == (1.0, 5 / 6, 5 / 4)
    with pytest.raises(RecipeError, match=r"labels from 0 to 255, .* loss.ignore_index"):
        balanced_weights(loader(pixels), 2, -100)


def test_a_class_without_labels_and_other_batches_are_refused() -> None:
    with pytest.raises(RecipeError, match="no weight for class 3"):
        balanced_weights(loader(), 4, -100)
    with pytest.raises(RecipeError, match="give a list of weights"):
        balanced_weights(DataLoader(TensorDataset(torch.zeros(4, 1))), 2, -100)


def test_a_training_takes_all_labels_of_the_data(tmp_path: Path) -> None:
    changes = {"data": {"init_args": {"imbalance": 10}}, "loss": {"class_weights": "balanced"}}
    training = digits_training(tmp_path, **changes)
    data = Digits(tmp_path, imbalance=10)
    data.setup("fit")
    counts = np.bincount(data.train_data.labels)
    expected = counts.sum() / (10 * counts)
    assert training.recipe.loss.class_weights == pytest.approx(expected, rel=1e-15)
    assert max(expected) > 5 * min(expected)


def test_another_number_of_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"loss.class_weights: has 2 weights, .* 10 classes"):
        digits_training(tmp_path, loss={"class_weights": [1.0, 2.0]})


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
    value = (0.1, 0.333333, 0.0123456) if field == "class_weights" else float(words)
    refuse_lost_settings(criterion, LossSettings(**{field: value}))
    if field == "class_weights":
        with pytest.raises(RecipeError, match="weight"):
            refuse_lost_settings(criterion, LossSettings(class_weights=(0.1, 0.3337, 0.0123456)))


@pytest.mark.parametrize(
    "criterion", [None, nn.CrossEntropyLoss(), nn.functional.cross_entropy, nn.Linear(3, 3)]
)
def test_a_criterion_without_settings_is_replaced(criterion: object) -> None:
    refuse_lost_settings(criterion, LossSettings())


def test_a_sum_has_no_field() -> None:
    with pytest.raises(RecipeError, match="reduction='sum', which would be dropped"):
        refuse_lost_settings(nn.CrossEntropyLoss(reduction="sum"), LossSettings())


def test_a_module_with_weights_is_refused_unless_the_recipe_has_them(tmp_path: Path) -> None:
    digits_training(tmp_path, "own_nets.WeighsClasses", loss={"class_weights": [1.0] * 9 + [2.0]})
    for weights in ("balanced", None):
        with pytest.raises(RecipeError, match=r"class_weights: \[1.0, 1.0, .*, 2.0\]"):
            digits_training(tmp_path, "own_nets.WeighsClasses", loss={"class_weights": weights})
