"""MNIST and Fashion-MNIST, which have the same form."""

from pathlib import Path

from torchvision import datasets

from lightning_modules.data.image_data import ImageData, Part, UInt8Array, from_torchvision
from lightning_modules.data.splits import Labels


class MNIST(ImageData):
    """MNIST: 55,000 / 5,000 / 10,000 images, scaled to [0, 1] (the paper states no more)."""

    dataset = "mnist"
    input_shape = (1, 28, 28)
    n_train, n_val = 60_000, 5_000
    raw_files = "MNIST/raw/ with the four decompressed *-ubyte files"

    @staticmethod
    def read(data_dir: Path, part: Part) -> tuple[UInt8Array, Labels]:
        """Read through torchvision."""
        found = from_torchvision(datasets.MNIST, data_dir, part == "train")
        return found.data.numpy(), found.targets.numpy()


class FashionMNIST(MNIST):
    """Fashion-MNIST, split and scaled as MNIST: 55,000 / 5,000 / 10,000 images."""

    dataset = "fashion_mnist"
    raw_files = "FashionMNIST/raw/ with the four decompressed *-ubyte files"

    @staticmethod
    def read(data_dir: Path, part: Part) -> tuple[UInt8Array, Labels]:
        """Read through torchvision."""
        found = from_torchvision(datasets.FashionMNIST, data_dir, part == "train")
        return found.data.numpy(), found.targets.numpy()
