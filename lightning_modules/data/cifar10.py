"""CIFAR-10."""

from pathlib import Path

import numpy as np
from torchvision import datasets

from lightning_modules.data.image_data import ImageData, Part, UInt8Array, from_torchvision
from lightning_modules.data.splits import Labels


class CIFAR10(ImageData):
    """CIFAR-10: 45,000 / 5,000 / 10,000 images, standardized."""

    dataset = "cifar10"
    input_shape = (3, 32, 32)
    n_train, n_val = 50_000, 5_000
    raw_files = "cifar-10-python.tar.gz"
    standardized = True

    @staticmethod
    def read(data_dir: Path, part: Part) -> tuple[UInt8Array, Labels]:
        """Read through torchvision."""
        found = from_torchvision(datasets.CIFAR10, data_dir, part == "train")
        return found.data, np.asarray(found.targets)
