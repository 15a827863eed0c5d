"""Tabular and imbalanced: 12 readings of a machine that is mostly fine (90 %, 7 %, 3 %).

scikit-learn generates the readings. Each state is made of two clusters that overlap with others.
"""

from __future__ import annotations

import pytorch_lightning as pl
import torch
from sklearn.datasets import make_classification
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Machines(pl.LightningDataModule):
    """Readings (B, 12) and states: fine (0), worn (1), about to fail (2); 2,000 / 3,000 / 3,000.

    The parts are drawn at random, always alike. Validation is large, because F1 of the 3 %
    would otherwise hang on a dozen machines.

    Args:
        batch_size: Machines a training step; the recipe's `batch_size`.
    """

    num_classes = 3

    def __init__(self, batch_size: int) -> None:
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage: str) -> None:
        """Generate all readings, always the same ones, and split them."""
        readings, states = make_classification(
            n_samples=8000,
            n_features=12,
            n_informative=6,
            n_redundant=2,
            n_classes=3,
            n_clusters_per_class=2,
            weights=[0.9, 0.07, 0.03],
            class_sep=1.0,
            flip_y=0.01,
            random_state=0,
        )
        whole = TensorDataset(torch.tensor(readings).float(), torch.tensor(states))
        parts = [2000, 3000, 3000]
        split = torch.utils.data.random_split(whole, parts, torch.Generator().manual_seed(0))
        self.train_data, self.val_data, self.test_data = split

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """Shuffled by PyTorch's global generator, which every training seeds."""
        return DataLoader(self.train_data, self.batch_size, shuffle=True, drop_last=True)

    def val_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """Fitness is measured on these examples."""
        return DataLoader(self.val_data, 1000)

    def test_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """The test set, which a search does not use."""
        return DataLoader(self.test_data, 1000)


class MLP(nn.Sequential):
    """Logits of the states.

    Args:
        num_classes: Number of classes; given by the search.
        hidden: Width of the hidden layers.
    """

    def __init__(self, num_classes: int, hidden: int = 64) -> None:
        super().__init__(
            nn.Linear(12, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, num_classes),
        )
