"""Image data as LightningDataModules: fixed splits, whole batches, augmentation on the device."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from pytorch_lightning import LightningDataModule
from torch import Tensor

from lightning_modules.data import sources
from lightning_modules.data.arrays import LabeledImages, Part, is_cached, open_part, write_cache
from lightning_modules.data.augment import Augmentation, cut_out_, move
from lightning_modules.data.batches import (
    Chunk,
    EvaluationBatches,
    RawBatch,
    Subset,
    TrainingBatches,
)
from lightning_modules.data.normalization import ChannelStatistics, channel_statistics
from lightning_modules.data.splits import (
    Indices,
    Labels,
    long_tailed_choice,
    split,
    stratified_choice,
    with_next_class_noise,
    with_symmetric_noise,
)
from optuna_taylorglo.errors import UsageError

logger = logging.getLogger(__name__)

MAX_CHUNK = 20
CHUNK_BYTES = 4 * 2**20
VALIDATION_STREAM = 1

NoiseKind = Literal["symmetric", "next_class"]


@dataclass(frozen=True)
class DataSetFacts:
    """What a data set is.

    Attributes:
        name: Name of its folder.
        input_shape: Shape (C, H, W) of one image.
        train_size: Images of its training part, validation images included.
        val_size: How many of those are for validation.
        read: Reads its arrays, given the data folder.
        num_classes: Number of classes.
        max_value: The value that becomes 1 when images are scaled to [0, 1].
        stratified: Whether the validation part has the same share of every class.
        standardized: Whether images are standardized unless one says otherwise.
    """

    name: str
    input_shape: tuple[int, int, int]
    train_size: int
    val_size: int
    read: Callable[[Path], sources.Arrays]
    num_classes: int = 10
    max_value: int = 255
    stratified: bool = False
    standardized: bool = False


class ImageData(LightningDataModule):
    """What all image data sets share. Use a subclass.

    The training part of the data set is split, once and for all, into training and validation
    images; the test part is opened by ``setup("test")`` only. A cache with fewer images than the
    full data set is split in the same proportion.

    Args:
        data_dir: Folder of the cache; ``<data_dir>/<name>`` is filled at first use.
        batch_size: Images an optimizer step.
        seed: Order and augmentation of the training images; nothing else depends on it.
        images: How many images there are to train and validate with, the same share of every class
            in both parts; None: all of the data set's training part.
        fraction: Share of the training images to train on, the same share of every class.
        imbalance: How many times as many of its training images the first class keeps as the last;
            between them the share falls exponentially. 1: all are kept.
        label_noise: Share of the training images that get a wrong label.
        noise_kind: What wrong labels are: "symmetric", any other class alike; "next_class", the
            class that follows, so that each class is confused with one other.
        noisy_validation: Make the same share of the validation labels wrong. Those of the test
            part are always right.
        flip: Mirror training images left to right with probability 1/2.
        padding: Padding of the random crop of training images; 0: no crop.
        cutout: Side of the Cutout hole in training images; 0: none.
        standardize: Subtract the mean and divide by the standard deviation of the training images,
            channel by channel; else only scale to [0, 1]. None: as the data set's class says.
        val_size: Validation images; None: the data set's own number.
        eval_batch_size: Images a validation or test batch.
        steps_per_epoch: Mini-batches an epoch, taken from an endless stream of passes, so that a
            budget in steps can be validated at any interval; None: one pass over the images.
        chunk: Mini-batches handed to one ``training_step`` as a `Chunk`. None: as many as fit
            into 4 MB, at most 20, if the module under training says ``takes_chunks = True`` and
            the Trainer counts no batches (``limit_train_batches``, ``val_check_interval``); else
            plain ``(images, labels)`` batches. 0: always plain batches.

    Attributes:
        num_classes: Number of classes.
        input_shape: Shape (C, H, W) of one image as the network sees it.

    Raises:
        UsageError: If an argument is out of range.
    """

    facts: ClassVar[DataSetFacts]

    def __init__(
        self,
        data_dir: str | Path = "data",
        batch_size: int = 100,
        seed: int = 0,
        *,
        images: int | None = None,
        fraction: float = 1.0,
        imbalance: float = 1.0,
        label_noise: float = 0.0,
        noise_kind: NoiseKind = "symmetric",
        noisy_validation: bool = False,
        flip: bool = False,
        padding: int = 0,
        cutout: int = 0,
        standardize: bool | None = None,
        val_size: int | None = None,
        eval_batch_size: int = 250,
        steps_per_epoch: int | None = None,
        chunk: int | None = None,
    ) -> None:
        super().__init__()
        _require(batch_size >= 1, "batch_size", batch_size, "at least 1")
        _require(eval_batch_size >= 1, "eval_batch_size", eval_batch_size, "at least 1")
        _require(seed >= 0, "seed", seed, "at least 0")
        _require(images is None or images >= 2, "images", images, "at least 2")
        _require(0 < fraction <= 1, "fraction", fraction, "in (0, 1]")
        _require(1 <= imbalance < math.inf, "imbalance", imbalance, "at least 1, and finite")
        _require(0 <= label_noise <= 1, "label_noise", label_noise, "in [0, 1]")
        kinds = get_args(NoiseKind)
        _require(noise_kind in kinds, "noise_kind", noise_kind, f"one of {', '.join(kinds)}")
        _require(val_size is None or val_size >= 1, "val_size", val_size, "at least 1")
        _require(
            steps_per_epoch is None or steps_per_epoch >= 1,
            "steps_per_epoch",
            steps_per_epoch,
            "at least 1",
        )
        _require(chunk is None or chunk >= 0, "chunk", chunk, "at least 0")
        self.num_classes = self.facts.num_classes
        self.input_shape = self.facts.input_shape
        self.folder = Path(data_dir) / self.facts.name
        self.batch_size = batch_size
        self.seed = seed
        self.images = images
        self.fraction = fraction
        self.imbalance = imbalance
        self.label_noise = label_noise
        self.noise_kind = noise_kind
        self.noisy_validation = noisy_validation
        self.augmentation = Augmentation(flip, padding, cutout)
        self.standardize = self.facts.standardized if standardize is None else standardize
        self.val_size = val_size
        self.eval_batch_size = eval_batch_size
        self.steps_per_epoch = steps_per_epoch
        self.chunk = chunk
        self._training: TrainingBatches | None = None
        self._first_step = 0
        self._scale: Tensor | None = None
        self._shift: Tensor | None = None

    def prepare_data(self) -> None:
        """Fill the cache if it is not there; processes that come meanwhile wait."""
        if not is_cached(self.folder):
            write_cache(self.folder, lambda: self.facts.read(self.folder.parent))

    def setup(self, stage: str) -> None:
        """Memory-map the arrays that a stage needs: only "test" opens the test part.

        Args:
            stage: "fit", "validate" or "test".
        """
        self.prepare_data()
        train = self._open("train")
        rest, held_out = self._split(train)
        self.val_data = self._validation_subset(train, held_out)
        self.train_data = self._training_subset(train, rest)
        if len(self.train_data.indices) < self.batch_size:
            raise UsageError(
                f"batch_size must not exceed the {len(self.train_data.indices)} training images "
                f"(images={self.images}, fraction={self.fraction}, imbalance={self.imbalance}), "
                f"got {self.batch_size}"
            )
        self._set_normalization()
        if stage == "test":
            test = self._open("test")
            everything = np.arange(len(test.labels), dtype=np.int64)
            self.test_data = Subset(test.images, everything, test.labels)

    def train_dataloader(self) -> TrainingBatches:
        """Return the stream of training batches.

        Raises:
            RuntimeError: If the Trainer has several devices; the stream is not divided among them.
        """
        if self.trainer is not None and self.trainer.world_size > 1:
            raise RuntimeError(
                f"{type(self).__name__} feeds one device, but the Trainer has "
                f"{self.trainer.world_size}; run one process a device"
            )
        self._training = TrainingBatches(
            self.train_data,
            self.batch_size,
            self.seed,
            self.augmentation,
            self.steps_per_epoch,
            self._chunk_size(),
            first_step=self._first_step,
        )
        self._first_step = 0
        return self._training

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the training stream; Lightning keeps it in checkpoints."""
        return {"next_step": 0 if self._training is None else self._training.next_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Let the next training loader begin at a position in the stream."""
        self._first_step = int(state_dict["next_step"])

    def val_dataloader(self) -> EvaluationBatches:
        """Return the validation batches."""
        return EvaluationBatches(self.val_data, self.eval_batch_size)

    def test_dataloader(self) -> EvaluationBatches:
        """Return the test batches."""
        return EvaluationBatches(self.test_data, self.eval_batch_size)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Augment and scale on the device.

        Args:
            batch: A `RawBatch`; anything else passes through.
            dataloader_idx: Unused.

        Returns:
            Images (B, C, H, W) in float32 and labels (B,), or a `Chunk` of several such batches.
        """
        if not isinstance(batch, RawBatch):
            return batch
        images = batch.images
        if batch.draws is not None and self.augmentation.moves:
            images = move(images, batch.draws, self.augmentation.padding)
        # A permuted view of N×H×W×C memory is what PyTorch calls channels_last: no copy is made.
        images = self._normalize(images.permute(0, 3, 1, 2))
        if batch.draws is not None and self.augmentation.cutout:
            images = cut_out_(images, batch.draws, self.augmentation.cutout)
        if batch.steps is None:
            return images, batch.labels
        cut = (batch.steps, self.batch_size)
        # A view, so that each mini-batch keeps the memory format of the whole.
        return Chunk(images.view(*cut, *images.shape[1:]), batch.labels.view(cut))

    def _open(self, part: Part) -> LabeledImages:
        channels, height, width = self.input_shape
        stored = (height, width) if channels == 1 else (height, width, channels)
        images, labels = open_part(self.folder, part, stored)
        return LabeledImages(images.reshape(-1, height, width, channels), labels)

    def _split(self, train: LabeledImages) -> tuple[Indices, Indices]:
        size = len(train.labels) if self.images is None else self.images
        if size > len(train.labels):
            raise UsageError(
                f"images must be at most {len(train.labels)}, as many as {self.folder} holds, "
                f"got {size}"
            )
        if self.val_size is None and self.images is None and size != self.facts.train_size:
            _warn_of_size(self.folder, size, self.facts.train_size)
        val_size = self.val_size or round(size * self.facts.val_size / self.facts.train_size)
        if not 0 < val_size < size:
            raise UsageError(
                f"val_size must be in [1, {size - 1}] with {size} images, got {val_size}"
            )
        if self.images is None:
            return split(train.labels, val_size, self.facts.stratified)
        chosen = stratified_choice(train.labels, size)
        rest, held_out = split(train.labels[chosen], val_size, stratified=True)
        return chosen[rest], chosen[held_out]

    def _training_subset(self, train: LabeledImages, indices: Indices) -> Subset:
        if self.fraction < 1:
            kept = stratified_choice(train.labels[indices], round(self.fraction * len(indices)))
            indices = indices[kept]
        if self.imbalance > 1:
            kept = long_tailed_choice(train.labels[indices], self.imbalance, self.num_classes)
            indices = indices[kept]
        return Subset(train.images, indices, self._with_noise(train.labels[indices]))

    def _validation_subset(self, train: LabeledImages, indices: Indices) -> Subset:
        labels: Labels = train.labels[indices]
        if self.noisy_validation:
            labels = self._with_noise(labels, VALIDATION_STREAM)
        return Subset(train.images, indices, labels)

    def _with_noise(self, labels: Labels, *stream: int) -> Labels:
        if self.label_noise == 0:
            return labels
        add = with_symmetric_noise if self.noise_kind == "symmetric" else with_next_class_noise
        return add(labels, self.label_noise, self.num_classes, *stream)

    def _set_normalization(self) -> None:
        channels = self.input_shape[0]
        mean, std = np.zeros(channels), np.full(channels, float(self.facts.max_value))
        if self.standardize:
            mean, std = _statistics(self.folder, self.train_data)
        self._scale = torch.tensor(1 / std, dtype=torch.float32).reshape(-1, 1, 1)
        self._shift = torch.tensor(-mean / std, dtype=torch.float32).reshape(-1, 1, 1)

    def _normalize(self, images: Tensor) -> Tensor:
        assert self._scale is not None
        assert self._shift is not None
        if self._scale.device != images.device:
            self._scale = self._scale.to(images.device)
            self._shift = self._shift.to(images.device)
        scaled = images.to(torch.float32).mul_(self._scale)
        return scaled.add_(self._shift) if self.standardize else scaled

    def _chunk_size(self) -> int | None:
        if self.chunk is not None:
            return self.chunk or None
        trainer = self.trainer
        if trainer is None or not getattr(trainer.lightning_module, "takes_chunks", False):
            return None
        counts_batches = trainer.limit_train_batches != 1.0 or trainer.val_check_interval != 1.0
        batch_bytes = 4 * self.batch_size * int(np.prod(self.input_shape))
        fitting = min(CHUNK_BYTES // batch_bytes, MAX_CHUNK)
        return None if counts_batches or fitting < 2 else fitting


@cache
def _warn_of_size(folder: Path, size: int, expected: int) -> None:
    """Warn once a process, not once an evaluation."""
    logger.warning(
        "%s holds %d training images, not %d: the validation part shrinks in proportion",
        folder,
        size,
        expected,
    )


_known_statistics: dict[tuple[Path, bytes], ChannelStatistics] = {}


def _statistics(folder: Path, subset: Subset) -> ChannelStatistics:
    """Compute a subset's statistics once a process, as every evaluation of a search needs them."""
    key = (folder, hashlib.sha256(subset.indices.tobytes()).digest())
    if key not in _known_statistics:
        _known_statistics[key] = channel_statistics(subset.images, subset.indices)
    return _known_statistics[key]


def _require(holds: bool, name: str, value: object, allowed: str) -> None:
    if not holds:
        raise UsageError(f"{name} must be {allowed}, got {value!r}")


class Digits(ImageData):
    """scikit-learn's 8×8 digits: 1,077 / 360 / 360 images, every class in proportion."""

    facts = DataSetFacts(
        "digits", (1, 8, 8), 1_437, 360, sources.read_digits, max_value=16, stratified=True
    )


class MNIST(ImageData):
    """MNIST: 55,000 / 5,000 / 10,000 images, scaled to [0, 1] (the paper states no more)."""

    facts = DataSetFacts("mnist", (1, 28, 28), 60_000, 5_000, sources.read_mnist)


class FashionMNIST(ImageData):
    """Fashion-MNIST, split and scaled as MNIST: 55,000 / 5,000 / 10,000 images."""

    facts = DataSetFacts("fashion_mnist", (1, 28, 28), 60_000, 5_000, sources.read_fashion_mnist)


class CIFAR10(ImageData):
    """CIFAR-10: 45,000 / 5,000 / 10,000 images, standardized."""

    facts = DataSetFacts(
        "cifar10", (3, 32, 32), 50_000, 5_000, sources.read_cifar10, standardized=True
    )


class SVHN(ImageData):
    """SVHN's cropped digits without the extra set: 47,225 / 26,032 / 26,032, standardized."""

    facts = DataSetFacts("svhn", (3, 32, 32), 73_257, 26_032, sources.read_svhn, standardized=True)
