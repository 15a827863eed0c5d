"""A tabular task of one's own: scikit-learn's breast cancer data and a small MLP, in two forms.

`MLP` is a plain net, which the recipe's optimizer trains. `LightningMLP` is a LightningModule that
brings its own training step and optimizer; all it does for the search is to use ``self.criterion``.
"""

from __future__ import annotations

import pytorch_lightning as pl
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class BreastCancer(pl.LightningDataModule):
    """569 tumours with 30 measurements each, benign or malignant: 341 / 114 / 114.

    The split is fixed, so that every candidate is judged on the same patients.

    Args:
        batch_size: Examples a training step; the recipe's `batch_size`.

    Attributes:
        num_classes: Number of classes, which the search has to know.
    """

    num_classes = 2

    def __init__(self, batch_size: int) -> None:
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage: str) -> None:
        """Split and standardize; the statistics are the training part's."""
        values, labels = load_breast_cancer(return_X_y=True)
        rest, test, rest_labels, test_labels = train_test_split(
            values, labels, test_size=114, random_state=0, stratify=labels
        )
        train, val, train_labels, val_labels = train_test_split(
            rest, rest_labels, test_size=114, random_state=0, stratify=rest_labels
        )
        mean, std = train.mean(axis=0), train.std(axis=0)

        def dataset(values, labels) -> TensorDataset:  # type: ignore[no-untyped-def]
            scaled = torch.tensor((values - mean) / std, dtype=torch.float32)
            return TensorDataset(scaled, torch.tensor(labels))

        self.train_data = dataset(train, train_labels)
        self.val_data = dataset(val, val_labels)
        self.test_data = dataset(test, test_labels)

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """Shuffled by PyTorch's global generator, which every training seeds."""
        return DataLoader(self.train_data, self.batch_size, shuffle=True, drop_last=True)

    def val_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """Fitness is measured on these examples."""
        return DataLoader(self.val_data, len(self.val_data))

    def test_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """The test set, which a search does not use."""
        return DataLoader(self.test_data, len(self.test_data))


class MLP(nn.Sequential):
    """Two hidden layers; returns logits, not probabilities.

    Args:
        num_classes: Number of classes; given by the search.
        features: Measurements an example.
        hidden: Width of the hidden layers.
    """

    def __init__(self, num_classes: int, features: int = 30, hidden: int = 32) -> None:
        super().__init__(
            nn.Linear(features, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, num_classes),
        )


class LightningMLP(pl.LightningModule):
    """The same net with a training step and an optimizer of its own.

    Args:
        num_classes: Number of classes; given by the search.
        hidden: Width of the hidden layers.
        lr: Adam's learning rate.
    """

    def __init__(self, num_classes: int, hidden: int = 32, lr: float = 0.003) -> None:
        super().__init__()
        self.net = MLP(num_classes, hidden=hidden)
        self.lr = lr
        self.criterion: nn.Module = nn.CrossEntropyLoss()  # the search puts each candidate here

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """One step with whatever loss is in place."""
        inputs, labels = batch
        loss: Tensor = self.criterion(self.net(inputs), labels)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Log the metric that the recipe's `fitness.metric` names."""
        self._log_accuracy("val_accuracy", batch)

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Log the same metric for the verdict after the search."""
        self._log_accuracy("test_accuracy", batch)

    def _log_accuracy(self, name: str, batch: tuple[Tensor, Tensor]) -> None:
        inputs, labels = batch
        hits = self.net(inputs).argmax(dim=1) == labels
        self.log(name, hits.float().mean(), batch_size=len(labels))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam; the recipe's `optimizer` and `schedule` are not used."""
        return torch.optim.Adam(self.net.parameters(), lr=self.lr)
