"""Do the paper's large networks learn on real CIFAR-10? A short training with its figures.

    python benchmarks/cifar10_learning.py studies/cifar10_all_cnn_c.yaml --steps 300 --data-dir data

Trains as the recipe says, with cross-entropy, and prints the mean training loss of each tenth of
the steps, validation accuracy half-way and at the end on some images, and seconds a step.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from optuna_taylorglo.recipes.load import load_recipe
from optuna_taylorglo.training.runtime import RuntimeConfig
from optuna_taylorglo.training.training import Training


class Recorder(nn.Module):
    """Cross-entropy that remembers its training losses."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []
        self.loss = nn.CrossEntropyLoss()

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        loss: Tensor = self.loss(logits, target)
        if loss.requires_grad:
            self.losses.append(loss.item())
        return loss


def main() -> None:
    """Train and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, help="in place of the recipe's")
    parser.add_argument("--lr", type=float, help="in place of the recipe's")
    parser.add_argument("--validation-images", type=int, default=1000)
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    recipe = load_recipe(arguments.recipe)
    data = recipe.data.init_args | {"val_size": arguments.validation_images}
    recipe = recipe.changed(
        data=recipe.data.changed(init_args=data),
        optimizer=recipe.optimizer.changed(lr=arguments.lr or recipe.optimizer.lr),
        batch_size=arguments.batch_size or recipe.batch_size,
    )
    training = Training(recipe, RuntimeConfig(data_dir=arguments.data_dir))
    recorder = Recorder()
    accuracies: list[float] = []
    begin = time.process_time()
    training.run(
        recorder,
        seed=0,
        steps=arguments.steps,
        check_at=[arguments.steps // 2],
        on_validation=lambda step, value: accuracies.append(value),
    )
    seconds = time.process_time() - begin
    group = max(1, arguments.steps // 10)
    means = [
        statistics.fmean(recorder.losses[i : i + group])
        for i in range(0, arguments.steps - group + 1, group)
    ]
    print(
        f"{arguments.recipe.stem}: batch {recipe.batch_size}, learning rate {recipe.optimizer.lr}"
    )
    print("training loss: " + " ".join(f"{mean:.3f}" for mean in means))
    print(
        "validation accuracy, half-way and at the end: " + " ".join(f"{a:.4f}" for a in accuracies)
    )
    print(f"{seconds / arguments.steps:.2f} CPU seconds a step, validation included")


if __name__ == "__main__":
    main()
