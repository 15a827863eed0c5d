"""What a Taylor loss costs: forward and backward against cross-entropy.

    python benchmarks/loss.py [--repeats N] [--no-compile]

Third order, hard targets, float32, one thread. The candidates take turns within each repeat, so
that a slow moment of the machine hits all of them; the table has the medians of the processor time
of one call and of its ratio to cross-entropy in the same repeat. ``transcription`` is Eq. 5
written down with vectors and a one-hot target.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from optuna_taylorglo.losses.taylor import TaylorLoss

THETA = (11.9039, -4.0240, 6.9796, 8.5834, -1.6677, 11.6064, 12.6684, -3.4674)
SHAPES = ((128, 10), (1024, 10), (1024, 1000), (8, 21, 64, 64))
SECONDS_A_SAMPLE = 0.004

Loss = Callable[[Tensor, Tensor], Tensor]


def transcription(logits: Tensor, target: Tensor) -> Tensor:
    """Eq. 5 with factorials folded in, as one would write it down."""
    y = torch.softmax(logits, dim=1)
    a = y - THETA[1]
    b = one_hot(target, logits.shape[1]).movedim(-1, 1) - THETA[0]
    terms = THETA[2] * a + THETA[3] * a**2 + THETA[4] * a**3
    terms = terms + THETA[5] * b * a + THETA[6] * b * a**2 + THETA[7] * b**2 * a
    return -terms.mean(dim=1).mean()


LOSSES: dict[str, Loss] = {
    "cross_entropy": cross_entropy,
    "TaylorLoss": TaylorLoss(THETA, folded=True),
    "TaylorLoss, anchored": TaylorLoss(
        (0, 0, 0, 2.63, 7.82, 5.03, 1.0, 0),
        class_reduction="sum",
        base="cross_entropy",
        log_scale=-1.73,
        smoothing=0.063,
    ),
    "transcription": transcription,
}


def seconds_a_call(loss: Loss, logits: Tensor, target: Tensor, calls: int) -> float:
    """Mean seconds of forward and backward over this many calls in a row."""
    start = time.process_time()
    for _ in range(calls):
        logits.grad = None
        loss(logits, target).backward()  # type: ignore[no-untyped-call]
    return (time.process_time() - start) / calls


def measure(shape: tuple[int, ...], *, compiled: bool, repeats: int) -> None:
    """Print a row of the table for each candidate."""
    logits = torch.randn(shape, requires_grad=True)
    target = torch.randint(0, shape[1], shape[:1] + shape[2:])
    torch.compiler.reset()
    losses = dict(LOSSES)
    if compiled:
        losses = {name: torch.compile(loss, dynamic=False) for name, loss in losses.items()}
    calls = {}
    for name, loss in losses.items():
        seconds_a_call(loss, logits, target, 3)
        calls[name] = 1 + int(SECONDS_A_SAMPLE / seconds_a_call(loss, logits, target, 5))
    times: dict[str, list[float]] = {name: [] for name in losses}
    for _ in range(repeats):
        for name, loss in losses.items():
            times[name].append(seconds_a_call(loss, logits, target, calls[name]))
    mode, size = "compiled" if compiled else "eager", " × ".join(map(str, shape))
    for name, seconds in times.items():
        pairs = zip(seconds, times["cross_entropy"], strict=True)
        ratio = statistics.median(own / reference for own, reference in pairs)
        print(
            f"| {mode} | {size} | {name} | {1e6 * statistics.median(seconds):.0f} | {ratio:.2f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=100, help="samples of each candidate")
    parser.add_argument("--no-compile", action="store_true", help="eager mode only")
    arguments = parser.parse_args()
    if arguments.repeats < 2:
        parser.error(f"--repeats must be at least 2, not {arguments.repeats}")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print("| mode | logits | loss | µs | ratio to cross-entropy |")
    print("|---|---|---|---:|---:|")
    for compiled in (False,) if arguments.no_compile else (False, True):
        for shape in SHAPES:
            measure(shape, compiled=compiled, repeats=arguments.repeats)


if __name__ == "__main__":
    main()
