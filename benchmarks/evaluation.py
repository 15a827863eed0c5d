"""What one evaluation of a candidate costs, against the least it could cost.

    python benchmarks/evaluation.py [--task digits] [--rounds N] [--data-dir data]

An evaluation is set-up, data, training, one validation and the report to the storage. Four ways:

- (a) ``bare``: a PyTorch loop with cross-entropy and nothing around it; images lie in memory as
  normalized tensors; precision and memory format are the best for this processor. The limit.
- (b) ``ours``: claimed from a study in SQLite, trained by `Training` with a Taylor
  loss, and finished, as a worker does it.
- (c) ``tutorial``: as the tutorials of Optuna and Lightning have it: Optuna's `optimize` and
  sampler and SQLite, a Trainer with its defaults, a DataLoader over torchvision images with
  transforms, a pruning callback; the loss is Eq. 5 written down with a one-hot target.
- (d) ``bare, contiguous``: as (a), in float32 and contiguous memory.

Every way has a process of its own, of one thread. They take turns in every round,
so that a slow moment of the machine hits all of them; ratios are taken round by round, of CPU time
too, because other processes share the machine. Before the first round every way trains the digits
CNN once, to warm up.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import multiprocessing
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

from lightning_modules.data import CIFAR10, MNIST, Digits, ImageData
from lightning_modules.nets import AllCNN, BasicCNN, DigitsCNN
from optuna_taylorglo.recipes.load import load_recipe
from optuna_taylorglo.recipes.schema import recipe_from_dict
from optuna_taylorglo.search.candidates import make_pruner, make_sampler
from optuna_taylorglo.search.objective import Objective
from optuna_taylorglo.search.scheduler import GenerationScheduler
from optuna_taylorglo.study.heartbeat import heartbeats
from optuna_taylorglo.study.open import create_study
from optuna_taylorglo.training.runtime import RuntimeConfig, resolve_precision
from optuna_taylorglo.training.training import Training

STUDIES = Path(__file__).resolve().parents[1] / "studies"
# The published loss of MNIST, for (c), which draws candidates that do not all train.
THETA = (11.9039, -4.0240, 6.9796, 8.5834, -1.6677, 11.6064, 12.6684, -3.4674)
LEARNING_RATE = 0.001

BARE, OURS, TUTORIAL = "(a) bare loop", "(b) ours", "(c) tutorial"
CONTIGUOUS = "(d) bare loop, float32, contiguous"
WAYS = (BARE, OURS, TUTORIAL, CONTIGUOUS)


@dataclass(frozen=True)
class Task:
    """What is trained for how long."""

    title: str
    recipe: str
    data: Callable[..., ImageData]
    net: Callable[[], nn.Module]
    batch_size: int
    steps: int
    data_settings: dict[str, Any] = field(default_factory=dict)


TASKS = {
    "digits": Task("digits CNN, 400 steps of 64", "digits_cnn.yaml", Digits, DigitsCNN, 64, 400),
    "basic_cnn": Task(
        "Basic CNN, MNIST, 200 steps of 100",
        "mnist_basic_cnn_200_steps.yaml",
        MNIST,
        BasicCNN,
        100,
        200,
    ),
    "all_cnn": Task(
        "AllCNN-C, CIFAR-10, 20 steps of 128, 1,000 validation images",
        "cifar10_all_cnn_c.yaml",
        CIFAR10,
        AllCNN,
        128,
        20,
        {"flip": True, "padding": 4, "val_size": 1000},
    ),
}


class Bare:
    """Ways (a) and (d)."""

    def __init__(
        self, task: Task, data_dir: Path, precision: str, layout: torch.memory_format
    ) -> None:
        self.task = task
        data = task.data(data_dir, task.batch_size, **task.data_settings)
        data.prepare_data()
        data.setup("fit")
        self.augmentation = data.augmentation
        self.autocast = precision == "bf16-mixed"
        self.layout = layout
        raw, self.labels = data.train_data.take(np.arange(len(data.train_data.indices)))
        val_raw, self.val_labels = data.val_data.take(np.arange(len(data.val_data.indices)))
        mean, std = np.zeros(1), np.full(1, float(data.max_value))
        if data.standardize:
            pixels = raw.reshape(-1, raw.shape[-1]).double()
            mean, std = pixels.mean(0).numpy(), pixels.std(0).numpy()
        self.images = (raw.float() - torch.tensor(mean).float()) / torch.tensor(std).float()
        val = (val_raw.float() - torch.tensor(mean).float()) / torch.tensor(std).float()
        self.val_images = val.permute(0, 3, 1, 2).contiguous(memory_format=self.layout)
        self.generator = torch.Generator().manual_seed(0)

    def __call__(self) -> float:
        return self.accuracy(self.train(self.task.steps))

    def train(self, steps: int) -> nn.Module:
        """A fresh network after so many steps."""
        task = self.task
        net = task.net().to(memory_format=self.layout)
        optimizer = torch.optim.SGD(net.parameters(), lr=LEARNING_RATE, momentum=0.9, fused=True)
        order, position = torch.randperm(len(self.images)), 0
        for _ in range(steps):
            if position + task.batch_size > len(self.images):
                order, position = torch.randperm(len(self.images)), 0
            batch = order[position : position + task.batch_size]
            position += task.batch_size
            with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
                logits = net(self._augmented(self.images[batch]))
            optimizer.zero_grad()
            cross_entropy(logits.float(), self.labels[batch]).backward()
            optimizer.step()
        return net

    def accuracy(self, net: nn.Module) -> float:
        """Its share of validation images classified rightly."""
        net.eval()
        correct = 0
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            for first in range(0, len(self.val_images), 250):
                window = slice(first, first + 250)
                predicted = net(self.val_images[window]).argmax(dim=1)
                correct += int((predicted == self.val_labels[window]).sum())
        return correct / len(self.val_images)

    def _augmented(self, images: Tensor) -> Tensor:
        if self.augmentation:
            draws = self.augmentation.draw(*images.shape[:3], self.generator)
            images = self.augmentation.move(images, draws)
        return images.permute(0, 3, 1, 2).contiguous(memory_format=self.layout)


class Ours:
    """Way (b); also tells where its time goes.

    Attributes:
        parts: Seconds of the last evaluation's training, validation and all the rest.
    """

    def __init__(self, task: Task, data_dir: Path, folder: Path) -> None:
        settings = load_recipe(STUDIES / task.recipe).to_dict()
        settings["data"]["init_args"] = task.data_settings
        settings["optimizer"] = {"name": "sgd", "lr": LEARNING_RATE, "momentum": 0.9}
        settings["batch_size"] = task.batch_size
        settings["budget"] = {"unit": "steps", "evaluation": task.steps, "full": task.steps}
        settings |= {"early_abort": None, "early_stop": None, "schedule": {}}
        # Candidates that all train to the end, at one learning rate.
        settings["search"] |= {"space": "theta", "filter": "trainable", "scale": "normalized"}
        recipe = recipe_from_dict(settings, source="benchmark")
        training = Training(recipe, RuntimeConfig(data_dir, "cpu"))
        self.study = create_study("ours", f"sqlite:///{folder}/ours.db")
        self.study.sampler = sampler = make_sampler(recipe, training.n_classes)
        self.study.pruner = make_pruner(recipe, training.in_steps)
        self.scheduler = GenerationScheduler(self.study)
        self.objective = Objective(training, sampler)
        self.steps = task.steps
        self.parts = (0.0, 0.0, 0.0)

    def __call__(self) -> float:
        # The clock, as asking for CPU time is itself a cost at every step.
        begin = time.perf_counter()
        steps: list[float] = []
        hook = register_optimizer_step_post_hook(lambda *_: steps.append(time.perf_counter()))
        trial = self.scheduler.claim()
        assert trial is not None
        with heartbeats(trial):
            value = self.objective(trial)
        validated = time.perf_counter()
        self.scheduler.finish(trial, value)
        end = time.perf_counter()
        hook.remove()
        # The first step's own forward and backward pass are before its hook.
        training = (steps[-1] - steps[0]) * self.steps / (self.steps - 1)
        validation = validated - steps[-1]
        total = end - begin
        self.parts = training, validation, total - training - validation
        return value


class TorchvisionImages(datasets.VisionDataset):
    """Images as torchvision's own data sets hand them out: one by one, by way of PIL."""

    def __init__(self, data: ImageData, part: str, transform: Callable[..., Any]) -> None:
        super().__init__(".", transform=transform)
        subset = data.train_data if part == "train" else data.val_data
        raw, labels = subset.take(np.arange(len(subset.indices)))
        scale = 255 // data.max_value
        self.images = (raw * scale).squeeze(-1).numpy() if raw.shape[-1] == 1 else raw.numpy()
        self.labels = labels.tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image = transforms.functional.to_pil_image(self.images[index])
        return self.transform(image), self.labels[index]


class TutorialModule(pl.LightningModule):
    """A classifier as in Lightning's tutorial, with a loss in θ."""

    def __init__(self, net: nn.Module, theta: list[float]) -> None:
        super().__init__()
        self.net = net
        self.theta = theta

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.net(images)
        return logits

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        images, labels = batch
        theta, y = self.theta, torch.softmax(self(images), dim=1)
        a = y - theta[1]
        b = one_hot(labels, y.shape[1]) - theta[0]
        terms = theta[2] * a + theta[3] * a**2 + theta[4] * a**3
        terms = terms + theta[5] * b * a + theta[6] * b * a**2 + theta[7] * b**2 * a
        loss = -terms.sum(dim=1).mean()
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        images, labels = batch
        logits = self(images)
        self.log("val_loss", cross_entropy(logits, labels))
        self.log("val_acc", (logits.argmax(dim=1) == labels).float().mean(), prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=LEARNING_RATE, momentum=0.9)


class PruningCallback(pl.Callback):
    """Reports each validation to Optuna."""

    def __init__(self, trial: optuna.Trial) -> None:
        self.trial = trial

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.sanity_checking:
            value = float(trainer.callback_metrics["val_acc"])
            self.trial.report(value, step=trainer.current_epoch)
            if self.trial.should_prune():
                raise optuna.TrialPruned


class Tutorial:
    """Way (c)."""

    def __init__(self, task: Task, data_dir: Path, folder: Path) -> None:
        self.task = task
        self.folder = folder
        data = task.data(data_dir, task.batch_size, **task.data_settings)
        data.prepare_data()
        data.setup("fit")
        augmenting: list[Callable[..., Any]] = []
        if padding := data.augmentation.padding:
            augmenting.append(transforms.RandomCrop(data.input_shape[1], padding=padding))
        if data.augmentation.flip:
            augmenting.append(transforms.RandomHorizontalFlip())
        finishing: list[Callable[..., Any]] = [transforms.ToTensor()]
        if data.standardize:
            finishing.append(transforms.Normalize((0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261)))
        both = transforms.Compose([*augmenting, *finishing]), transforms.Compose(finishing)
        self.train = TorchvisionImages(data, "train", both[0])
        self.val = TorchvisionImages(data, "val", both[1])
        sampler = optuna.samplers.CmaEsSampler(seed=0, warn_independent_sampling=False)
        storage = f"sqlite:///{folder}/tutorial.db"
        pruner = optuna.pruners.MedianPruner()
        self.study = optuna.create_study(
            storage=storage, sampler=sampler, pruner=pruner, direction="maximize"
        )

    def __call__(self) -> float:
        self.study.optimize(self.objective, n_trials=1)
        return float(self.study.trials[-1].value or 0.0)

    def objective(self, trial: optuna.Trial) -> float:
        for i in range(8):
            # Not trained with: many of them would not train, and end early.
            trial.suggest_float(f"theta_{i}", -20, 20)
        task = self.task
        trainer = pl.Trainer(
            logger=True,
            enable_checkpointing=False,
            accelerator="cpu",
            devices=1,
            max_steps=task.steps,
            max_epochs=-1,
            val_check_interval=task.steps,
            check_val_every_n_epoch=None,
            default_root_dir=str(self.folder),
            callbacks=[PruningCallback(trial)],
        )
        trainer.fit(
            TutorialModule(task.net(), list(THETA)),
            DataLoader(self.train, batch_size=task.batch_size, shuffle=True, drop_last=True),
            DataLoader(self.val, batch_size=250),
        )
        return float(trainer.callback_metrics["val_acc"])


def build(way: str, task: Task, data_dir: Path, folder: Path) -> Callable[[], float]:
    """The evaluation of one way, in a process that is set up as that way would have it."""
    if way == OURS:
        RuntimeConfig(data_dir, "cpu").prepare(threads=1)
        return Ours(task, data_dir, folder)
    if way == TUTORIAL:
        return Tutorial(task, data_dir, folder)
    if way == CONTIGUOUS:
        return Bare(task, data_dir, "32-true", torch.contiguous_format)
    return Bare(task, data_dir, resolve_precision("auto", "cpu"), torch.channels_last)


def serve(way: str, name: str, data_dir: Path, folder: Path, connection: Connection) -> None:
    """Evaluate whenever told to, and answer with CPU and wall seconds, and parts of the latter."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        (folder / "warm-up").mkdir(exist_ok=True)
        build(way, TASKS["digits"], data_dir, folder / "warm-up")()
        evaluate = build(way, TASKS[name], data_dir, folder)
        connection.send("ready")
        while connection.recv():
            begin, cpu_begin = time.perf_counter(), time.process_time()
            accuracy = evaluate()
            cpu, wall = time.process_time() - cpu_begin, time.perf_counter() - begin
            assert 0 <= accuracy <= 1
            connection.send((cpu, wall, evaluate.parts if isinstance(evaluate, Ours) else None))


def measure(name: str, data_dir: Path, rounds: int) -> None:
    """Print a task's table."""
    context = multiprocessing.get_context("spawn")
    cpu: dict[str, list[float]] = {way: [] for way in WAYS}
    wall: dict[str, list[float]] = {way: [] for way in WAYS}
    parts: list[tuple[float, float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        connections = {}
        for way in WAYS:
            connections[way], theirs = context.Pipe()
            arguments = (way, name, data_dir, Path(folder), theirs)
            context.Process(target=serve, args=arguments, daemon=True).start()
            connections[way].recv()
        for _ in range(rounds):
            for way, connection in connections.items():
                connection.send(True)
                cpu_seconds, wall_seconds, of_which = connection.recv()
                cpu[way].append(cpu_seconds)
                wall[way].append(wall_seconds)
                parts += [of_which] if of_which is not None else []
        for connection in connections.values():
            connection.send(False)
    best = resolve_precision("auto", "cpu")
    print(f"\n{TASKS[name].title}; {rounds} rounds; best precision: {best}, channels_last\n")
    print("| way | CPU s | wall s | evaluations a minute | of (a), by CPU | of (a), by wall |")
    print("|---|---|---|---|---|---|")
    for way in WAYS:
        rate = 60 / statistics.median(wall[way])
        by_cpu, by_wall = (ratio(times[BARE], times[way]) for times in (cpu, wall))
        print(
            f"| {way} | {statistics.median(cpu[way]):.2f} | {statistics.median(wall[way]):.2f} | "
            f"{rate:.1f} | {by_cpu} | {by_wall} |"
        )
    print(f"\n(b) / (c): {ratio(cpu[TUTORIAL], cpu[OURS])} by CPU time")
    training, validation, rest = (statistics.median(part) for part in zip(*parts, strict=True))
    total = training + validation + rest
    print(
        f"(b): training {training:.2f} s ({training / total:.1%}), validation {validation:.2f} s "
        f"({validation / total:.1%}), all else {rest:.3f} s ({rest / total:.1%})",
        flush=True,
    )


def ratio(limit: list[float], other: list[float]) -> str:
    """Median and range of the quotient of two ways' times, round by round."""
    quotients = [a / b for a, b in zip(limit, other, strict=True)]
    return f"{statistics.median(quotients):.3f} ({min(quotients):.3f} to {max(quotients):.3f})"


def main() -> None:
    """Measure the tasks that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=TASKS, action="append")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    arguments = parser.parse_args()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    for name in arguments.task or TASKS:
        measure(name, arguments.data_dir, arguments.rounds)


if __name__ == "__main__":
    main()
