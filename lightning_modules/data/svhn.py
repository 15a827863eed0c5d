"""Street View House Numbers."""

import numpy as np

from lightning_modules.data.image_data import ImageData, Part, UInt8Array
from lightning_modules.data.splits import Labels


class SVHN(ImageData):
    """SVHN's cropped digits without the extra set: 47,225 / 26,032 / 26,032, standardized."""

    dataset, torchvision_name = "svhn", "SVHN"
    input_shape = (3, 32, 32)
    n_train, n_val = 73_257, 26_032
    raw_files = "train_32x32.mat and test_32x32.mat"
    standardized = True

    def read(self, part: Part) -> tuple[UInt8Array, Labels]:
        """The same as for other data sets; torchvision has other names and channels first here."""
        found = self.from_torchvision(part)
        return np.ascontiguousarray(found.data.transpose(0, 2, 3, 1)), found.labels
