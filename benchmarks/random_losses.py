"""How well two numbers of a loss foretell whether it trains: trainability h and collapse ratio R.

    python benchmarks/random_losses.py [--task digits|mnist|fashion_mnist] [--losses N]

Draws θ from the search's first distribution (σ = 1.2), trains each loss with h > 0 on the task of
`savings.py` for the length of an evaluation, and counts those that get more than half of the
validation images right. Losses with h ≤ 0 cannot begin to learn, and are only counted.
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from savings import TASKS, recipe_of

from optuna_taylorglo.errors import Diverged
from optuna_taylorglo.losses.canonical import collapse_ratio, trainability
from optuna_taylorglo.search.candidates import candidate_loss, form_of
from optuna_taylorglo.training.runtime import RuntimeConfig
from optuna_taylorglo.training.training import Training


def main() -> None:
    """Print the table of one task."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=TASKS, default="digits")
    parser.add_argument("--losses", type=int, default=100, help="losses with h > 0 to train")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    sys.path.insert(0, str(Path(__file__).parent))
    recipe = recipe_of(arguments.task, "paper's search", seed=0)
    machine = RuntimeConfig(arguments.data_dir, "cpu", allowed_packages=("small_cnn",))
    machine.prepare(threads=1)
    torch.set_num_threads(1)
    training = Training(recipe, machine)
    n, form = training.n_classes, form_of(recipe)
    generator = np.random.default_rng(0)
    refused, results = 0, []
    while len(results) < arguments.losses:
        theta = (recipe.search.sigma * generator.standard_normal(8)).tolist()
        if trainability(theta, n, form) <= 0:
            refused += 1
            continue
        loss = candidate_loss(recipe, theta, n)
        try:
            accuracy = training.run(loss, seed=len(results), steps=recipe.budget.evaluation)
        except Diverged:
            accuracy = 1 / n
        results.append((collapse_ratio(theta, n, form), accuracy))
    print(f"{arguments.task}: {refused} losses with h <= 0 were not trained\n")
    print("| losses | number | trained |")
    print("|---|---|---|")
    for title, low, high in (
        ("h > 0", -np.inf, np.inf),
        ("h > 0, R < 1", -np.inf, 1.0),
        ("h > 0, R >= 1", 1.0, np.inf),
    ):
        chosen = [accuracy for ratio, accuracy in results if low <= ratio < high]
        trained = sum(accuracy > 0.5 for accuracy in chosen)
        print(f"| {title} | {len(chosen)} | {trained} ({trained / max(len(chosen), 1):.0%}) |")
    ratios = sorted(ratio for ratio, accuracy in results if accuracy > 0.5)
    print(f"\nLargest R of a loss that trained: {ratios[-1]:.2f}")


if __name__ == "__main__":
    main()
