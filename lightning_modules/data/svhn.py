"""Street View House Numbers."""

from pathlib import Path

import numpy as np
from torchvision import datasets

from lightning_modules.data.image_data import ImageData, Part, UInt8Array, from_torchvision
from lightning_modules.data.splits import Labels


class SVHN(ImageData):
    """SVHN's cropped digits without the extra set: 47,225 / 26,032 / 26,032, standardized."""

    dataset = "svhn"
    input_shape = (3, 32, 32)
    n_train, n_val = 73_257, 26_032
    raw_files = "train_32x32.mat and test_32x32.mat"
    standardized = True

    @staticmethod
    def read(data_dir: Path, part: Part) -> tuple[UInt8Array, Labels]:
        """Read through torchvision."""
        found = from_torchvision(datasets.SVHN, data_dir, part)
        return np.ascontiguousarray(found.data.transpose(0, 2, 3, 1)), found.labels
