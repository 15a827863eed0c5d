"""CIFAR-10."""

from lightning_modules.data.image_data import ImageData


class CIFAR10(ImageData):
    """CIFAR-10: 45,000 / 5,000 / 10,000 images, standardized."""

    dataset, torchvision_name = "cifar10", "CIFAR10"
    input_shape = (3, 32, 32)
    n_train, n_val = 50_000, 5_000
    raw_files = "cifar-10-python.tar.gz"
    standardized = True
