"""Data sets that a recipe may name: in memory, with fixed splits and batched augmentation."""

from lightning_modules.data.data_sets import CIFAR10, MNIST, SVHN, Digits, FashionMNIST
from lightning_modules.data.image_data import ImageData

__all__ = ["CIFAR10", "MNIST", "SVHN", "Digits", "FashionMNIST", "ImageData"]
