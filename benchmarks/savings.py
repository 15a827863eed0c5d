"""What a search saves: training steps until it has found a loss of a given quality.

    python benchmarks/savings.py run --data-dir data --results savings.jsonl [--task digits] …
    python benchmarks/savings.py table --results savings.jsonl

Every row is a whole search with one thing changed from the paper's (or several). Each search gets
the same number of optimizer steps, aborted and stopped trainings included. After each generation
its best candidate is trained again from five fresh seeds, the same for all rows, on the
evaluation's budget: the median of those five validation accuracies is the quality of what the
search would hand over at that moment, without the luck of the evaluation that picked it; how many
of them stay below one half is told too. These trainings are the measurement, not the search, and
their steps are not counted. A search that is interrupted begins again; finished ones are kept.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import statistics
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import torch
from optuna.trial import TrialState
from torch.optim.optimizer import register_optimizer_step_post_hook

from optuna_taylorglo.errors import Diverged
from optuna_taylorglo.recipes.load import load_recipe
from optuna_taylorglo.recipes.schema import Recipe, recipe_from_dict
from optuna_taylorglo.search.candidates import candidate_loss, make_pruner, make_sampler
from optuna_taylorglo.search.objective import Objective
from optuna_taylorglo.search.scheduler import GenerationScheduler
from optuna_taylorglo.training.runtime import RuntimeConfig
from optuna_taylorglo.training.training import Training

STUDIES = Path(__file__).resolve().parents[1] / "studies"
JUDGING_SEEDS = range(1000, 1005)
NOT_STARTED = 0.5

Changes = dict[str, Any]

PAPER: Changes = {
    "early_abort.attempts": 3,
    "early_stop": None,
    "search.space": "theta",
    "search.filter": "none",
    "search.scale": "free",
    "search.seed_policy": "independent",
    "search.popsize": 16,
    "search.sigma": 1.2,
}
FILTER: Changes = {"search.filter": "trainable"}
CANONICAL: Changes = {"search.space": "canonical"}
STEADY: Changes = {"search.filter": "steady"}
NORMALIZED: Changes = {"search.filter": "steady", "search.scale": "normalized"}
COMMON: Changes = {"search.seed_policy": "common"}
STOP: Changes = {"early_stop": {"unit": "steps", "at": 0, "keep": 0.5}}
ONCE: Changes = {"early_abort.attempts": 1}
ANCHORED: Changes = {"loss.base": "cross_entropy"}

ROWS: dict[str, Changes] = {
    "paper's search, λ = 28": {"search.popsize": 28},
    "paper's search": {},
    "trainable filter": FILTER,
    "steady filter": STEADY,
    "canonical space": CANONICAL,
    "steady filter, scale normalized": NORMALIZED,
    "common seeds": COMMON,
    "early stop": STOP,
    "one attempt only (once)": ONCE,
    "steady, once": STEADY | ONCE,
    "steady, once, stop": STEADY | ONCE | STOP,
    "steady, once, stop, canonical": STEADY | ONCE | STOP | CANONICAL,
    "the same, anchored at cross-entropy": STEADY | ONCE | STOP | CANONICAL | ANCHORED,
    "steady, once, stop, canonical, common": STEADY | ONCE | STOP | CANONICAL | COMMON,
    "the last, scale normalized": NORMALIZED | ONCE | STOP | CANONICAL | COMMON,
}

SMALL_CNN = {"model": {"class_path": "small_cnn.SmallCNN", "init_args": {}}}
MNIST_ABORT = {"unit": "steps", "at": 100, "threshold": 0.15, "attempts": 3}

# Recipe, what is changed in it for all rows, optimizer steps a search gets.
TASKS: dict[str, tuple[str, Changes, int]] = {
    "digits": ("digits_cnn.yaml", {}, 8_000),
    "mnist": ("mnist_basic_cnn_200_steps.yaml", SMALL_CNN | {"early_abort": MNIST_ABORT}, 12_800),
    "fashion_mnist": (
        "fashion_mnist_basic_cnn.yaml",
        SMALL_CNN
        | {
            "early_abort": MNIST_ABORT,
            "budget": {"unit": "steps", "evaluation": 200, "full": 2000},
        },
        12_800,
    ),
}


def recipe_of(task: str, row: str, seed: int) -> Recipe:
    """The recipe of a task, with a row's changes."""
    name, common, _ = TASKS[task]
    settings = load_recipe(STUDIES / name).to_dict()
    for key, value in (common | PAPER | ROWS[row] | {"search.seed": seed}).items():
        *sections, last = key.split(".")
        place = settings
        for section in sections:
            place = place[section]
        place[last] = value
    if settings["early_stop"]:
        settings["early_stop"]["at"] = settings["early_abort"]["at"]
    return recipe_from_dict(settings, source=f"{task}, {row}")


def search(task: str, row: str, seed: int, data_dir: Path) -> dict[str, Any]:
    """Search until the steps are used up; returns the quality after each generation."""
    torch.set_num_threads(1)
    sys.path.insert(0, str(Path(__file__).parent))
    warnings.filterwarnings("ignore")
    for name in ("pytorch_lightning", "lightning_modules"):
        logging.getLogger(name).setLevel(logging.ERROR)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    begin = time.monotonic()
    recipe = recipe_of(task, row, seed)
    training = Training(recipe, RuntimeConfig(data_dir, "cpu", allowed_packages=("small_cnn",)))
    sampler = make_sampler(recipe, training.n_classes)
    pruner = make_pruner(recipe, training.in_steps)
    study = optuna.create_study(direction="maximize", sampler=sampler, pruner=pruner)
    scheduler, objective = GenerationScheduler(study), Objective(training, sampler)
    budget = TASKS[task][2]
    taken = 0

    def count(*_: Any) -> None:
        nonlocal taken
        taken += 1

    curve: list[dict[str, Any]] = []
    while taken < budget:
        hook = register_optimizer_step_post_hook(count)
        trial = scheduler.claim()
        assert trial is not None
        try:
            scheduler.finish(trial, objective(trial))
        except optuna.TrialPruned:
            scheduler.finish(trial, state=TrialState.PRUNED)
        hook.remove()
        finished = sampler.read(study).finished
        if len(finished) > len(curve):
            results = [slot.result for slot in finished[-1] if slot.result is not None]
            values = [result.value for result in results if result.value is not None]
            quality: list[float] = []
            if results:
                best = results[values.index(max(values))]
                quality = judge(training, [best.params[name] for name in sampler.names])
            fitness = max(values, default=0.0)
            curve.append({"steps": taken, "quality": quality, "fitness": fitness})
    seconds = time.monotonic() - begin
    return {"task": task, "row": row, "seed": seed, "seconds": seconds, "curve": curve}


def judge(training: Training, parameters: list[float]) -> list[float]:
    """Validation accuracies of a candidate from fresh seeds; chance level where it diverges."""
    recipe = training.recipe
    steps = training.in_steps(recipe.budget.evaluation, recipe.budget.unit)
    values = []
    for seed in JUDGING_SEEDS:
        loss = candidate_loss(recipe, parameters, training.n_classes)
        try:
            values.append(training.run(loss, seed=seed, steps=steps))
        except Diverged:
            values.append(1 / training.n_classes)
    return values


def quality_of(point: dict[str, Any]) -> float:
    """Median validation accuracy of the fresh trainings; the median, as some do not start."""
    return statistics.median(point["quality"] or [0.0])


def steps_to(curve: list[dict[str, Any]], target: float) -> float:
    """Steps after which a search had a candidate of this quality; infinite if it never had."""
    return next((p["steps"] for p in curve if quality_of(p) >= target), float("inf"))


def print_table(results: list[dict[str, Any]], targets: dict[str, list[float]]) -> None:
    """Print steps to each target, median and range over seeds, and the state at the end."""
    for task in TASKS:
        of_task = [r for r in results if r["task"] == task]
        if not of_task:
            continue
        goals = targets[task]
        print(f"\n{task}: {TASKS[task][2]:,} steps a search\n")
        heads = " | ".join(f"steps to {goal:g}" for goal in goals)
        print(f"| search | seeds | {heads} | generations | quality at the end | did not start |")
        print("|---|---|" + "---|" * (len(goals) + 3))
        for row in ROWS:
            curves = [in_budget(r) for r in of_task if r["row"] == row]
            if not curves:
                continue
            cells = [steps_cell([steps_to(curve, goal) for curve in curves]) for goal in goals]
            ends = [quality_of(curve[-1]) for curve in curves]
            spread = statistics.stdev(ends) if len(ends) > 1 else 0.0
            # Trainings of the candidates of the second half of the search.
            fresh = [q for c in curves for p in c[len(c) // 2 :] for q in p["quality"]]
            failed = sum(q < NOT_STARTED for q in fresh) / len(fresh)
            generations = statistics.fmean(len(curve) for curve in curves)
            print(
                f"| {row} | {len(curves)} | {' | '.join(cells)} | {generations:.1f} | "
                f"{statistics.fmean(ends):.4f} ± {spread:.4f} | {failed:.0%} |"
            )


def in_budget(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The generations that a search finished within its steps."""
    return [point for point in result["curve"] if point["steps"] <= TASKS[result["task"]][2]]


def steps_cell(steps: list[float]) -> str:
    """Median and range; a search that did not get there is later than all others."""

    def show(value: float) -> str:
        return "never" if value == float("inf") else f"{value:,.0f}"

    ordered = sorted(steps)
    return f"{show(statistics.median_low(ordered))} ({show(ordered[0])} to {show(ordered[-1])})"


def pending(arguments: argparse.Namespace, results: list[dict[str, Any]]) -> Iterator[Any]:
    """The searches that are still to be made, one seed of every row before the next seed."""
    done = {(r["task"], r["row"], r["seed"]) for r in results}
    for seed in range(arguments.seeds):
        for task in arguments.task or TASKS:
            for row in arguments.row or ROWS:
                if (task, row, seed) not in done:
                    yield task, row, seed, arguments.data_dir


def _search(job: tuple[str, str, int, Path]) -> dict[str, Any]:
    return search(*job)


def main() -> None:
    """Run searches, or print the table of those that were run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("--results", type=Path, required=True, help="file of finished searches")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--task", choices=TASKS, action="append")
    parser.add_argument("--row", choices=ROWS, action="append")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--target", action="append", default=[], metavar="TASK:ACCURACY")
    arguments = parser.parse_args()
    lines = arguments.results.read_text().splitlines() if arguments.results.exists() else []
    results = [json.loads(line) for line in lines]
    if arguments.what == "table":
        targets: dict[str, list[float]] = {task: [] for task in TASKS}
        for item in arguments.target:
            task, goal = item.split(":")
            targets[task].append(float(goal))
        print_table(results, targets)
        return
    with multiprocessing.get_context("spawn").Pool(arguments.jobs, maxtasksperchild=1) as pool:
        for result in pool.imap_unordered(_search, pending(arguments, results)):
            with arguments.results.open("a") as file:
                file.write(json.dumps(result) + "\n")
            last = result["curve"][-1] if result["curve"] else None
            print(result["task"], result["row"], result["seed"], f"{result['seconds']:.0f} s", last)


if __name__ == "__main__":
    main()
