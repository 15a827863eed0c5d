"""Networks, data and a callback that notice every validation, for tests that none is noticed."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
import torch
from own_nets import OwnModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_modules.nets.digits_cnn import DigitsCNN


class Dropping(DigitsCNN):
    """A net that draws random numbers as it trains."""

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.dropout(super().forward(images), 0.2, self.training)


class DroppingModule(OwnModule):
    """The same as a module of one's own, with a metric on the test set."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        self.net = Dropping(num_classes)

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        images, labels = batch
        self.log("test_accuracy", (self.net(images).argmax(dim=1) == labels).float().mean())


class OnPlateau(DroppingModule):
    """A module whose learning rate follows a validation metric, if there is one."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        config = {"scheduler": schedule, "monitor": "val_accuracy", "strict": False}
        return {"optimizer": optimizer, "lr_scheduler": config}


class OwnDigits(pl.LightningDataModule):
    """Loaders that draw from the global generator, as most do."""

    num_classes = 10

    def __init__(self, batch_size: int = 20) -> None:
        super().__init__()
        self.batch_size = batch_size

    def _loader(self, size: int, shuffle: bool = False) -> DataLoader[tuple[Tensor, ...]]:
        generator = torch.Generator().manual_seed(size)
        labels = torch.randint(10, (size,), generator=generator)
        images = torch.randn(size, 1, 8, 8, generator=generator) + labels[:, None, None, None] / 5
        return DataLoader(TensorDataset(images, labels), self.batch_size, shuffle=shuffle)

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        return self._loader(200, shuffle=True)

    def val_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        return self._loader(60, shuffle=True)

    def test_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        return self._loader(61)


class Stopper(pl.Callback):
    """Stops at the second validation that it hears of."""

    def __init__(self) -> None:
        self.heard = 0

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.heard += 1
        trainer.should_stop = self.heard > 1
