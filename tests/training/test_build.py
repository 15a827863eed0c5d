"""Weights of a file, weights of classes, and settings of a module's own criterion."""

import logging
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from trainings import digits_training, trained, weights

from lightning_modules.data import Digits
from optuna_taylorglo.errors import RecipeError
from optuna_taylorglo.recipes.schema import LossSettings
from optuna_taylorglo.training.build import balanced_weights, refuse_lost_settings

CE = nn.CrossEntropyLoss()
PLAIN, OWN = "two_lightnings.PlainNet", "own_optimizers.Scheduled"


@pytest.mark.parametrize("model", [PLAIN, OWN])
def test_every_training_starts_from_a_checkpoint(tmp_path: Path, model: str) -> None:
    plain = digits_training(tmp_path, model)
    module = trained(plain, 30)
    module.trainer.save_checkpoint(tmp_path / "last.ckpt")
    torch.save((module.net if model == PLAIN else module).state_dict(), tmp_path / "weights.pt")
    # A relative path begins in the data directory.
    for path in ("weights.pt", str(tmp_path / "last.ckpt")):
        training = digits_training(tmp_path, model, checkpoint={"path": path})
        assert torch.equal(weights(training._build_module(CE)), weights(module))
    accuracies = [training.run(CE, seed=seed, steps=1) for seed in (0, 1)]
    assert min(accuracies) > plain.run(CE, seed=0, steps=1) + 0.1


def test_a_head_stays_fresh_only_if_the_recipe_says_so(tmp_path: Path) -> None:
    content = digits_training(tmp_path, OWN)._build_module(CE).state_dict()
    content |= {"net.3.weight": torch.zeros(7, 8), "net.3.bias": torch.zeros(7)}
    torch.save(content, tmp_path / "weights.pt")
    mismatch = r"mismatch for net\.3\.weight: .*\[7, 8\].*\[10, 8\].*checkpoint\.skip"
    with pytest.raises(RecipeError, match=mismatch) as caught:
        digits_training(tmp_path, OWN, checkpoint={"path": "weights.pt"})
    assert caught.value.field == "checkpoint"
    skipping = {"path": "weights.pt", "skip": ["net.3."]}
    built: Any = digits_training(tmp_path, OWN, checkpoint=skipping)._build_module(CE)
    assert torch.equal(built.net[1].weight, content["net.1.weight"])
    assert built.net[3].weight.abs().min() > 0
    content["trunk.weight"] = content.pop("net.1.weight")
    torch.save(content, tmp_path / "weights.pt")
    with pytest.raises(RecipeError, match=r'Missing.*"net\.1\.weight".*Unex.*"trunk\.weight"'):
        digits_training(tmp_path, OWN, checkpoint=skipping)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("missing.pt", "No such file"),
        ("text.pt", "cannot be read as weights"),
        ("code.pt", "cannot be read as weights"),
        ("list.pt", "holds no state dict"),
    ],
)
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_files_that_hold_no_weights_are_refused(tmp_path: Path, name: str, problem: str) -> None:
    (tmp_path / "text.pt").write_text("weights")
    torch.save([1, 2], tmp_path / "list.pt")
    (tmp_path / "code.pt").write_bytes(pickle.dumps(logging.getLogger))
    with pytest.raises(RecipeError, match=f"{name}.*{problem}") as caught:
        digits_training(tmp_path, PLAIN, checkpoint={"path": name})
    assert caught.value.field == "checkpoint.path"


LABELS = torch.tensor([0] * 6 + [1] * 3 + [2] * 2)
WEIGHT = torch.tensor([0.1, 1 / 3, 0.0123456])


def loader(labels: Tensor = LABELS, **options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.zeros(len(labels), 1), labels), 4, **options)


@pytest.mark.parametrize("options", [{}, {"shuffle": True, "drop_last": True}])
def test_balanced_is_n_over_classes_times_count_and_drops_no_label(options: Any) -> None:
    expected = (11 / (3 * 6), 11 / (3 * 3), 11 / (3 * 2))
    for labels in (LABELS, nn.functional.one_hot(LABELS).float()):
        assert balanced_weights(loader(labels, **options), 3, -100) == expected


def test_ignored_labels_are_not_counted_and_missing_ones_refused() -> None:
    pixels = torch.full((5, 2, 2), 255)
    pixels[:, 0, 0] = torch.tensor([0, 1, 1, 1, 1])
    assert balanced_weights(loader(pixels), 2, 255) == (5 / 2, 5 / 8)
    # An ignored class is not counted as a class either.
    assert balanced_weights(loader(), 3, 0) == (1.0, 5 / 6, 5 / 4)
    with pytest.raises(RecipeError, match=r"labels from 0 to 255, .* loss.ignore_index"):
        balanced_weights(loader(pixels), 2, -100)
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


@pytest.mark.parametrize(
    ("criterion", "field", "words"),
    [
        (nn.CrossEntropyLoss(weight=WEIGHT), "class_weights", "[0.1, 0.333333, 0.0123456]"),
        (nn.CrossEntropyLoss(label_smoothing=0.1), "label_smoothing", "0.1"),
        (nn.CrossEntropyLoss(ignore_index=255), "ignore_index", "255"),
        (partial(nn.functional.cross_entropy, label_smoothing=0.2), "label_smoothing", "0.2"),
    ],
)
def test_a_setting_that_would_be_dropped_comes_with_the_line_for_the_recipe(
    criterion: object, field: str, words: str
) -> None:
    with pytest.raises(RecipeError) as caught:
        refuse_lost_settings(criterion, LossSettings(base="none"))
    assert caught.value.field == f"loss.{field}"
    assert f"loss: {{{field}: {words}}}" in str(caught.value)
    # The line, taken into the recipe, ends the matter.
    value = (0.1, 0.333333, 0.0123456) if field == "class_weights" else float(words)
    refuse_lost_settings(criterion, LossSettings(base="none", **{field: value}))
    if field == "class_weights":
        with pytest.raises(RecipeError, match="weight"):
            refuse_lost_settings(criterion, LossSettings(class_weights=(0.1, 0.3337, 0.0123456)))


def test_label_smoothing_that_the_search_finds_is_to_be_taken_out_of_the_module() -> None:
    with pytest.raises(RecipeError, match=r"label_smoothing=0\.1.*Take it out") as caught:
        refuse_lost_settings(nn.CrossEntropyLoss(label_smoothing=0.1), LossSettings())
    assert caught.value.field == "model.class_path"


def test_a_criterion_without_settings_is_replaced_and_a_sum_refused() -> None:
    for criterion in (None, CE, nn.functional.cross_entropy, nn.Linear(3, 3)):
        refuse_lost_settings(criterion, LossSettings())
    with pytest.raises(RecipeError, match="reduction='sum', which would be dropped"):
        refuse_lost_settings(nn.CrossEntropyLoss(reduction="sum"), LossSettings())


def test_a_module_with_weights_is_refused_unless_the_recipe_has_them(tmp_path: Path) -> None:
    digits_training(tmp_path, "own_nets.WeighsClasses", loss={"class_weights": [1.0] * 9 + [2.0]})
    own = r"\[1.0, 1.0, .*, 2.0\]"
    other = "has 2 weights, .* 10 classes"
    for class_weights, problem in (("balanced", own), (None, own), ([1.0, 2.0], other)):
        loss = {"class_weights": class_weights}
        with pytest.raises(RecipeError, match=f"class_weights: .*{problem}"):
            digits_training(tmp_path, "own_nets.WeighsClasses", loss=loss)
