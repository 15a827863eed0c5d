"""Metrics of bundled networks against their definitions, over samples and over pixels."""

from __future__ import annotations

import math

import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, f1_score, log_loss
from torch import Tensor

from lightning_modules.metrics import build_metric, metric_of
from optuna_taylorglo.errors import RecipeError
from optuna_taylorglo.recipes.schema import FitnessSettings

N_CLASSES = 7


def batch(*pixels: int, ignored: int | None = None) -> tuple[Tensor, Tensor]:
    """Logits (N, C, …), all in [0, 1], where torchmetrics takes them for probabilities; labels."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.rand(30, N_CLASSES, *pixels, generator=generator)
    labels = torch.randint(N_CLASSES, (30, *pixels), generator=generator)
    if ignored is not None:
        labels[::4] = ignored
    return logits, labels


def flat(logits: Tensor, labels: Tensor, ignored: int | None) -> tuple[Tensor, Tensor]:
    """One row for each label that counts."""
    rows, labels = logits.movedim(1, -1).reshape(-1, N_CLASSES), labels.flatten()
    counted = torch.ones_like(labels, dtype=torch.bool) if ignored is None else labels != ignored
    return rows[counted], labels[counted]


def expected(name: str, rows: Tensor, labels: Tensor) -> float:
    probabilities, found = rows.double().softmax(dim=1), rows.argmax(dim=1)
    if name == "nll":
        return float(log_loss(labels, probabilities, labels=range(N_CLASSES)))
    if name == "f1":
        return float(f1_score(labels, found, average="macro"))
    if name == "balanced_accuracy":
        return float(balanced_accuracy_score(labels, found))
    if name == "top5_accuracy":
        return float((rows.topk(5, dim=1).indices == labels[:, None]).any(dim=1).double().mean())
    confidence, hit = probabilities.max(dim=1).values, (found == labels).double()
    bins = (confidence * 15).floor()
    return sum(
        float((confidence[bins == b] - hit[bins == b]).sum().abs()) for b in bins.unique()
    ) / len(labels)


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
@pytest.mark.parametrize("ignored", [None, 255, 2])
@pytest.mark.parametrize("pixels", [(), (3, 2)])
@pytest.mark.parametrize("name", ["nll", "f1", "top5_accuracy", "ece", "balanced_accuracy"])
def test_a_metric_is_what_its_name_says(
    name: str, pixels: tuple[int, ...], ignored: int | None
) -> None:
    logits, labels = batch(*pixels, ignored=ignored)
    ignore_index = -100 if ignored is None else ignored
    metric = build_metric(name, N_CLASSES, ignore_index)
    for part in range(0, 30, 8):
        metric.update(logits[part : part + 8], labels[part : part + 8])
    rows, counted = flat(logits, labels, ignored)
    assert float(metric.compute()) == pytest.approx(expected(name, rows, counted), abs=1e-5)


def test_a_likelihood_that_is_not_a_number_is_not_left_out_of_the_mean() -> None:
    logits, labels = batch()
    logits[3] = math.nan
    metric = build_metric("nll", N_CLASSES, -100)
    metric.update(logits, labels)
    assert math.isnan(float(metric.compute()))


@pytest.mark.parametrize(
    ("fitness", "said"),
    [
        ({"metric": "val_loss"}, ["own loss", "metric: val_nll and mode: min"]),
        ({"metric": "val_loss", "mode": "min"}, ["own loss", "val_nll"]),
        ({"metric": "val_nll"}, ["fitness.mode: max", "write mode: min"]),
        ({"mode": "min"}, ["min is not allowed with val_accuracy", "write mode: max"]),
        ({"metric": "val_recall"}, ["'val_recall' is not logged", "val_accuracy, val_balanced"]),
        ({"metric": "accuracy"}, ["'accuracy' is not logged", "val_accuracy"]),
        ({"metric": "val_top5_accuracy"}, ["always 1, as the data have 5 classes"]),
    ],
)
def test_a_fitness_that_a_plain_network_has_not_is_refused(
    fitness: dict[str, str], said: list[str]
) -> None:
    with pytest.raises(RecipeError) as caught:
        metric_of(FitnessSettings(**fitness), 5)
    assert all(words in str(caught.value) for words in said)
    assert metric_of(FitnessSettings(metric="val_top5_accuracy"), 6) == "top5_accuracy"
