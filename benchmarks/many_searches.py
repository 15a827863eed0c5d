"""Searches of a recipe with many seeds, and the verdict of each, on small MLPs.

    python benchmarks/many_searches.py digits_mlp_wrong_labels --seeds 0 1 2 --output DIR

As `taylorglo run RECIPE --seed N` and `taylorglo evaluate`, with batched trainings
(`batched_mlp.py`). Writes the verdict, RECIPE_seed_N.json, .md and .csv, and the loss,
RECIPE_seed_N.loss.json. An interrupted run resumes.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path

import optuna
import torch
from batched_mlp import BatchedMLP

from optuna_taylorglo.evolution.history import attach_recipe
from optuna_taylorglo.recipes.load import find_recipe, load_recipe
from optuna_taylorglo.verdict.baselines import DEFAULT_BASELINES
from optuna_taylorglo.verdict.compare import evaluate
from optuna_taylorglo.verdict.output import write_verdict
from optuna_taylorglo.verdict.selection import selected_loss


def main() -> None:
    """Search and judge, seed by seed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", type=Path, help="recipe on an MLP, a file or a bundled name")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--trainings", type=int, default=10, help="test trainings per loss")
    parser.add_argument("--against", default=",".join(DEFAULT_BASELINES))
    parser.add_argument("--output", type=Path, required=True, help="folder")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    arguments.output.mkdir(parents=True, exist_ok=True)
    plain = load_recipe(find_recipe(arguments.recipe))
    against = arguments.against.split(",")
    for seed in arguments.seeds:
        begin = time.monotonic()
        name = f"{arguments.recipe.stem}_seed_{seed}"
        recipe = plain.changed(search=plain.search.changed(seed=seed))
        trainings = BatchedMLP(
            recipe, arguments.data_dir, arguments.output / f"{name}.trainings.jsonl"
        )
        study = trainings.search(name)
        recipe = attach_recipe(study)  # with what the known losses stand for
        verdict = evaluate(study, recipe, trainings.do, seeds=arguments.trainings, against=against)
        write_verdict(verdict, arguments.output / name)
        selected_loss(study).loss.save(arguments.output / f"{name}.loss.json")
        figures = ", ".join(f"{s.name} {s.mean:.4f}" for s in verdict.samples)
        print(f"{name}: {figures} ({time.monotonic() - begin:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
