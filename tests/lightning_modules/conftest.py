"""Tiny arrays of every data set's shape, and a quiet Trainer."""

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_lightning import Trainer

SHAPES = {
    "digits": (8, 8),
    "mnist": (28, 28),
    "fashion_mnist": (28, 28),
    "cifar10": (32, 32, 3),
    "svhn": (32, 32, 3),
}


@pytest.fixture(autouse=True)
def _quiet_single_thread() -> None:
    torch.set_num_threads(1)
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="pytorch_lightning")


@pytest.fixture
def tiny_arrays(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a small data set and returns the data folder."""

    def write(name: str, train: int = 200, test: int = 40) -> Path:
        _write_arrays(tmp_path / name, name, train, test)
        return tmp_path

    return write


def _write_arrays(folder: Path, name: str, train: int, test: int) -> None:
    """Write noise with the label visible as the brightness of the image."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(1)
    for part, size in (("train", train), ("test", test)):
        labels = (np.arange(size) % 10).astype(np.uint8)
        noise = generator.integers(0, 8, (size, *SHAPES[name]), dtype=np.uint8)
        peak = 16 if name == "digits" else 255
        brightness = (labels.astype(np.int64) * (peak - 8) // 9).astype(np.uint8)
        images = noise + brightness.reshape(-1, *(1 for _ in SHAPES[name]))
        np.save(folder / f"{part}_images.npy", images)
        np.save(folder / f"{part}_labels.npy", labels)


@pytest.fixture
def make_trainer() -> Callable[..., Trainer]:
    """Return a factory of Trainers that only train and validate."""

    def make(**settings: Any) -> Trainer:
        defaults = {
            "accelerator": "cpu",
            "devices": 1,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "num_sanity_val_steps": 0,
        }
        return Trainer(**{**defaults, **settings})

    return make
