"""Loaders that cut whole batches out of arrays in memory, and augmentation by whole batches.

Loaders yield uint8 images with the random draws of their augmentation, made on the CPU for a whole
pass: a seed gives the same training images on every device and however a pass is cut into batches.
``ImageData.on_after_batch_transfer`` applies the draws on the training device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from lightning_modules.data.splits import Indices, Labels
from optuna_taylorglo.errors import UsageError


class Draws(NamedTuple):
    """One random draw an image."""

    flip: Tensor  # whether to mirror, bool, shape (N,)
    shift: Tensor  # row and column of the crop in the padded image, shape (N, 2)
    hole: Tensor  # row and column of the hole's center, shape (N, 2)


@dataclass(frozen=True)
class Augmentation:
    """What to do to training images.

    Attributes:
        flip: Mirror an image left to right with probability 1/2.
        padding: Pad with black by this many pixels on each side, then cut out a window of the
            original size at random (the paper says 2, its code 4).
        cutout: Side of one square hole, centered at random and clipped at the border, filled with
            the value 0 after normalization (DeVries and Taylor, 2017).
    """

    flip: bool = False
    padding: int = 0
    cutout: int = 0

    def __post_init__(self) -> None:
        for name in ("padding", "cutout"):
            if (value := getattr(self, name)) < 0:
                raise UsageError(f"{name} must not be negative, got {value!r}")

    def __bool__(self) -> bool:
        return self.flip or self.padding > 0 or self.cutout > 0

    def draw(self, n_images: int, height: int, width: int, generator: torch.Generator) -> Draws:
        """Draw for a number of images of one size."""
        rows = torch.randint(height, (n_images,), generator=generator)
        columns = torch.randint(width, (n_images,), generator=generator)
        return Draws(
            flip=torch.rand(n_images, generator=generator) < (0.5 if self.flip else 0.0),
            shift=torch.randint(2 * self.padding + 1, (n_images, 2), generator=generator),
            hole=torch.stack((rows, columns), dim=1),
        )

    def move(self, images: Tensor, draws: Draws) -> Tensor:
        """Crop images (N, H, W, C) from their padded form and mirror them."""
        if not self.flip and self.padding == 0:
            return images
        n_images, height, width, channels = images.shape
        pad = self.padding
        padded = functional.pad(images, (0, 0, pad, pad, pad, pad))
        rows = draws.shift[:, :1] + torch.arange(height, device=images.device)
        columns = torch.arange(width, device=images.device).expand(n_images, width)
        columns = torch.where(draws.flip[:, None], width - 1 - columns, columns)
        columns = columns + draws.shift[:, 1:]
        first = torch.arange(n_images, device=images.device)[:, None] * (height + 2 * pad)
        pixels = (first + rows)[:, :, None] * (width + 2 * pad) + columns[:, None, :]
        moved = padded.reshape(-1, channels).index_select(0, pixels.reshape(-1))
        return moved.reshape(n_images, height, width, channels)

    def cut_out_(self, images: Tensor, draws: Draws) -> Tensor:
        """Set a square of each of the images (N, C, H, W) to zero, in place."""
        if self.cutout == 0:
            return images

        def inside(length: int, center: Tensor) -> Tensor:
            positions = torch.arange(length, device=images.device)
            offset = positions - (center[:, None] - self.cutout // 2)
            return (offset >= 0) & (offset < self.cutout)

        rows = inside(images.shape[2], draws.hole[:, 0])
        columns = inside(images.shape[3], draws.hole[:, 1])
        return images.masked_fill_((rows[:, :, None] & columns[:, None, :])[:, None], 0.0)


class RawBatch(NamedTuple):
    """Images as they are stored."""

    images: Tensor  # uint8, shape (N, H, W, C)
    labels: Tensor  # int64, shape (N,)
    draws: Draws | None = None  # the images' augmentation, if any


class Subset(NamedTuple):
    """Some of the images of an array."""

    images: npt.NDArray[np.uint8]  # the whole array, shape (M, H, W, C)
    indices: Indices  # which images, ascending, shape (N,)
    labels: Labels  # of these images, shape (N,)

    def take(self, positions: Indices) -> tuple[Tensor, Tensor]:
        """Return the images and labels at some positions of the subset, as new tensors."""
        images = np.take(self.images, self.indices[positions], axis=0)
        labels = self.labels[positions].astype(np.int64)
        return torch.from_numpy(images), torch.from_numpy(labels)


@dataclass(eq=False)
class EvaluationBatches:
    """All images of a subset in order; the last batch may be smaller."""

    subset: Subset
    batch_size: int

    def __len__(self) -> int:
        return math.ceil(len(self.subset.indices) / self.batch_size)

    def __iter__(self) -> Iterator[RawBatch]:
        positions = np.arange(len(self.subset.indices))
        for first in range(0, len(positions), self.batch_size):
            yield RawBatch(*self.subset.take(positions[first : first + self.batch_size]))


@dataclass(eq=False)
class TrainingBatches:
    """An endless stream of shuffled mini-batches, yielded an epoch at a time.

    Each pass over the subset is a new permutation; the images left over after the last whole
    mini-batch of a pass are dropped. Step s of the stream depends on the seed and s alone, not on
    how steps are grouped into batches or epochs.
    """

    subset: Subset
    batch_size: int  # of a mini-batch
    seed: int  # decides order and augmentation
    augmentation: Augmentation
    steps_per_epoch: int | None = None  # None: those of a pass
    steps_per_batch: int = 1  # mini-batches that one batch holds

    def __post_init__(self) -> None:
        self.labels = torch.from_numpy(self.subset.labels.astype(np.int64))
        self.steps_per_pass = len(self.subset.indices) // self.batch_size
        self._epoch_length = self.steps_per_epoch or self.steps_per_pass
        self._next_step = 0
        self._pass: tuple[int, Indices, Draws | None] = (-1, np.empty(0, np.int64), None)

    def __len__(self) -> int:
        return math.ceil(self._epoch_length / self.steps_per_batch)

    def __iter__(self) -> Iterator[RawBatch]:
        end = self._next_step + self._epoch_length
        while self._next_step < end:
            first = self._next_step
            self._next_step = min(first + self.steps_per_batch, end)
            yield self._batch(range(first, self._next_step))

    def order(self, number: int) -> Indices:
        """The permutation of a pass."""
        return self._draw_pass(number)[1]

    def _batch(self, steps: range) -> RawBatch:
        positions: list[Indices] = []
        draws: list[Draws] = []
        for step in steps:
            number, start = divmod(step, self.steps_per_pass)
            _, order, drawn = self._draw_pass(number)
            window = slice(start * self.batch_size, (start + 1) * self.batch_size)
            positions.append(order[window])
            if drawn is not None:
                draws.append(Draws(*(tensor[window] for tensor in drawn)))
        images, labels = self.subset.take(np.concatenate(positions))
        joined = Draws(*map(torch.cat, zip(*draws, strict=True))) if draws else None
        return RawBatch(images, labels, joined)

    def _draw_pass(self, number: int) -> tuple[int, Indices, Draws | None]:
        """Number, order and augmentation of a pass; the last one is remembered."""
        if self._pass[0] != number:
            state = np.random.SeedSequence((self.seed, number)).generate_state(1, np.uint64)
            generator = torch.Generator().manual_seed(int(state[0]))
            n_images, (height, width) = len(self.subset.indices), self.subset.images.shape[1:3]
            order = torch.randperm(n_images, generator=generator).numpy()
            augmentation = self.augmentation
            drawn = augmentation.draw(n_images, height, width, generator) if augmentation else None
            self._pass = (number, order, drawn)
        return self._pass
