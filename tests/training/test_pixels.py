"""Logits (N, C, H, W): semantic segmentation with unlabeled pixels, from loss to metric."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from own_nets import Squares
from trainings import RecordedTraining, digits_training

from optuna_taylorglo.search.candidates import loss_conventions
from optuna_taylorglo.verdict.tasks import ComparedLoss


def pixel_training(folder: Path, **changes: Any) -> RecordedTraining:
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


@pytest.mark.parametrize(("metric", "mode"), [("balanced_accuracy", "max"), ("nll", "min")])
def test_metrics_are_over_labeled_pixels(tmp_path: Path, metric: str, mode: str) -> None:
    training = pixel_training(tmp_path, fitness={"metric": f"val_{metric}", "mode": mode})
    kept: list[Any] = []
    criterion = torch.nn.CrossEntropyLoss(ignore_index=255)
    value = training.run(criterion, seed=0, steps=20, on_trained=kept.append)
    images, labels = map(torch.cat, zip(*Squares(16).val_dataloader(), strict=True))
    with torch.no_grad():
        logits = kept[0].net(images)
    labeled = labels != 255
    rows, labels = logits.movedim(1, -1)[labeled], labels[labeled]
    hits = (rows.argmax(dim=1) == labels).float()
    recall = torch.stack([hits[labels == k].mean() for k in range(3)])
    likelihood = torch.nn.functional.cross_entropy(rows, labels)
    expected = recall.mean() if mode == "max" else likelihood
    assert value == pytest.approx(expected.item(), abs=1e-5)
