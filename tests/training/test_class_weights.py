"""Weights of classes: counted from all training labels, the same for everybody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from searches import small_recipe
from torch.utils.data import DataLoader, TensorDataset
from trainings import cpu, digits_training

from lightning_modules.data import Digits
from optuna_taylorglo.errors import RecipeError
from optuna_taylorglo.recipes.load import load_recipe
from optuna_taylorglo.training.criterion import balanced_weights
from optuna_taylorglo.training.training import Training

LABELS = torch.tensor([0] * 6 + [1] * 3 + [2] * 2)


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


def test_the_training_settles_them_by_all_labels_of_the_bundled_data(tmp_path: Path) -> None:
    changes = {"data": {"init_args": {"imbalance": 10}}, "loss": {"class_weights": "balanced"}}
    training = digits_training(tmp_path, **changes)
    data = Digits(str(tmp_path), batch_size=64, imbalance=10)
    data.setup("fit")
    counts = np.bincount(data.train_data.labels)
    expected = counts.sum() / (10 * counts)
    assert training.recipe.loss.class_weights == pytest.approx(expected, rel=1e-15)
    assert max(expected) > 5 * min(expected)


def test_another_number_of_weights_is_refused(tmp_path: Path) -> None:
    path = small_recipe(tmp_path / "recipe.yaml", loss={"class_weights": [1.0, 2.0]})
    with pytest.raises(RecipeError, match=r"loss.class_weights: has 2 weights, .* 10 classes"):
        Training(load_recipe(path), cpu(tmp_path))
