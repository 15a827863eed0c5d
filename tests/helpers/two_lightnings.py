"""The same module and the same data, written with `lightning` and with `pytorch_lightning`."""

from __future__ import annotations

from typing import Any

import lightning
import pytorch_lightning
import torch
from own_nets import Steps
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def _module_of(package: Any) -> type[Any]:
    class Module(Steps, package.LightningModule):
        def __init__(self, num_classes: int) -> None:
            super().__init__()
            self.net = nn.Sequential(
                nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 10)
            )
            self.criterion = nn.CrossEntropyLoss()

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.02)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    return Module


def _data_of(package: Any) -> type[Any]:
    class Data(package.LightningDataModule):
        num_classes = 10

        def __init__(self, batch_size: int) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.batch_size = batch_size

        def setup(self, stage: str) -> None:
            images, labels = load_digits(return_X_y=True)
            inputs, targets = torch.tensor(images, dtype=torch.float32), torch.tensor(labels)
            self.parts = [TensorDataset(inputs[i::3], targets[i::3]) for i in range(3)]

        def train_dataloader(self) -> Any:
            return DataLoader(self.parts[0], self.batch_size, shuffle=True)

        def val_dataloader(self) -> Any:
            return DataLoader(self.parts[1], 600)

        def test_dataloader(self) -> Any:
            return DataLoader(self.parts[2], 600)

        # A hook that Trainers have to find.
        def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            return batch[0] / 16, batch[1]

    return Data


def _callback_of(package: Any) -> type[Any]:
    class Counter(package.Callback):
        """Counts batches, for all of its kind together."""

        batches = 0

        def on_train_batch_end(self, *arguments: Any) -> None:
            Counter.batches += 1

    return Counter


LightningModule, PytorchLightningModule = map(_module_of, (lightning, pytorch_lightning))
LightningData, PytorchLightningData = map(_data_of, (lightning, pytorch_lightning))
LightningCounter, PytorchLightningCounter = map(_callback_of, (lightning, pytorch_lightning))


class PlainNet(nn.Sequential):
    """A net without any Lightning."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, num_classes))
