"""Semantic segmentation: discs and squares in noisy images, their outlines not labeled.

As in many real data sets, pixels at an outline belong to no class: they have the label 255, which
the recipe's `loss.ignore_index` names.
"""

from __future__ import annotations

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

SIDE = 24
UNLABELED = 255


def draw(n: int, chance: torch.Generator) -> TensorDataset:
    """Images (n, 1, 24, 24) with labels (n, 24, 24): background 0, disc 1, square 2, or 255."""
    rows, columns = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    labels = torch.zeros(n, SIDE, SIDE, dtype=torch.int64)
    images = torch.zeros(n, SIDE, SIDE)
    for kind in (1, 2):
        y, x = (5 + 14 * torch.rand(2, n, 1, 1, generator=chance)).unbind()
        radius = 3 + 3 * torch.rand(n, 1, 1, generator=chance)
        down, across = (rows - y).abs(), (columns - x).abs()
        distance = (down**2 + across**2).sqrt() if kind == 1 else torch.maximum(down, across)
        labels[distance <= radius] = kind
        labels[(distance - radius).abs() < 0.5] = UNLABELED
        brightness = 0.5 + 0.5 * torch.rand(n, 1, 1, generator=chance)
        images = torch.where(distance <= radius, brightness, images)
    images += 0.2 * torch.randn(n, SIDE, SIDE, generator=chance)
    return TensorDataset(images.unsqueeze(1), labels)


class Shapes(pl.LightningDataModule):
    """One disc and one square an image, the square in front: 200 / 200 / 400 images.

    Args:
        batch_size: Images a training step; the recipe's `batch_size`.
    """

    num_classes = 3  # 255 is none

    def __init__(self, batch_size: int) -> None:
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage: str) -> None:
        """Draw, always the same images."""
        chance = torch.Generator().manual_seed(0)
        self.train_data, self.val_data, self.test_data = (draw(n, chance) for n in (200, 200, 400))

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """Shuffled by PyTorch's global generator, which every training seeds."""
        return DataLoader(self.train_data, self.batch_size, shuffle=True, drop_last=True)

    def val_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """Fitness is measured on these examples."""
        return DataLoader(self.val_data, 100)

    def test_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """The test set, which a search does not use."""
        return DataLoader(self.test_data, 100)


def convolution(into: int, out: int, dilation: int = 1) -> nn.Sequential:
    """A convolution that keeps height and width."""
    return nn.Sequential(
        nn.Conv2d(into, out, 3, padding=dilation, dilation=dilation, bias=False),
        nn.BatchNorm2d(out),
        nn.ReLU(),
    )


class SmallUNet(nn.Module):
    """One level down and up again; maps (B, 1, H, W) to logits (B, classes, H, W).

    Args:
        num_classes: Number of classes; given by the search.
        width: Channels at full size; twice as many below.
    """

    def __init__(self, num_classes: int, width: int = 8) -> None:
        super().__init__()
        self.fine = convolution(1, width)
        self.coarse = nn.Sequential(
            nn.MaxPool2d(2),
            convolution(width, 2 * width),
            convolution(2 * width, 2 * width, dilation=2),
            convolution(2 * width, 2 * width, dilation=2),
            nn.Upsample(scale_factor=2),
        )
        self.head = nn.Sequential(convolution(3 * width, width), nn.Conv2d(width, num_classes, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Logits of every pixel."""
        fine = self.fine(images)
        logits: Tensor = self.head(torch.cat([fine, self.coarse(fine)], dim=1))
        return logits
