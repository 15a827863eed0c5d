"""The base of all image data sets: fixed splits, whole batches, augmentation on the device."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
import torchvision
from filelock import FileLock
from pytorch_lightning import LightningDataModule
from torch import Tensor

from lightning_modules.data.batches import (
    Augmentation,
    EvaluationBatches,
    RawBatch,
    Subset,
    TrainingBatches,
)
from lightning_modules.data.splits import (
    Indices,
    Labels,
    long_tailed_choice,
    split,
    stratified_choice,
    with_next_class_noise,
    with_symmetric_noise,
)
from optuna_taylorglo.errors import MissingDataError, UsageError

logger = logging.getLogger(__name__)

MAX_STEPS_PER_BATCH = 20
MAX_BATCH_BYTES = 4 * 2**20
EVALUATION_BATCH_SIZE = 250
VALIDATION_STREAM = 1
# 255² · 250 is below 2²⁴, so sums over a block of images are exact in float32.
STATISTICS_BLOCK = 250

Part = Literal["train", "test"]
NoiseKind = Literal["symmetric", "next_class"]
NOISE = {"symmetric": with_symmetric_noise, "next_class": with_next_class_noise}
UInt8Array = npt.NDArray[np.uint8]
FloatArray = npt.NDArray[np.float64]


class ImageData(LightningDataModule):
    """What all image data sets share. Use a subclass.

    The training part of the data set has a fixed split into training and validation images; only
    ``setup("test")`` reads the test part. Arrays are read once a process, from
    ``<data_dir>/<name>/{train,test}_{images,labels}.npy`` (uint8) if these files exist, else
    through torchvision, which downloads what is missing. A data set with fewer images than the
    original is split in the same proportion.

    Args:
        data_dir: Folder of all data sets.
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

    Attributes:
        steps_per_epoch: Mini-batches an epoch; None: one pass over the images.
        steps_per_batch: Mini-batches that one training batch holds, for a module that takes it
            apart, as `Classifier` does. Lightning's cost is per batch.

    Raises:
        UsageError: If an argument is out of range.
    """

    dataset: ClassVar[str]  # its folder's name
    input_shape: ClassVar[tuple[int, int, int]]  # of one image, (C, H, W)
    n_train: ClassVar[int]  # images of the original's training part, validation images included
    n_val: ClassVar[int]  # how many of those are for validation
    torchvision_name: ClassVar[str]  # of the class in torchvision.datasets
    raw_files: ClassVar[str]  # what that class expects in the data folder
    num_classes: int = 10
    max_value: ClassVar[int] = 255  # becomes 1 when images are scaled to [0, 1]
    stratified: ClassVar[bool] = False  # whether the validation part has every class's share
    standardized: ClassVar[bool] = False  # unless an argument says otherwise

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
    ) -> None:
        super().__init__()
        for name, value, is_valid, allowed in (
            ("batch_size", batch_size, batch_size >= 1, "at least 1"),
            ("images", images, images is None or images >= 2, "at least 2"),
            ("fraction", fraction, 0 < fraction <= 1, "in (0, 1]"),
            ("imbalance", imbalance, 1 <= imbalance < math.inf, "at least 1, and finite"),
            ("label_noise", label_noise, 0 <= label_noise <= 1, "in [0, 1]"),
            ("noise_kind", noise_kind, noise_kind in NOISE, f"one of {', '.join(NOISE)}"),
        ):
            if not is_valid:
                raise UsageError(f"{name} must be {allowed}, got {value!r}")
        self.data_dir = Path(data_dir)
        self.batch_size = batch_size
        self.seed = seed
        self.images = images
        self.fraction = fraction
        self.imbalance = imbalance
        self.label_noise = label_noise
        self.noise_kind = noise_kind
        self.noisy_validation = noisy_validation
        self.augmentation = Augmentation(flip, padding, cutout)
        self.standardize = self.standardized if standardize is None else standardize
        self.val_size = val_size
        self.steps_per_epoch: int | None = None
        self.steps_per_batch = 1

    def read(self, part: Part) -> tuple[UInt8Array, Labels]:
        """Images (N, H, W) or (N, H, W, C) and labels (N,) of a part, from torchvision."""
        found = self.from_torchvision(part == "train")
        return np.asarray(found.data), np.asarray(found.targets)

    def from_torchvision(self, part: str | bool) -> Any:
        """A data set of torchvision's; one process downloads what is missing, others wait."""
        kind = getattr(torchvision.datasets, self.torchvision_name)
        try:
            return kind(self.data_dir, part, download=False)
        except RuntimeError:  # this is how torchvision reports missing files
            self.data_dir.mkdir(parents=True, exist_ok=True)
            with FileLock(self.data_dir / ".download.lock"):
                return kind(self.data_dir, part, download=True)

    def setup(self, stage: str) -> None:
        """Read and split; only the stage "test" reads the test part."""
        images, labels = self._arrays("train")
        rest, held_out = self._split(labels)
        val_labels = labels[held_out]
        if self.noisy_validation:
            val_labels = self._with_noise(val_labels, VALIDATION_STREAM)
        self.val_data = Subset(images, held_out, val_labels)
        rest = self._thinned(rest, labels)
        if len(rest) < self.batch_size:
            raise UsageError(
                f"batch_size must not exceed the {len(rest)} training images "
                f"(images={self.images}, fraction={self.fraction}, imbalance={self.imbalance}), "
                f"got {self.batch_size}"
            )
        self.train_data = Subset(images, rest, self._with_noise(labels[rest]))
        if stage == "test":
            images, labels = self._arrays("test")
            self.test_data = Subset(images, np.arange(len(labels), dtype=np.int64), labels)
        mean, std = np.zeros(1), np.full(1, float(self.max_value))
        if self.standardize:
            key = (type(self).read, self.dataset, self.data_dir, rest.tobytes())
            mean, std = _once(key, lambda: channel_statistics(self.train_data))
        self._scale = torch.tensor(1 / std, dtype=torch.float32).reshape(-1, 1, 1)
        self._shift = torch.tensor(-mean / std, dtype=torch.float32).reshape(-1, 1, 1)

    def train_dataloader(self) -> TrainingBatches:
        return TrainingBatches(
            self.train_data,
            self.batch_size,
            self.seed,
            self.augmentation,
            self.steps_per_epoch,
            self.steps_per_batch,
        )

    def val_dataloader(self) -> EvaluationBatches:
        return EvaluationBatches(self.val_data, EVALUATION_BATCH_SIZE)

    def test_dataloader(self) -> EvaluationBatches:
        return EvaluationBatches(self.test_data, EVALUATION_BATCH_SIZE)

    def on_after_batch_transfer(
        self, batch: RawBatch, dataloader_idx: int
    ) -> tuple[Tensor, Tensor]:
        """Augment and scale on the device: images (N, C, H, W) in float32, labels (N,)."""
        images, labels, draws = batch
        if draws is not None:
            images = self.augmentation.move(images, draws)
        self._scale, self._shift = self._scale.to(images.device), self._shift.to(images.device)
        # A permuted view of N×H×W×C memory is what PyTorch calls channels_last: no copy is made.
        scaled = images.permute(0, 3, 1, 2).to(torch.float32).mul_(self._scale)
        if self.standardize:
            scaled.add_(self._shift)
        if draws is not None:
            scaled = self.augmentation.cut_out_(scaled, draws)
        return scaled, labels

    def fill_batches(self) -> None:
        """Let batches hold as many mini-batches as fit into 4 MB, at most 20."""
        n_bytes = 4 * self.batch_size * math.prod(self.input_shape)
        self.steps_per_batch = max(1, min(MAX_BATCH_BYTES // n_bytes, MAX_STEPS_PER_BATCH))

    def _arrays(self, part: Part) -> tuple[UInt8Array, Labels]:
        """Images (N, H, W, C) and labels (N,) of a part, read once a process."""
        key = (type(self).read, self.dataset, self.data_dir, part)
        images, labels = _once(key, lambda: self._read_arrays(part))
        return images, labels

    def _read_arrays(self, part: Part) -> tuple[UInt8Array, Labels]:
        (channels, height, width), folder = self.input_shape, self.data_dir / self.dataset
        paths = [folder / f"{part}_{what}.npy" for what in ("images", "labels")]
        try:
            if paths[0].is_file():
                # Workers of one machine share the memory of these files.
                images, labels = (np.load(path, mmap_mode="r") for path in paths)
            else:
                images, labels = self.read(part)
        except (EOFError, ValueError) as error:
            raise UsageError(f"{folder}: {part} arrays cannot be read: {error}") from error
        # torchvision reports an unreachable mirror as either of these.
        except (OSError, RuntimeError) as error:
            raise MissingDataError(
                f"{self.dataset} is not in {self.data_dir} and could not be downloaded ({error}). "
                f"Put either the files torchvision would fetch into {self.data_dir}: "
                f"{self.raw_files}; or uint8 arrays into {folder}: train_images.npy, "
                "train_labels.npy, test_images.npy, test_labels.npy (images N×H×W or N×H×W×C, "
                "labels N)."
            ) from error
        stored = (height, width) if channels == 1 else (height, width, channels)
        fits = images.shape[1:] == stored and labels.shape == images.shape[:1]
        if not fits or images.dtype != np.uint8:
            raise UsageError(
                f"{folder}: {part} images are {images.dtype} of shape {images.shape}, with labels "
                f"of shape {labels.shape}; must be uint8 of shape {('N', *stored)} with N labels"
            )
        if part == "train" and len(images) != self.n_train:
            logger.warning("%s holds %d training images, not %d", folder, len(images), self.n_train)
        return images.reshape(-1, height, width, channels), labels

    def _split(self, labels: Labels) -> tuple[Indices, Indices]:
        """Indices of training and of validation images."""
        size = len(labels) if self.images is None else self.images
        if size > len(labels):
            raise UsageError(
                f"images must be at most {len(labels)}, as many as "
                f"{self.data_dir / self.dataset} holds, got {size}"
            )
        val_size = self.val_size
        if val_size is None:
            val_size = round(size * self.n_val / self.n_train)
        if not 0 < val_size < size:
            raise UsageError(
                f"val_size must be in [1, {size - 1}] with {size} images, got {val_size}"
            )
        if self.images is None:
            return split(labels, val_size, self.stratified)
        chosen = stratified_choice(labels, size)
        rest, held_out = split(labels[chosen], val_size, stratified=True)
        return chosen[rest], chosen[held_out]

    def _thinned(self, indices: Indices, labels: Labels) -> Indices:
        if self.fraction < 1:
            size = round(self.fraction * len(indices))
            indices = indices[stratified_choice(labels[indices], size)]
        if self.imbalance > 1:
            kept = long_tailed_choice(labels[indices], self.imbalance, self.num_classes)
            indices = indices[kept]
        return indices

    def _with_noise(self, labels: Labels, *stream: int) -> Labels:
        if self.label_noise == 0:
            return labels
        return NOISE[self.noise_kind](labels, self.label_noise, self.num_classes, *stream)


_known: dict[Any, Any] = {}


def _once(key: Any, make: Callable[[], Any]) -> Any:
    """What a process makes once; every training of a search needs the same."""
    if key not in _known:
        _known[key] = make()
    return _known[key]


def channel_statistics(subset: Subset) -> tuple[FloatArray, FloatArray]:
    """Mean and standard deviation of each channel over all pixels, each of shape (C,)."""
    images, indices, _ = subset
    sums = np.zeros((2, images.shape[-1]))  # of values and of their squares
    for first in range(0, len(indices), STATISTICS_BLOCK):
        block = np.take(images, indices[first : first + STATISTICS_BLOCK], axis=0)
        block = block.astype(np.float32)
        for sum_, values in zip(sums, (block, block * block), strict=True):
            # Summing over the images first keeps the inner loop long and contiguous.
            sum_ += values.sum(axis=0).sum(axis=(0, 1), dtype=np.float64)
    mean, mean_square = sums / (len(indices) * images.shape[1] * images.shape[2])
    # A constant channel would divide by zero.
    return mean, np.sqrt(np.maximum(mean_square - mean**2, 1.0))
