"""How much of a Taylor loss's advantage on MNIST is its scale? Real MNIST, several learning rates.

    python benchmarks/mnist_learning_rates.py --data-dir data --results mnist.jsonl

Trains the Basic CNN of ``studies/mnist_basic_cnn.yaml`` with cross-entropy and with the paper's
published loss: once per learning rate of a sweep, then with three seeds at the recipe's learning
rate and at the best of the sweep. Metrics are of validation; the test set is not opened. Results
are saved line by line, so an interrupted run resumes.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import torch
from torch import nn

from optuna_taylorglo.errors import Diverged
from optuna_taylorglo.losses.taylor import TaylorLoss
from optuna_taylorglo.recipes.load import load_recipe
from optuna_taylorglo.training.runtime import RuntimeConfig
from optuna_taylorglo.training.training import Training

RECIPE = Path(__file__).parent.parent / "studies" / "mnist_basic_cnn.yaml"
PUBLISHED = (11.9039, -4.0240, 6.9796, 8.5834, -1.6677, 11.6064, 12.6684, -3.4674)
LOSSES: dict[str, nn.Module] = {
    "cross-entropy": nn.CrossEntropyLoss(),
    "published θ": TaylorLoss(PUBLISHED, folded=True, class_reduction="sum"),
}
SEEDS, STEPS = (0, 1, 2), 2000
SWEEP_SEED, SWEEP_STEPS = 1000, 1000
# The published loss's first gradient is 19.5 times cross-entropy's, so both sweeps try the same
# three lengths of the first step.
SWEEP = {"cross-entropy": (0.1, 0.2, 0.4), "published θ": (0.005, 0.01, 0.02)}
GUESSING = 0.1


class Trainings:
    """Validation accuracies by loss, learning rate, seed and steps, saved in a file."""

    def __init__(self, file: Path, data_dir: Path) -> None:
        self._file = file
        self._runtime = RuntimeConfig(data_dir, device="cpu")
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        self._known = {tuple(setting): value for setting, value in map(json.loads, lines)}

    def accuracy(self, loss: str, rate: float, seed: int, steps: int) -> float:
        """Train, unless the result is known; a diverged training counts as guessing."""
        setting = (loss, rate, seed, steps)
        if setting not in self._known:
            recipe = load_recipe(RECIPE)
            recipe = recipe.changed(optimizer=recipe.optimizer.changed(lr=rate))
            try:
                value = Training(recipe, self._runtime).run(LOSSES[loss], seed=seed, steps=steps)
            except Diverged:
                value = GUESSING
            self._known[setting] = value
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps([setting, value], ensure_ascii=False) + "\n")
        return self._known[setting]


def main() -> None:
    """Train, and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path("mnist_learning_rates.jsonl"))
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    trainings = Trainings(arguments.results, arguments.data_dir)
    best = {}
    print(f"| loss | optimizer | validation accuracy after {SWEEP_STEPS:,} steps |\n|---|---|---|")
    for loss, rates in SWEEP.items():
        found = {rate: trainings.accuracy(loss, rate, SWEEP_SEED, SWEEP_STEPS) for rate in rates}
        best[loss] = max(found, key=found.__getitem__)
        for rate, value in found.items():
            print(f"| {loss} | SGD {rate} | {value:.4f} |", flush=True)
    print(f"\n| loss | learning rate | seeds | validation accuracy after {STEPS:,} steps |")
    print("|---|---|---|---|")
    for loss in SWEEP:
        for rate in sorted({0.01, best[loss]}):
            values = [trainings.accuracy(loss, rate, seed, STEPS) for seed in SEEDS]
            mean, deviation = statistics.fmean(values), statistics.stdev(values)
            row = f"| {loss} | {rate} | {len(values)} | {mean:.4f} ± {deviation:.4f} |"
            print(row, flush=True)


if __name__ == "__main__":
    main()
