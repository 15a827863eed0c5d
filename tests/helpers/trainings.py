"""Trainings on the digits that take a tenth of a second, for tests of what is built on them."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from searches import small_recipe
from torch import Tensor, nn

from lightning_modules.data import ImageData
from optuna_taylorglo.recipes.load import load_recipe
from optuna_taylorglo.training.runtime import RuntimeConfig
from optuna_taylorglo.training.training import Training

HELPERS = ("mistakes", "own_nets", "own_optimizers", "two_lightnings", "tabular")


def cpu(data_dir, *allowed):
    """A machine on which results do not depend on what the CPU can do."""
    return RuntimeConfig(data_dir, "cpu", "32-true", allowed)


class RecordedTraining(Training):
    """Trains, and remembers the criterion and the options of each training."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.criteria: list[nn.Module] = []
        self.options: list[dict[str, Any]] = []

    @property
    def seeds(self):
        return [options["seed"] for options in self.options]

    def run(self, criterion, **options):
        self.criteria.append(criterion)
        self.options.append(options)
        return super().run(criterion, **options)


def digits_training(folder, model=None, init_args=None, **changes):
    """The small digits recipe, with another model and some sections changed, ready to train."""
    if isinstance(model, str):
        model = {"class_path": model, "init_args": init_args or {}}
    recipe = small_recipe(folder / "recipe.yaml", model=model or {}, **changes)
    return RecordedTraining(load_recipe(recipe), cpu(folder, *HELPERS, "pytorch_lightning"))


class Validations(list[tuple[int, float]]):
    """Takes validations in."""

    def __call__(self, step, value):
        self.append((step, value))

    @property
    def steps(self):
        return [step for step, _ in self]

    @property
    def values(self):
        return [value for _, value in self]


def trained(training, steps, seed=1, **options):
    """The module after a training with cross-entropy."""
    modules = []
    training.run(
        nn.CrossEntropyLoss(), seed=seed, steps=steps, on_trained=modules.append, **options
    )
    return modules[0]


def weights(module: nn.Module) -> Tensor:
    """All weights of a network or module, in one vector."""
    return torch.cat([value.detach().flatten() for value in module.parameters()])


class NotingLoss(nn.Module):
    """Cross-entropy that notes its progress in training, and is NaN from one step on."""

    progress: Tensor

    def __init__(self, nan_from: float = float("inf")) -> None:
        super().__init__()
        self.register_buffer("progress", torch.zeros(()))
        self.nan_from = nan_from
        self.told: list[float] = []
        self.kinds: set[torch.dtype] = set()

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        self.kinds.add(logits.dtype)
        if logits.requires_grad:
            self.told.append(self.progress.item())
        loss = nn.functional.cross_entropy(logits, labels)
        return loss * float("nan") if len(self.told) >= self.nan_from else loss


def write_images(
    data_dir: Path, kind: type[ImageData], train: int = 200, test: int = 40, n_classes: int = 10
) -> None:
    """Arrays of a data set, whose labels are seen as brightness."""
    channels, *size = kind.input_shape
    shape = size if channels == 1 else [*size, channels]
    folder, generator = data_dir / kind.dataset, np.random.default_rng(1)
    folder.mkdir()
    step = kind.max_value // n_classes
    for part, n_images in (("train", train), ("test", test)):
        labels = np.arange(n_images) % n_classes
        images = generator.integers(0, step // 2 + 1, (n_images, *shape))
        images += step * labels.reshape(-1, *(1 for _ in shape))
        np.save(folder / f"{part}_images.npy", images.astype(np.uint8))
        np.save(folder / f"{part}_labels.npy", labels.astype(np.uint8))
