"""Logits (N, C, H, W): semantic segmentation with unlabeled pixels, from loss to metric."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from searches import small_recipe
from trainings import cpu

from optuna_taylorglo.recipes.load import load_recipe
from optuna_taylorglo.search.candidates import loss_conventions
from optuna_taylorglo.training.training import Training
from optuna_taylorglo.verdict.tasks import KINDS, ComparedLoss

THETA = [0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0]


def pixel_training(folder: Path, **changes: Any) -> Training:
    path = small_recipe(
        folder / "recipe.yaml",
        data={"class_path": "own_nets.Squares", "init_args": {}},
        model={"class_path": "own_nets.PixelNet", "init_args": {}},
        optimizer={"lr": 0.3},
        batch_size=16,
        loss={"ignore_index": 255, "class_weights": "balanced", "class_reduction": "sum"},
        **changes,
    )
    return Training(load_recipe(path), cpu(folder, "own_nets"))


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_loss_learns_pixels(tmp_path: Path, kind: str) -> None:
    training = pixel_training(tmp_path)
    shapes = {"taylor": {"theta": THETA}, "tree": {"tree": ["*", "x", "log", "y"]}}
    settings = shapes[kind] | {"class_reduction": "sum"} if kind in shapes else {}
    loss = ComparedLoss("l", "l", kind, settings=settings)
    criterion = loss.criterion(loss_conventions(training.recipe))
    assert criterion.ignore_index == 255
    if kind.startswith("baikal"):  # it has a pole
        training = training.at_learning_rate(0.02)
    assert training.run(criterion, seed=0, steps=40) > 0.75


@pytest.mark.parametrize(
    ("metric", "mode"),
    [("accuracy", "max"), ("balanced_accuracy", "max"), ("f1", "max"), ("nll", "min")],
)
def test_metrics_are_over_labeled_pixels(tmp_path: Path, metric: str, mode: str) -> None:
    training = pixel_training(tmp_path, fitness={"metric": f"val_{metric}", "mode": mode})
    kept = []
    value = training.run(
        torch.nn.CrossEntropyLoss(ignore_index=255),
        seed=0,
        steps=40,
        on_trained=kept.append,
    )
    from own_nets import Squares

    batches = list(Squares(16).val_dataloader())
    images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    with torch.no_grad():
        logits = kept[0].net(images)
    labeled = labels != 255
    rows, labels = logits.movedim(1, -1)[labeled], labels[labeled]
    hits = (rows.argmax(dim=1) == labels).float()
    recall = torch.stack([hits[labels == k].mean() for k in range(3)])
    found = rows.argmax(dim=1)
    precision = torch.stack([hits[found == k].mean() for k in range(3)])
    expected = {
        "accuracy": hits.mean(),
        "balanced_accuracy": recall.mean(),
        "f1": (2 * precision * recall / (precision + recall)).mean(),
        "nll": torch.nn.functional.cross_entropy(rows, labels),
    }
    assert value == pytest.approx(expected[metric].item(), abs=1e-5)
