"""Classes for the digits as users write them: with a training step of their own, or with a bug."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_modules.nets.digits_cnn import DigitsCNN


class Steps:
    """The steps of a LightningModule with a `net` and a `criterion`."""

    net: Any
    criterion: Any
    log: Any

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        loss: Tensor = self.criterion(self.net(images), labels)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.log_accuracy("val_accuracy", *batch)

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.log_accuracy("test_accuracy", *batch)

    def log_accuracy(self, name: str, images: Tensor, labels: Tensor) -> None:
        accuracy = (self.net(images).argmax(dim=1) == labels).float().mean()
        self.log(name, accuracy, batch_size=len(labels))


class OwnModule(Steps, pl.LightningModule):
    """A LightningModule that optimizes by itself."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.net = DigitsCNN(num_classes)
        self.criterion = nn.CrossEntropyLoss()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.05)


class LogsLikelihood(OwnModule):
    """A module that logs the negative log-likelihood, and the same number negated."""

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        images, labels = batch
        nll = nn.functional.cross_entropy(self.net(images), labels)
        self.log("val_nll", nll, batch_size=len(labels))
        self.log("val_log_likelihood", -nll, batch_size=len(labels))


class LogsItsLoss(OwnModule):
    """A module that logs what its criterion gives, which is another one for each candidate."""

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        images, labels = batch
        self.log("val_loss", self.criterion(self.net(images), labels), batch_size=len(labels))


class WeighsClasses(OwnModule):
    """A module whose own criterion counts the last class twice."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        self.criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0] * (num_classes - 1) + [2.0]))


class Dropping(DigitsCNN):
    """A net that draws random numbers as it trains."""

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.dropout(super().forward(images), 0.2, self.training)


class DroppingModule(OwnModule):
    """The same as a module."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        self.net = Dropping(num_classes)


class OnPlateau(DroppingModule):
    """A module whose learning rate follows a validation metric, if there is one."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        config = {"scheduler": schedule, "monitor": "val_accuracy", "strict": False}
        return {"optimizer": optimizer, "lr_scheduler": config}


class OwnDigits(pl.LightningDataModule):
    """Loaders that draw from the global generator, as most do."""

    num_classes = 10

    def __init__(self, batch_size: int = 20) -> None:
        super().__init__()
        self.batch_size = batch_size

    def _loader(self, size: int, shuffle: bool = True) -> DataLoader[tuple[Tensor, ...]]:
        generator = torch.Generator().manual_seed(size)
        labels = torch.randint(10, (size,), generator=generator)
        images = torch.randn(size, 1, 8, 8, generator=generator) + labels[:, None, None, None] / 5
        return DataLoader(TensorDataset(images, labels), self.batch_size, shuffle=shuffle)

    def train_dataloader(self) -> Any:
        return self._loader(200)

    def val_dataloader(self) -> Any:
        return self._loader(60)

    def test_dataloader(self) -> Any:
        return self._loader(61, shuffle=False)


class Stopper(pl.Callback):
    """Stops at the second validation that it hears of."""

    heard = 0

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.heard += 1
        trainer.should_stop = self.heard > 1


class Squares(OwnDigits):
    """Images (1, 6, 6) and labels (6, 6) of squares; pixels without a label have 255."""

    num_classes = 3

    def _loader(self, size: int, shuffle: bool = True) -> DataLoader[tuple[Tensor, ...]]:
        generator = torch.Generator().manual_seed(size)
        labels = torch.randint(3, (size, 3, 3), generator=generator).repeat_interleave(2, 1)
        labels = labels.repeat_interleave(2, 2)
        images = labels[:, None] + 0.3 * torch.randn(size, 1, 6, 6, generator=generator)
        labels[:, 0] = 255
        data = TensorDataset(images, labels)
        return DataLoader(data, self.batch_size, shuffle, drop_last=shuffle)

    def val_dataloader(self) -> Any:
        return self._loader(60, shuffle=False)


class PixelNet(nn.Sequential):
    """Logits (N, classes, H, W)."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, num_classes, 1))


class RefusesItsWidth(DigitsCNN):
    """A net whose constructor raises an error that has nothing to do with our recipes."""

    def __init__(self, num_classes: int, width: int = 3) -> None:
        super().__init__(num_classes)
        raise ValueError(f"a width of {width} is a bug of mine")


class CallsItselfWrongly(DigitsCNN):
    """A net whose constructor has a `TypeError` inside, not in the way it is called."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes, unknown=5)  # type: ignore[call-arg]


class FailsInTraining(DigitsCNN):
    """A net that can be built and fails when it is used."""

    def forward(self, images: Tensor) -> Tensor:
        return self.no_such_table["a bug of mine"]  # type: ignore[index, return-value]

    no_such_table: dict[str, Tensor] = {}  # noqa: RUF012 (as users write it)
