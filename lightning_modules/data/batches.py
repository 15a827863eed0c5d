"""Loaders that cut whole batches out of memory-mapped arrays: no sample is handled one by one.

They yield uint8 images; what happens to them afterwards (scaling, augmentation) happens on the
training device, in ``ImageData.on_after_batch_transfer``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lightning_modules.data.arrays import UInt8Array
from lightning_modules.data.augment import Augmentation, Draws, draw
from lightning_modules.data.splits import Indices, Labels


class Chunk(NamedTuple):
    """Several mini-batches handed to one ``training_step``, which takes an optimizer step on each.

    Lightning's cost is per hook call; a chunk pays it once for many steps.

    Attributes:
        images: Shape (steps, B, C, H, W).
        labels: Shape (steps, B).
    """

    images: Tensor
    labels: Tensor


class RawBatch(NamedTuple):
    """Images as they are stored.

    Attributes:
        images: uint8, shape (N, H, W, C).
        labels: int64, shape (N,).
        draws: The images' augmentation, if any.
        steps: Into how many mini-batches the images are to be cut; None for a plain batch.
    """

    images: Tensor
    labels: Tensor
    draws: Draws | None = None
    steps: int | None = None


class Subset(NamedTuple):
    """Some of the images of an array.

    Attributes:
        images: The whole array, uint8, shape (M, H, W, C), usually a memory map.
        indices: Which images, ascending, shape (N,).
        labels: Their labels, shape (N,).
    """

    images: UInt8Array
    indices: Indices
    labels: Labels

    def take(self, positions: Indices) -> tuple[Tensor, Tensor]:
        """Return the images and labels at some positions of the subset, as new tensors."""
        images = np.take(self.images, self.indices[positions], axis=0)
        labels = self.labels[positions].astype(np.int64)
        return torch.from_numpy(images), torch.from_numpy(labels)


class EvaluationBatches:
    """All images of a subset in order, the last batch as small as it comes out."""

    def __init__(self, subset: Subset, batch_size: int) -> None:
        self._subset = subset
        self._batch_size = batch_size

    def __len__(self) -> int:
        """Return the number of batches."""
        return math.ceil(len(self._subset.indices) / self._batch_size)

    def __iter__(self) -> Iterator[RawBatch]:
        """Yield the batches."""
        size = len(self._subset.indices)
        for first in range(0, size, self._batch_size):
            positions = np.arange(first, min(first + self._batch_size, size))
            yield RawBatch(*self._subset.take(positions))


class TrainingBatches:
    """An endless stream of shuffled mini-batches, handed out an epoch at a time.

    Every pass over the subset is a new permutation without replacement; the images left over after
    the last whole mini-batch of a pass are dropped, so every step sees ``batch_size`` images.
    Step s of the stream depends on the seed and s alone, not on how steps are grouped into chunks
    or epochs.

    Args:
        subset: The training images.
        batch_size: Images a mini-batch.
        seed: Decides order and augmentation.
        augmentation: What to draw for each image.
        steps_per_epoch: Mini-batches after which the loader ends an epoch; None: a pass.
        chunk: Mini-batches handed out together; None: plain batches.
        first_step: Where in the stream to begin.

    Attributes:
        labels: All labels, shape (N,).
        steps_per_epoch: Mini-batches an epoch.
        next_step: The step that comes next.
    """

    def __init__(
        self,
        subset: Subset,
        batch_size: int,
        seed: int,
        augmentation: Augmentation,
        steps_per_epoch: int | None = None,
        chunk: int | None = None,
        first_step: int = 0,
    ) -> None:
        self._subset = subset
        self._batch_size = batch_size
        self._seed = seed
        self._augmentation = augmentation
        self._steps_per_pass = len(subset.indices) // batch_size
        self._chunk = chunk
        self.labels = torch.from_numpy(subset.labels.astype(np.int64))
        self._pass: tuple[int, Indices, Draws | None] | None = None
        self._continues = True
        self.next_step = first_step
        self.steps_per_epoch = steps_per_epoch or self._steps_per_pass

    def __len__(self) -> int:
        """Return how often an epoch yields: its number of chunks, or of mini-batches."""
        return math.ceil(self.steps_per_epoch / (self._chunk or 1))

    def __iter__(self) -> Iterator[RawBatch]:
        """Yield the next epoch; the first one starts at ``first_step`` even inside an epoch."""
        if not self._continues:  # an epoch that was left early is not taken up again
            self.next_step = math.ceil(self.next_step / self.steps_per_epoch) * self.steps_per_epoch
        self._continues = False
        end = (self.next_step // self.steps_per_epoch + 1) * self.steps_per_epoch
        while self.next_step < end:
            steps = min(self._chunk or 1, end - self.next_step)
            batch = self._take(self.next_step, steps)
            self.next_step += steps
            yield batch

    def _take(self, first_step: int, steps: int) -> RawBatch:
        positions: list[Indices] = []
        draws: list[Draws] = []
        for step in range(first_step, first_step + steps):
            order, drawn = self._pass_of(step)
            start = (step % self._steps_per_pass) * self._batch_size
            window = slice(start, start + self._batch_size)
            positions.append(order[window])
            if drawn is not None:
                draws.append(Draws(*(tensor[window] for tensor in drawn)))
        images, labels = self._subset.take(np.concatenate(positions))
        return RawBatch(
            images,
            labels,
            Draws(*map(torch.cat, zip(*draws, strict=True))) if draws else None,
            None if self._chunk is None else steps,
        )

    def _pass_of(self, step: int) -> tuple[Indices, Draws | None]:
        """Return order and draws of the pass that a step belongs to."""
        number = step // self._steps_per_pass
        if self._pass is None or self._pass[0] != number:
            state = np.random.SeedSequence((self._seed, number)).generate_state(1, np.uint64)
            generator = torch.Generator().manual_seed(int(state[0]))
            size = len(self._subset.indices)
            order = torch.randperm(size, generator=generator).numpy()
            height, width = self._subset.images.shape[1:3]
            drawn = (
                draw(self._augmentation, size, height, width, generator)
                if self._augmentation.active
                else None
            )
            self._pass = (number, order, drawn)
        return self._pass[1], self._pass[2]
