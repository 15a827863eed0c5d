"""What Lightning adds to a training: a bare PyTorch loop against `Classifier` in a Trainer.

    python benchmarks/training.py [--repeats N] [--steps]

Both sides train the same network for the same number of steps and validate once at the end, on
synthetic images for the Basic CNN and on scikit-learn's digits; set-up is part of the time. The
bare loop has its images in memory as float tensors and nothing around it. One thread; the two take
turns, so that a slow moment of the machine hits both. ``--steps`` prints CPU seconds an optimiser
step of every network instead, in bfloat16 too if this processor computes in it.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from pytorch_lightning import Trainer
from torch import Tensor, nn
from torch.nn import functional

from lightning_modules.classifier import Classifier
from lightning_modules.data import MNIST, Digits, ImageData
from lightning_modules.nets import AlexNet, AllCNN, BasicCNN, DigitsCNN, PreResNet, WideResNet
from lightning_modules.optim import OptimiserSettings
from lightning_modules.precision import resolve_precision

OPTIMISER = OptimiserSettings(lr=0.01, momentum=0.9)


def bare(
    make_net: Callable[[], nn.Module], data: ImageData, tensors: dict[str, Tensor], steps: int
) -> float:
    """Train and validate with nothing but PyTorch; return the accuracy."""
    net = make_net().to(memory_format=torch.channels_last)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, fused=True)
    images, labels, size = tensors["images"], tensors["labels"], data.batch_size
    order, position = torch.randperm(len(images)), 0
    for _ in range(steps):
        if position + size > len(images):
            order, position = torch.randperm(len(images)), 0
        batch = order[position : position + size]
        position += size
        loss = functional.cross_entropy(net(images[batch]), labels[batch])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    net.eval()
    correct = 0
    with torch.no_grad():
        for start in range(0, len(tensors["val_images"]), data.eval_batch_size):
            window = slice(start, start + data.eval_batch_size)
            predicted = net(tensors["val_images"][window]).argmax(dim=1)
            correct += int((predicted == tensors["val_labels"][window]).sum())
    return correct / len(tensors["val_images"])


def with_lightning(make_net: Callable[[], nn.Module], data: ImageData, steps: int) -> float:
    """Train and validate with the project's modules; return the accuracy."""
    fresh = type(data)(data.folder.parent, data.batch_size, steps_per_epoch=steps)
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(Classifier(make_net(), optimiser=OPTIMISER, channels_last=True), fresh)
    return float(trainer.callback_metrics["val_accuracy"])


def in_memory(data: ImageData) -> dict[str, Tensor]:
    """Return all images as float tensors in channels_last memory."""
    data.setup("fit")
    tensors = {}
    for prefix, subset in (("", data.train_data), ("val_", data.val_data)):
        raw, labels = subset.take(np.arange(len(subset.indices)))
        tensors[f"{prefix}images"] = raw.permute(0, 3, 1, 2).float() / data.facts.max_value
        tensors[f"{prefix}labels"] = labels
    return tensors


def synthetic_mnist(data_dir: Path, images: int = 6000) -> MNIST:
    """Write random images of MNIST's shape and return their data module."""
    folder = data_dir / "mnist"
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for part in ("train", "test"):
        pixels = generator.integers(0, 256, (images, 28, 28), dtype=np.uint8)
        np.save(folder / f"{part}_images.npy", pixels)
        labels = generator.integers(0, 10, images, dtype=np.uint8)
        np.save(folder / f"{part}_labels.npy", labels)
    return MNIST(data_dir, batch_size=100)


def compare(
    title: str, make_net: Callable[[], nn.Module], data: ImageData, steps: int, n: int
) -> None:
    """Print one row of the table of ratios."""
    tensors = in_memory(data)
    wall: dict[str, list[float]] = {"bare": [], "ours": []}
    cpu: dict[str, list[float]] = {"bare": [], "ours": []}
    for repeat in range(n + 1):
        for name in wall:
            torch.manual_seed(repeat)
            start, cpu_start = time.perf_counter(), time.process_time()
            if name == "bare":
                bare(make_net, data, tensors, steps)
            else:
                with_lightning(make_net, data, steps)
            if repeat > 0:  # the first round warms up
                wall[name].append(time.perf_counter() - start)
                cpu[name].append(time.process_time() - cpu_start)
    bare_wall, our_wall = (statistics.median(wall[name]) for name in ("bare", "ours"))
    print(
        f"| {title} | {bare_wall:.3f} | {our_wall:.3f} | {ratio(wall)} | {ratio(cpu)} |", flush=True
    )


def ratio(times: dict[str, list[float]]) -> str:
    """Return median and range of the ratio of the two sides' times, round by round."""
    ratios = [b / o for b, o in zip(times["bare"], times["ours"], strict=True)]
    return f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"


def seconds_a_step(
    net: nn.Module, shape: tuple[int, ...], n: int, bfloat16: bool, last: bool
) -> float:
    """Return the median CPU time of an optimiser step on one fixed batch."""
    memory_format = torch.channels_last if last else torch.contiguous_format
    net = net.to(memory_format=memory_format)
    images = torch.randn(shape).contiguous(memory_format=memory_format)
    labels = torch.randint(10, shape[:1])
    optimiser = torch.optim.SGD(net.parameters(), lr=1e-4, momentum=0.9, fused=True)
    times = []
    for _ in range(n + 1):
        start = time.process_time()
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            logits = net(images)
        optimiser.zero_grad()
        functional.cross_entropy(logits.float(), labels).backward()
        optimiser.step()
        times.append(time.process_time() - start)
    return statistics.median(times[1:])


def print_step_times(repeats: int) -> None:
    """Print CPU seconds a step of every network."""
    variants = {"float32": (False, False), "float32, channels_last": (False, True)}
    if resolve_precision("auto", "cpu").trainer == "bf16-mixed":
        variants["bfloat16, channels_last"] = (True, True)
    print(f"| net | batch | {' | '.join(variants)} |")
    print("|---|---|" + "---|" * len(variants))
    small, mnist, cifar = (64, 1, 8, 8), (100, 1, 28, 28), (128, 3, 32, 32)
    nets: list[tuple[str, Callable[[], nn.Module], tuple[int, ...]]] = [
        ("DigitsCNN", DigitsCNN, small),
        ("BasicCNN", BasicCNN, mnist),
        ("AlexNet", AlexNet, cifar),
        ("PreResNet-20", PreResNet, cifar),
        ("AllCNN-C", AllCNN, cifar),
        ("WRN 28-5", lambda: WideResNet(depth=28, width=5), cifar),
        ("WRN 16-8", WideResNet, cifar),
    ]
    for name, make, shape in nets:
        cells = [seconds_a_step(make(), shape, repeats, *variant) for variant in variants.values()]
        print(
            f"| {name} | {shape[0]} | " + " | ".join(f"{c:.4f}" for c in cells) + " |", flush=True
        )


def main() -> None:
    """Run the benchmark that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--steps", action="store_true", help="seconds a step of every network")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    if arguments.steps:
        print_step_times(arguments.repeats)
        return
    print("| task | bare loop, s | Classifier and Trainer, s | ratio | ratio of CPU time |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        data_dir = Path(folder)
        digits = Digits(data_dir, batch_size=64)
        compare("digits, 400 steps of 64", DigitsCNN, digits, 400, arguments.repeats)
        mnist = synthetic_mnist(data_dir)
        compare("Basic CNN, 60 steps of 100", BasicCNN, mnist, 60, arguments.repeats)


if __name__ == "__main__":
    main()
