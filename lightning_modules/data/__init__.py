"""Data sets that a recipe may name: in memory, with fixed splits and batched augmentation."""

from lightning_modules.data.cifar10 import CIFAR10
from lightning_modules.data.digits import Digits
from lightning_modules.data.image_data import ImageData
from lightning_modules.data.mnist import MNIST, FashionMNIST
from lightning_modules.data.svhn import SVHN

__all__ = ["CIFAR10", "MNIST", "SVHN", "Digits", "FashionMNIST", "ImageData"]
