"""The data sets that a recipe may name."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from lightning_modules.data.image_data import ImageData, Part, UInt8Array
from lightning_modules.data.splits import Labels, split


class Digits(ImageData):
    """scikit-learn's 8×8 digits: 1,077 / 360 / 360 images, every class in proportion."""

    dataset = "digits"
    input_shape = (1, 8, 8)
    n_train, n_val = 1_437, 360
    raw_files = "none, they come with scikit-learn"
    max_value = 16
    stratified = True

    def read(self, part: Part) -> tuple[UInt8Array, Labels]:
        """Scikit-learn's file; a fixed, stratified fifth is the test part."""
        package = find_spec("sklearn")
        assert package is not None
        assert package.origin is not None
        # Read without importing scikit-learn, which takes a second in each worker.
        file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
        table = np.loadtxt(file, delimiter=",").astype(np.uint8)
        images, labels = table[:, :64].reshape(-1, 8, 8), table[:, 64]
        train, test = split(labels, 360, stratified=True)
        chosen = train if part == "train" else test
        return images[chosen], labels[chosen]


class MNIST(ImageData):
    """MNIST: 55,000 / 5,000 / 10,000 images, scaled to [0, 1] (the paper states no more)."""

    dataset, torchvision_name = "mnist", "MNIST"
    input_shape = (1, 28, 28)
    n_train, n_val = 60_000, 5_000
    raw_files = "MNIST/raw/ with the four decompressed *-ubyte files"


class FashionMNIST(MNIST):
    """Fashion-MNIST, split and scaled as MNIST: 55,000 / 5,000 / 10,000 images."""

    dataset, torchvision_name = "fashion_mnist", "FashionMNIST"
    raw_files = "FashionMNIST/raw/ with the four decompressed *-ubyte files"


class CIFAR10(ImageData):
    """CIFAR-10: 45,000 / 5,000 / 10,000 images, standardized."""

    dataset, torchvision_name = "cifar10", "CIFAR10"
    input_shape = (3, 32, 32)
    n_train, n_val = 50_000, 5_000
    raw_files = "cifar-10-python.tar.gz"
    standardized = True


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
