"""Metrics of bundled networks against their definitions, over samples and over pixels."""

import math

import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, f1_score, log_loss
from torch import Tensor

from lightning_modules.metrics import build_metric, metric_of
from optuna_taylorglo.errors import RecipeError
from optuna_taylorglo.recipes.schema import FitnessSettings

N_CLASSES = 7


def batch(*pixels: int, ignored: int) -> tuple[Tensor, Tensor]:
    """Logits (N, C, …), all in [0, 1], where torchmetrics takes them for probabilities; labels."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.rand(30, N_CLASSES, *pixels, generator=generator)
    labels = torch.randint(N_CLASSES, (30, *pixels), generator=generator)
    if ignored >= 0:
        labels[::4] = ignored
    return logits, labels


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
@pytest.mark.parametrize("ignored", [-100, 255, 2])
@pytest.mark.parametrize("pixels", [(), (3, 2)])
@pytest.mark.parametrize("name", ["nll", "f1", "top5_accuracy", "ece", "balanced_accuracy"])
def test_a_metric_is_what_its_name_says(name: str, pixels: tuple[int, ...], ignored: int) -> None:
    logits, labels = batch(*pixels, ignored=ignored)
    metric = build_metric(name, N_CLASSES, ignored)
    for part in range(0, 30, 8):
        metric.update(logits[part : part + 8], labels[part : part + 8])
    counted = labels != ignored
    rows = logits.movedim(1, -1)[counted]
    found = float(metric.compute())
    assert found == pytest.approx(expected(name, rows, labels[counted]), abs=1e-5)


def test_a_likelihood_that_is_not_a_number_is_not_left_out_of_the_mean() -> None:
    logits, labels = batch(ignored=-100)
    logits[3] = math.nan
    metric = build_metric("nll", N_CLASSES, -100)
    metric.update(logits, labels)
    assert math.isnan(float(metric.compute()))


@pytest.mark.parametrize(
    ("fitness", "said"),
    [
        ({"metric": "val_loss"}, "own loss.*metric: val_nll and mode: min"),
        ({"metric": "val_nll"}, "fitness.mode: max.*write mode: min"),
        ({"mode": "min"}, "min is not allowed with val_accuracy.*write mode: max"),
        ({"metric": "val_recall"}, "'val_recall' is not logged.*val_accuracy, val_balanced"),
        ({"metric": "accuracy"}, "'accuracy' is not logged.*val_accuracy"),
        ({"metric": "val_top5_accuracy"}, "always 1, as the data have 5 classes"),
    ],
)
def test_a_fitness_that_a_plain_network_has_not_is_refused(
    fitness: dict[str, str], said: str
) -> None:
    with pytest.raises(RecipeError, match=said):
        metric_of(FitnessSettings(**fitness), 5)
    assert metric_of(FitnessSettings(metric="val_top5_accuracy"), 6) == "top5_accuracy"
