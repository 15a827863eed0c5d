"""Architectures, one a file; each takes ``num_classes`` and returns logits (B, classes)."""

from lightning_modules.nets.alexnet import AlexNet
from lightning_modules.nets.all_cnn import AllCNN
from lightning_modules.nets.basic_cnn import BasicCNN
from lightning_modules.nets.digits_cnn import DigitsCNN
from lightning_modules.nets.mlp import MLP
from lightning_modules.nets.pre_resnet import PreResNet
from lightning_modules.nets.wide_resnet import WideResNet

__all__ = ["MLP", "AlexNet", "AllCNN", "BasicCNN", "DigitsCNN", "PreResNet", "WideResNet"]
