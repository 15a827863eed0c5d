"""Models and data modules with the mistakes that people make, one each, and one pair without."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset


class Points(pl.LightningDataModule):
    """Sixty points of three classes in the plane."""

    num_classes: Any = 3
    inputs = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(60) % 3

    def __init__(self, batch_size: int = 8) -> None:
        super().__init__()
        self.batch_size = batch_size

    def train_dataloader(self) -> Any:
        return DataLoader(TensorDataset(self.inputs, self.labels), self.batch_size)

    val_dataloader = test_dataloader = train_dataloader


def variant(base: type[Any], **changes: Any) -> type[Any]:
    """A class with some attributes of its own."""
    return type(base.__name__, (base,), changes)


OneClass = variant(Points, num_classes=1)
LabelsFromOne = variant(Points, labels=1 + Points.labels)
NegativeLabels = variant(Points, labels=Points.labels - 1)
ShortLabels = variant(Points, labels=Points.labels.to(torch.int32))
FloatLabels = variant(Points, labels=Points.labels.float())
LabelsInColumns = variant(Points, labels=Points.labels[:, None])
NotANumber = variant(
    Points, inputs=torch.where(torch.arange(60)[:, None] == 3, torch.nan, Points.inputs)
)
ClassProbabilities = variant(Points, labels=nn.functional.one_hot(Points.labels).float())
SeveralLabels = variant(Points, labels=(torch.arange(180).reshape(60, 3) % 4 > 1).float())
SeveralIntegers = variant(Points, labels=SeveralLabels.labels.long())
Numbers = variant(Points, labels=Points.inputs[:, 0])
TwoClasses = variant(Points, num_classes=2, labels=Points.labels % 2)
TwoByFloats = variant(TwoClasses, labels=TwoClasses.labels.float())
Sentences = variant(
    Points, inputs=torch.randn(60, 5, 2), labels=torch.arange(300).reshape(60, 5) % 3
)
NoTraining = variant(Points, train_dataloader=pl.LightningDataModule.train_dataloader)
NoValidation = variant(Points, val_dataloader=pl.LightningDataModule.val_dataloader)
NoTest = variant(Points, test_dataloader=pl.LightningDataModule.test_dataloader)


class ValidationInColumns(Points):
    def val_dataloader(self) -> Any:
        return DataLoader(TensorDataset(self.inputs, self.labels[:, None]), self.batch_size)


class Named(Points):
    """Batches are mappings, in which the last entry is the labels."""

    names: tuple[str, ...] = ("x", "labels")

    def train_dataloader(self) -> Any:
        columns = [*[self.inputs] * (len(self.names) - 1), self.labels]
        rows = [dict(zip(self.names, row, strict=True)) for row in zip(*columns, strict=True)]
        return DataLoader(rows, self.batch_size)  # type: ignore[arg-type]

    val_dataloader = test_dataloader = train_dataloader


OneUnnamed = variant(Named, names=("inputs", "labels"))
WrongNames = variant(Named, names=("a", "b", "labels"))
NoLabels = variant(Named, names=("x", "y"))


class Endless(Points):
    def train_dataloader(self) -> Any:
        class Stream(IterableDataset[Any]):
            def __iter__(self) -> Any:
                return iter([])

        return DataLoader(Stream(), self.batch_size)


class DropsAll(Points):
    def train_dataloader(self) -> Any:
        return DataLoader(TensorDataset(self.inputs), batch_size=100, drop_last=True)


class SplitBySeed(Points):
    def __init__(self, seed: int, batch_size: int = 8) -> None:
        super().__init__(batch_size)
        self.order = torch.randperm(60, generator=torch.Generator().manual_seed(seed))

    def val_dataloader(self) -> Any:
        data = TensorDataset(self.inputs[self.order], self.labels[self.order])
        return DataLoader(data, self.batch_size)


class Net(nn.Module):
    """Two inputs, three logits."""

    def __init__(self, inputs: int = 2, outputs: int = 3) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


EndsInSoftmax = variant(Net, forward=lambda self, x: self.linear(x).softmax(dim=1))
Squeezed = variant(Net, forward=lambda self, x: self.linear(x)[:, 0])
Overflows = variant(Net, forward=lambda self, x: self.linear(x) / 0)


class HasABug(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.no_such_layer(x)


class Frozen(Net):
    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)


class Own(pl.LightningModule):
    """An own LightningModule without a mistake."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()
        self.criterion: Any = nn.CrossEntropyLoss()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        inputs, labels = batch
        return self.criterion(self.net(inputs), labels)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        inputs, labels = batch
        self.log("val_accuracy", (self.net(inputs).argmax(1) == labels).float().mean())

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("test_accuracy", 0.5)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class OwnLoss(Own):
    """Its criterion is there, and never used."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        inputs, labels = batch
        return nn.functional.cross_entropy(self.net(inputs), labels)


class Detached(Own):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        inputs, labels = batch
        self.criterion(self.net(inputs).detach(), labels)
        return nn.functional.cross_entropy(self.net(inputs), labels)


class LogsItOnly(Own):
    """Calls the criterion, and trains by another loss."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        inputs, labels = batch
        logits = self.net(inputs)
        self.log("train_loss", self.criterion(logits, labels))
        return nn.functional.cross_entropy(logits, labels)


class OwnCriterion(Own):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.criterion = getattr(nn, name)()


class LogsTestAcc(Own):
    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("test_acc", 0.5)


NoTrainingStep = variant(Own, training_step=pl.LightningModule.training_step)
NoValidationStep = variant(Own, validation_step=pl.LightningModule.validation_step)
NoTestStep = variant(Own, test_step=pl.LightningModule.test_step)
NoOptimizer = variant(Own, configure_optimizers=pl.LightningModule.configure_optimizers)
Manual = variant(Own, automatic_optimization=False)


class TrainsHalf(Own):
    def __init__(self) -> None:
        super().__init__()
        self.forgotten = nn.Linear(2, 2)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.net.parameters(), lr=0.1)


class BreaksInValidation(Own):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        raise KeyError("a bug of mine")
