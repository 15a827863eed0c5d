"""Fine-tuning: a network that knows the digits 0 to 4 learns 5 to 9, from eight noisy images each.

Run as a program, it trains on 0 to 4 and writes the checkpoint that the recipe starts from::

    python fine_tuning.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytorch_lightning as pl
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

CHECKPOINT = Path("data") / "digits_0_to_4.pt"  # in the default --data-dir


def images_of(first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
    """Noisy images (N, 1, 8, 8) of some digits, always the same, and labels from 0."""
    digits = load_digits()
    images = digits.images / 16 + 0.3 * np.random.default_rng(0).standard_normal((1797, 8, 8))
    chosen = (digits.target >= first) & (digits.target <= last)
    return images[chosen, None].astype(np.float32), digits.target[chosen] - first


def as_dataset(images: np.ndarray, labels: np.ndarray) -> TensorDataset:
    """Arrays as a data set."""
    return TensorDataset(torch.from_numpy(images), torch.from_numpy(labels).long())


class FiveToNine(pl.LightningDataModule):
    """Images of 5 to 9, labels 0 to 4: 40 to train on, the others half for validation, half test.

    Args:
        batch_size: Images a training step; the recipe's `batch_size`.
    """

    num_classes = 5

    def __init__(self, batch_size: int) -> None:
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage: str) -> None:
        """Split, always alike."""
        images, labels = images_of(5, 9)
        few, rest, few_labels, rest_labels = train_test_split(
            images, labels, train_size=40, random_state=0, stratify=labels
        )
        val, test, val_labels, test_labels = train_test_split(
            rest, rest_labels, test_size=0.5, random_state=0, stratify=rest_labels
        )
        self.train_data = as_dataset(few, few_labels)
        self.val_data = as_dataset(val, val_labels)
        self.test_data = as_dataset(test, test_labels)

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """Shuffled by PyTorch's global generator, which every training seeds."""
        return DataLoader(self.train_data, self.batch_size, shuffle=True, drop_last=True)

    def val_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """Fitness is measured on these examples."""
        return DataLoader(self.val_data, len(self.val_data))

    def test_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """The test set, which a search does not use."""
        return DataLoader(self.test_data, len(self.test_data))


def convolution(into: int, out: int) -> list[nn.Module]:
    """Layers that keep height and width."""
    return [nn.Conv2d(into, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU()]


class SmallCNN(nn.Module):
    """A body that is kept and a head that every task has its own of.

    Args:
        num_classes: Number of classes; given by the search.
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *convolution(1, 16),
            *convolution(16, 32),
            nn.MaxPool2d(2),
            *convolution(32, 32),
            nn.Flatten(),
        )
        self.head = nn.Linear(512, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of images (B, 1, 8, 8)."""
        logits: Tensor = self.head(self.body(images))
        return logits


def pretrain(path: Path, steps: int = 200) -> None:
    """Learn 0 to 4 by cross-entropy, and write the network's state dict."""
    torch.manual_seed(0)
    images, labels = as_dataset(*images_of(0, 4)).tensors
    net = SmallCNN(num_classes=5)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    for _ in range(steps):
        chosen = torch.randint(len(images), (64,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(images[chosen]), labels[chosen]).backward()
        optimizer.step()
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(net.state_dict(), path)


if __name__ == "__main__":
    pretrain(CHECKPOINT)
    print(f"Wrote {CHECKPOINT}.")
