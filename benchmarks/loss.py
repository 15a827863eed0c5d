"""What a Taylor loss costs: forward and backward against cross-entropy.

    python benchmarks/loss.py [--repeats N] [--no-compile]

Third order, hard targets, float32, one thread. The candidates take turns within each repeat, so
that a slow moment of the machine hits all of them; the table has the median and the quartiles of
the time of one call, and the median of its ratio to cross-entropy in the same repeat.

- Times are of the processor, not of the clock: with one thread the two differ only by what other
  processes take away.
- ``transcription`` is Eq. 5 written down with vectors and a one-hot target.
- ``empty function`` is an `autograd.Function` that computes nothing: what Python code in
  autograd costs before the first operator. Small batches are spent there and on calling operators;
  cross-entropy is two operators with their derivatives in C++.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from optuna_taylorglo.losses.taylor import TaylorLoss

THETA = (11.9039, -4.0240, 6.9796, 8.5834, -1.6677, 11.6064, 12.6684, -3.4674)
BATCHES = (128, 1024)
CLASSES = (10, 100, 1000)
SECONDS_A_SAMPLE = 0.004

Loss = Callable[[Tensor, Tensor], Tensor]


def transcription(logits: Tensor, target: Tensor) -> Tensor:
    """Eq. 5 with factorials folded in, as one would write it down."""
    y = torch.softmax(logits, dim=1)
    a = y - THETA[1]
    b = one_hot(target, logits.shape[1]) - THETA[0]
    terms = THETA[2] * a + THETA[3] * a**2 + THETA[4] * a**3
    terms = terms + THETA[5] * b * a + THETA[6] * b * a**2 + THETA[7] * b**2 * a
    return -terms.mean(dim=1).mean()


class _Empty(torch.autograd.Function):
    @staticmethod
    def forward(logits: Tensor) -> Tensor:
        return logits.new_empty(())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (logits,) = ctx.saved_tensors
        return torch.empty_like(logits)


def empty_function(logits: Tensor, target: Tensor) -> Tensor:
    """No loss at all, by way of `autograd.Function`."""
    loss: Tensor = _Empty.apply(logits)
    return loss


def candidates(compiled: bool) -> dict[str, Loss]:
    """The losses to compare by name, cross-entropy first."""
    losses: dict[str, Loss] = {
        "cross_entropy": cross_entropy,
        "TaylorLoss": TaylorLoss(THETA, folded=True),
        "transcription": transcription,
    }
    if compiled:
        return {name: torch.compile(loss, dynamic=False) for name, loss in losses.items()}
    return losses | {"empty function": empty_function}


def seconds_a_call(loss: Loss, logits: Tensor, target: Tensor, calls: int) -> float:
    """Mean seconds of forward and backward over this many calls in a row."""
    start = time.process_time()
    for _ in range(calls):
        logits.grad = None
        loss(logits, target).backward()  # type: ignore[no-untyped-call]
    return (time.process_time() - start) / calls


def measure(batch: int, classes: int, *, compiled: bool, repeats: int) -> None:
    """Print a row of the table for each candidate."""
    logits = torch.randn(batch, classes, requires_grad=True)
    target = torch.randint(0, classes, (batch,))
    torch.compiler.reset()
    losses = candidates(compiled)
    calls = {}
    for name, loss in losses.items():
        seconds_a_call(loss, logits, target, 3)
        calls[name] = 1 + int(SECONDS_A_SAMPLE / seconds_a_call(loss, logits, target, 5))
    times: dict[str, list[float]] = {name: [] for name in losses}
    for _ in range(repeats):
        for name, loss in losses.items():
            times[name].append(seconds_a_call(loss, logits, target, calls[name]))
    mode = "compiled" if compiled else "eager"
    for name, seconds in times.items():
        low, median, high = (1e6 * q for q in statistics.quantiles(seconds, n=4))
        ratio = statistics.median(
            own / reference for own, reference in zip(seconds, times["cross_entropy"], strict=True)
        )
        print(
            f"| {mode} | {batch} × {classes} | {name} | {median:.0f} | {low:.0f}–{high:.0f} "
            f"| {ratio:.2f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=100, help="samples of each candidate")
    parser.add_argument("--no-compile", action="store_true", help="eager mode only")
    arguments = parser.parse_args()
    if arguments.repeats < 2:
        parser.error(f"--repeats must be at least 2, not {arguments.repeats}")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print("| mode | batch × classes | loss | µs | quartiles | ratio to cross-entropy |")
    print("|---|---|---|---:|---:|---:|")
    for compiled in (False,) if arguments.no_compile else (False, True):
        for batch in BATCHES:
            for classes in CLASSES:
                measure(batch, classes, compiled=compiled, repeats=arguments.repeats)


if __name__ == "__main__":
    main()
