"""Where the arrays of the cache come from: torchvision's downloads and scikit-learn's digits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lightning_modules.data.arrays import FILES, UInt8Array
from lightning_modules.data.splits import split
from optuna_taylorglo.errors import MissingDataError

Arrays = Mapping[str, UInt8Array]
IDX_FILES = "{}/raw/ with the four decompressed *-ubyte files"


def read_digits(_: Path) -> Arrays:
    """Read scikit-learn's 1,797 digits; a fixed, stratified fifth (360) becomes the test part."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8).astype(np.uint8)
    labels = labels.astype(np.uint8)
    train, test = split(labels, 360, stratified=True)
    return _named(images[train], labels[train], images[test], labels[test])


def read_mnist(data_dir: Path) -> Arrays:
    """Read MNIST through torchvision."""
    from torchvision.datasets import MNIST

    return _fetch("mnist", data_dir, IDX_FILES.format("MNIST"), _idx_reader(MNIST, data_dir))


def read_fashion_mnist(data_dir: Path) -> Arrays:
    """Read Fashion-MNIST through torchvision."""
    from torchvision.datasets import FashionMNIST

    return _fetch(
        "fashion_mnist",
        data_dir,
        IDX_FILES.format("FashionMNIST"),
        _idx_reader(FashionMNIST, data_dir),
    )


def read_cifar10(data_dir: Path) -> Arrays:
    """Read CIFAR-10 through torchvision."""
    from torchvision.datasets import CIFAR10

    def load(train: bool) -> tuple[Any, Any]:
        data = CIFAR10(data_dir, train, download=True)
        return data.data, data.targets

    return _fetch("cifar10", data_dir, "cifar-10-python.tar.gz", load)


def read_svhn(data_dir: Path) -> Arrays:
    """Read SVHN's cropped digits, without the extra set, through torchvision."""
    from torchvision.datasets import SVHN

    def load(train: bool) -> tuple[Any, Any]:
        data = SVHN(data_dir, "train" if train else "test", download=True)
        return data.data.transpose(0, 2, 3, 1), data.labels

    return _fetch("svhn", data_dir, "train_32x32.mat and test_32x32.mat", load)


def _idx_reader(dataset: Any, data_dir: Path) -> Callable[[bool], tuple[Any, Any]]:
    def load(train: bool) -> tuple[Any, Any]:
        data = dataset(data_dir, train, download=True)
        return data.data.numpy(), data.targets.numpy()

    return load


def _fetch(
    name: str, data_dir: Path, raw_files: str, load: Callable[[bool], tuple[Any, Any]]
) -> Arrays:
    try:
        train, test = load(True), load(False)
    # torchvision reports an unreachable mirror as either of these.
    except (OSError, RuntimeError) as error:
        arrays = ", ".join(f"{file}.npy" for file in FILES)
        raise MissingDataError(
            f"{name} is not in {data_dir} and could not be downloaded ({error}). Put either the "
            f"files torchvision would fetch into {data_dir}: {raw_files}; or uint8 arrays into "
            f"{data_dir / name}: {arrays} (images N×H×W or N×H×W×C, labels N)."
        ) from error
    return _named(*train, *test)


def _named(*arrays: Any) -> Arrays:
    return {
        name: np.asarray(array, dtype=np.uint8) for name, array in zip(FILES, arrays, strict=True)
    }
