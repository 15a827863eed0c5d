"""How much of a Taylor loss's advantage on MNIST is its scale: real MNIST, several learning rates.

    python benchmarks/mnist_learning_rates.py run --data-dir data --results mnist.jsonl
    python benchmarks/mnist_learning_rates.py table --results mnist.jsonl

Trains the paper's Basic CNN as ``studies/mnist_basic_cnn.yaml`` says, with cross-entropy and with
the paper's published loss. Each gets the recipe's learning rate, and a sweep of equally many
learning rates whose best, by validation accuracy under a seed of its own, is then trained with the
same seeds as the recipe's. The test set is never opened. Results are kept line by line, and a run
that was interrupted goes on where it was.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from optuna_taylorglo.errors import Diverged
from optuna_taylorglo.losses.taylor import TaylorLoss
from optuna_taylorglo.recipes.load import load_recipe
from optuna_taylorglo.training.runtime import RuntimeConfig
from optuna_taylorglo.training.training import Training

RECIPE = Path(__file__).parent.parent / "studies" / "mnist_basic_cnn.yaml"
PUBLISHED = (11.9039, -4.0240, 6.9796, 8.5834, -1.6677, 11.6064, 12.6684, -3.4674)
SEEDS = (0, 1, 2)
SWEEP_SEED = 1000
STEPS = 2000
SWEEP_STEPS = 1000
# The published loss's first gradient is 19.5 times cross-entropy's, so both sweeps try the same
# three lengths of the first step.
SWEEP = {"cross-entropy": (0.1, 0.2, 0.4), "published θ": (0.005, 0.01, 0.02)}
GUESSING = 0.1


@dataclasses.dataclass(frozen=True)
class Setting:
    """One training.

    Attributes:
        loss: A key of `SWEEP`.
        lr: Learning rate.
        momentum: Momentum of SGD.
        seed: Decides weights, order of data and dropout.
        steps: Optimizer steps.
    """

    loss: str
    lr: float
    momentum: float
    seed: int
    steps: int


class Results:
    """Validation accuracies by setting, kept in a file of JSON lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[Setting, dict[str, Any]] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                row = json.loads(line)
                setting = Setting(**{f.name: row[f.name] for f in dataclasses.fields(Setting)})
                self.rows[setting] = row

    def add(self, setting: Setting, **values: Any) -> None:
        """Keep a training's results."""
        self.rows[setting] = dataclasses.asdict(setting) | values
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(self.rows[setting], ensure_ascii=False) + "\n")

    def accuracy(self, setting: Setting) -> float:
        """Validation accuracy, or that of guessing for a training that diverged."""
        accuracy: float | None = self.rows[setting]["val_accuracy"]
        return GUESSING if accuracy is None else accuracy


def criterion(loss: str) -> nn.Module:
    """The loss of that name."""
    if loss == "cross-entropy":
        return nn.CrossEntropyLoss()
    return TaylorLoss(PUBLISHED, folded=True, class_reduction="sum")


def train(setting: Setting, results: Results, machine: RuntimeConfig) -> None:
    """Train as a setting says, unless its result is known."""
    if setting in results.rows:
        return
    recipe = load_recipe(RECIPE)
    optimizer = recipe.optimizer.changed(lr=setting.lr, momentum=setting.momentum)
    training = Training(recipe.changed(optimizer=optimizer), machine)
    start = time.perf_counter()
    try:
        accuracy = training.run(criterion(setting.loss), seed=setting.seed, steps=setting.steps)
    except Diverged:
        accuracy = None
    seconds = time.perf_counter() - start
    results.add(
        setting,
        val_accuracy=accuracy,
        precision=machine.resolved_precision,
        seconds_a_step=round(seconds / setting.steps, 4),
    )
    print(f"{setting}: {accuracy}, {seconds:.0f} s", flush=True)


def sweep(loss: str) -> list[Setting]:
    """The settings that the best learning rate of a loss is chosen from."""
    return [Setting(loss, lr, 0.0, SWEEP_SEED, SWEEP_STEPS) for lr in SWEEP[loss]]


def with_momentum(loss: str) -> Setting:
    """The recipe's learning rate with momentum 0.9, which the authors' code has."""
    return Setting(loss, 0.01, 0.9, SWEEP_SEED, SWEEP_STEPS)


def repetitions(loss: str, lr: float) -> list[Setting]:
    """The settings of one line of the table."""
    return [Setting(loss, lr, 0.0, seed, STEPS) for seed in SEEDS]


def best_rate(loss: str, results: Results) -> float:
    """The learning rate of the best training of a sweep."""
    return max(sweep(loss), key=results.accuracy).lr


def run(results: Results, machine: RuntimeConfig) -> None:
    """All trainings, the ones that choices depend on first."""
    for loss in SWEEP:
        for setting in sweep(loss):
            train(setting, results, machine)
    for seed in range(len(SEEDS)):
        for loss in SWEEP:
            for lr in sorted({0.01, best_rate(loss, results)}):
                train(repetitions(loss, lr)[seed], results, machine)
    for loss in SWEEP:
        train(with_momentum(loss), results, machine)


def print_tables(results: Results) -> None:
    """The sweep and the comparison as Markdown."""
    print(f"| loss | optimizer | validation accuracy after {SWEEP_STEPS:,} steps |\n|---|---|---|")
    for loss in SWEEP:
        for setting in [*sweep(loss), with_momentum(loss)]:
            if setting in results.rows:
                momentum = f", momentum {setting.momentum}" if setting.momentum else ""
                known = results.rows[setting]["val_accuracy"]
                cell = "diverged" if known is None else f"{known:.4f}"
                print(f"| {loss} | SGD {setting.lr}{momentum} | {cell} |")
    print(f"\n| loss | learning rate | seeds | validation accuracy after {STEPS:,} steps |")
    print("|---|---|---|---|")
    for loss in SWEEP:
        for lr in sorted({0.01, *SWEEP[loss]}):
            known = [results.accuracy(s) for s in repetitions(loss, lr) if s in results.rows]
            if known:
                spread = f" ± {statistics.stdev(known):.4f}" if len(known) > 1 else ""
                print(f"| {loss} | {lr} | {len(known)} | {statistics.fmean(known):.4f}{spread} |")


def main() -> None:
    """Run the trainings or print their tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=("run", "table"))
    parser.add_argument("--results", type=Path, default=Path("mnist_learning_rates.jsonl"))
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--precision", default="auto")
    arguments = parser.parse_args()
    results = Results(arguments.results)
    if arguments.action == "run":
        torch.set_num_threads(1)
        machine = RuntimeConfig(arguments.data_dir, device="cpu", precision=arguments.precision)
        run(results, machine)
    print_tables(results)


if __name__ == "__main__":
    main()
