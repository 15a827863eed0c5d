"""MNIST and Fashion-MNIST, which have the same form."""

from lightning_modules.data.image_data import ImageData


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
