"""CPU seconds of an optimizer step of every network, by precision and memory format.

    python benchmarks/training.py [--repeats N]

One fixed batch of random images, one thread; in bfloat16 too if this processor computes in it. What
a whole evaluation costs, and what of it is not training, is measured by ``evaluation.py``.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from lightning_modules.nets import AlexNet, AllCNN, BasicCNN, DigitsCNN, PreResNet, WideResNet
from optuna_taylorglo.training.runtime import RuntimeConfig


def seconds_a_step(
    net: nn.Module, shape: tuple[int, ...], n: int, bfloat16: bool, last: bool
) -> float:
    """Return the median CPU time of an optimizer step on one fixed batch."""
    memory_format = torch.channels_last if last else torch.contiguous_format
    net = net.to(memory_format=memory_format)
    images = torch.randn(shape).contiguous(memory_format=memory_format)
    labels = torch.randint(10, shape[:1])
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4, momentum=0.9, fused=True)
    times = []
    for _ in range(n + 1):
        start = time.process_time()
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            logits = net(images)
        optimizer.zero_grad()
        functional.cross_entropy(logits.float(), labels).backward()
        optimizer.step()
        times.append(time.process_time() - start)
    return statistics.median(times[1:])


def print_step_times(repeats: int) -> None:
    """Print CPU seconds a step of every network."""
    variants = {"float32": (False, False), "float32, channels_last": (False, True)}
    if RuntimeConfig(device="cpu").resolved_precision == "bf16-mixed":
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
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print_step_times(arguments.repeats)


if __name__ == "__main__":
    main()
