"""Tiny arrays of every data set's shape, and a quiet Trainer."""

import logging
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from pytorch_lightning import Trainer

SHAPES = {
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
    """Return a function that writes a small data set, whose labels are seen as brightness."""

    def write(name: str, train: int = 200, test: int = 40) -> Path:
        folder, generator = tmp_path / name, np.random.default_rng(1)
        folder.mkdir()
        for part, size in (("train", train), ("test", test)):
            labels = (np.arange(size) % 10).astype(np.uint8)
            noise = generator.integers(0, 8, (size, *SHAPES[name]), dtype=np.uint8)
            brightness = (labels * 27).reshape(-1, *(1 for _ in SHAPES[name]))
            np.save(folder / f"{part}_images.npy", noise + brightness)
            np.save(folder / f"{part}_labels.npy", labels)
        return tmp_path

    return write


@pytest.fixture
def make_trainer() -> Callable[..., Trainer]:
    """Return a factory of Trainers that only train and validate."""
    return partial(
        Trainer,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
