"""Find a loss for the library on several tasks at once, and measure it on others.

    python benchmarks/library.py find --output DIR --name wrong-labels
    python benchmarks/library.py judge --output DIR --name wrong-labels
    python benchmarks/library.py table

`find` searches for one shape for all tasks of `FOUND_ON`: a candidate's fitness is the sum of its
ranks on the tasks, each with the best of a few scales. The best shapes, and the winners of earlier
searches on one of the tasks, are then trained with more seeds and scales. `judge` tunes only the
scale of a loss of the library on tasks of `HELD_OUT`, by `TRAININGS` trainings, and each standard
loss together with its learning rate by as many; then each is trained for the test set. Both resume,
and write the loss into the package. `table` prints the table of docs/losses.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import cmaes
import numpy as np
import torch
from batched_mlp import BatchedMLP

from optuna_taylorglo import TaylorLoss, load_loss
from optuna_taylorglo.losses.canonical import Canonical, from_canonical, to_canonical
from optuna_taylorglo.losses.expansion import THIRD_ORDER
from optuna_taylorglo.losses.files import LIBRARY, Library, Origin, Outcome, library
from optuna_taylorglo.recipes.load import find_recipe, load_recipe
from optuna_taylorglo.recipes.schema import TrainingRecipe
from optuna_taylorglo.seeds import Stage
from optuna_taylorglo.training.runtime import RuntimeConfig
from optuna_taylorglo.verdict.baselines import FAMILIES, LearningRates, standard_loss
from optuna_taylorglo.verdict.runner import TaskTrainer
from optuna_taylorglo.verdict.statistics import Role, Sample, contrasts
from optuna_taylorglo.verdict.tasks import (
    ComparedLoss,
    Task,
    compared_evolved_loss,
    cross_entropy,
    stage_task,
)

CNN = {"class_path": "lightning_modules.nets.DigitsCNN", "init_args": {"side": 28}}
WIDE = {"class_path": "lightning_modules.nets.mlp.MLP"}
WIDE["init_args"] = {"inputs": 784, "hidden": [256, 256]}

# Names of bundled recipes, with another noise or network.
Changes = dict[str, object]
FOUND_ON: dict[str, tuple[str, Changes]] = {
    "digits, 36 % wrong": ("digits_mlp_wrong_labels", {}),
    "digits, 35 % confused": ("digits_mlp_confused_labels", {}),
    "Fashion-MNIST, 36 % wrong": ("fashion_mnist_mlp_wrong_labels", {}),
    "Fashion-MNIST, 20 % wrong": ("fashion_mnist_mlp_wrong_labels", {"label_noise": 0.2}),
}
HELD_OUT: dict[str, tuple[str, Changes]] = {
    "MNIST, 36 % wrong": ("mnist_mlp_wrong_labels", {}),
    "MNIST, 20 % wrong": ("mnist_mlp_wrong_labels", {"label_noise": 0.2}),
    "MNIST, 35 % confused": ("mnist_mlp_confused_labels", {}),
    "MNIST, 36 % wrong, CNN": ("mnist_mlp_wrong_labels", {"model": CNN, "full": 400}),
    "Fashion-MNIST, 35 % confused": ("fashion_mnist_mlp_confused_labels", {}),
    "Fashion-MNIST, 36 % wrong, wide": ("fashion_mnist_mlp_wrong_labels", {"model": WIDE}),
    "Fashion-MNIST, right": ("fashion_mnist_mlp_few_images", {}),
    "MNIST, right": ("mnist_mlp_few_images", {}),
}

EARLIER = Path(__file__).resolve().parents[1] / "docs" / "results" / "losses" / "cold"

START, SIGMA, POPSIZE = (3.0, 0.0, 2.0, 2.0, 3.0), 2.0, 12
BOX = np.array([(-4.0, 8.0), (-6.0, 6.0), (-4.0, 8.0), (-6.0, 6.0), (0.0, 9.0)])
SMOOTHING_UNIT = 0.1
SCALES = (-2.5, -1.5, -0.5)  # logarithms, in the search
FINAL_SCALES, FINAL_SEEDS = (-3.5, -3.0, -2.5, -2.0, -1.5, -1.0), 4

TRAININGS, TEST_TRAININGS = 12, 10
LOWEST_SCALE = -5.5  # logarithm; the highest is 0

Point = Sequence[float]
Train = Callable[[Sequence[Task]], list[float | None]]


def main() -> None:
    """Find or judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("find", "judge", "table"))
    parser.add_argument("--tasks", nargs="+", help=f"of {', '.join(HELD_OUT)}; default: all")
    parser.add_argument("--output", type=Path, default=Path("library"), help="folder of results")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--name", default="wrong-labels", help="of the loss that is found")
    parser.add_argument("--use", default="some labels are wrong, or confused with another class")
    parser.add_argument("--n-generations", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.what == "table":
        print_table()
        return
    torch.set_num_threads(1)
    given.output.mkdir(parents=True, exist_ok=True)
    if given.what == "find":
        find(given)
        return
    for name in given.tasks or HELD_OUT:
        outcome = judge(name, given)
        loss, about = load_loss(given.name), about_of(given.name)
        others = [each for each in about.outcomes if each.task != name]
        others.append(outcome)
        others.sort(key=lambda each: list(HELD_OUT).index(each.task))
        about = about.model_copy(update={"outcomes": others})
        loss.save(LIBRARY / f"{given.name}.json", origin=Origin(library=about))


def about_of(name: str) -> Library:
    """What the file of a loss says about it."""
    origin = load_loss(name).origin
    assert origin is not None
    assert origin.library is not None
    return origin.library


def print_table() -> None:
    """Print all outcomes as Markdown."""
    print("| loss | task | its test accuracy | best standard loss | cross-entropy | lead (95 %) |")
    print("|---|---|---|---|---|---|")
    for name in library():
        for o in about_of(name).outcomes:
            standard = f"{o.standard:.3f}, {o.standard_loss}"
            lead, low, high = (f"{100 * v:+.1f}" for v in (o.loss - o.standard, o.low, o.high))
            cells = (f"`{name}`", o.task, f"{o.loss:.3f}", standard, f"{o.cross_entropy:.3f}")
            print(f"| {' | '.join(cells)} | {lead} ({low} to {high}) |")


def task_of(where: tuple[str, Changes]) -> TrainingRecipe:
    """The recipe of a task."""
    name, changes = where
    recipe = load_recipe(find_recipe(name))
    plain = recipe.to_dict()
    for field, value in changes.items():
        if field == "model":
            plain["model"] = value
        elif field == "full":
            plain["budget"] |= {"full": value, "evaluation": value}
        else:
            plain["data"]["init_args"][field] = value
    return type(recipe).from_plain(plain)


def trainer_of(recipe: TrainingRecipe, given: argparse.Namespace, name: str) -> Train:
    """What trains a task's losses, with results in a file."""
    results = given.output / f"{name.replace(', ', '-').replace(' ', '_').replace('%', '')}.jsonl"
    if recipe.model.class_path.endswith(".MLP"):
        return BatchedMLP(recipe, given.data_dir, results).do
    train = TaskTrainer(recipe, RuntimeConfig(data_dir=given.data_dir))
    known = dict(map(json.loads, results.read_text().splitlines())) if results.exists() else {}

    def one(task: Task) -> float | None:
        if task.key not in known:
            try:
                known[task.key] = train(task)
            except ArithmeticError:  # it diverged
                known[task.key] = None
            with results.open("a") as file:
                file.write(json.dumps([task.key, known[task.key]]) + "\n")
        value: float | None = known[task.key]
        return value

    return lambda tasks: list(map(one, tasks))


def made(point: Point, log_scale: float, n_classes: int | None = None) -> TaylorLoss:
    """The loss of a shape at a scale."""
    theta = from_canonical(Canonical(*point[:4]), THIRD_ORDER)
    loss = TaylorLoss(
        theta,
        class_reduction="sum",
        base="cross_entropy",
        log_scale=log_scale,
        smoothing=SMOOTHING_UNIT * point[4],
    )
    loss.n_classes = n_classes
    return loss


def scores(
    points: Sequence[Point],
    scales: Sequence[float],
    seeds: Callable[[int], Sequence[int]],
    recipe: TrainingRecipe,
    train: Train,
) -> np.ndarray:
    """Mean validation metrics of each point (row) at each scale; -1 for one that diverges."""
    tasks = [
        stage_task(recipe, compared_evolved_loss("", "", Role.EVOLVED, made(p, s)), Stage.TUNE, k)
        for i, p in enumerate(points)
        for s in scales
        for k in seeds(i)
    ]
    values = [-1.0 if value is None else value for value in train(tasks)]
    return np.reshape(values, (len(points), len(scales), -1)).mean(2)


def one_seed(first: int, candidate: int) -> Sequence[int]:
    """A seed for each candidate of a generation."""
    return [first + candidate]


def ranks(values: np.ndarray) -> np.ndarray:
    """0 for the greatest."""
    return np.argsort(np.argsort(-values))


def find(given: argparse.Namespace) -> None:
    """Search on all tasks at once, select, and write the loss."""
    recipes = {name: task_of(where) for name, where in FOUND_ON.items()}
    trainers = {name: trainer_of(recipe, given, name) for name, recipe in recipes.items()}
    units = np.array(START)
    cma = cmaes.CMA(units, SIGMA, BOX, population_size=POPSIZE, seed=given.seed)
    finalists: list[tuple[float, ...]] = []
    for generation in range(given.n_generations):
        points = [cma.ask() for _ in range(POPSIZE)]
        first = 1000 * (1 + generation + 100 * given.seed)
        found = [
            scores(points, SCALES, partial(one_seed, first), recipe, trainers[name]).max(1)
            for name, recipe in recipes.items()
        ]
        total = sum(map(ranks, found))
        cma.tell([(p, float(t)) for p, t in zip(points, total, strict=True)])
        if generation >= given.n_generations - 4:
            finalists += [tuple(points[int(np.argmin(total))]), tuple(cma.mean)]
        means = ", ".join(f"{values.mean():.3f}" for values in found)
        print(generation, np.round(cma.mean, 2), means, flush=True)
    # Winners of searches on one of the tasks take part.
    for file in sorted(EARLIER.glob("*.json")):
        if file.stem.rsplit("_seed_")[0] in {recipe for recipe, _ in FOUND_ON.values()}:
            loss = load_loss(file)
            assert isinstance(loss, TaylorLoss)
            assert loss.anchor is not None
            shape = to_canonical(loss.theta, loss.form)
            finalists.append((*shape, loss.anchor.smoothing / SMOOTHING_UNIT))
    for seeds, n_left in ((range(1), 8), (range(FINAL_SEEDS), 1)):
        by_task = [
            scores(finalists, FINAL_SCALES, lambda _, s=seeds: s, recipe, trainers[name])
            for name, recipe in recipes.items()
        ]
        total = sum(ranks(values.max(1)) for values in by_task)
        for point, rank, *values in zip(finalists, total, *by_task, strict=True):
            print(np.round(point, 3), rank, [round(float(v.max()), 4) for v in values], flush=True)
        order = np.argsort(total, kind="stable")
        if n_left > 1:
            finalists = [finalists[i] for i in order[:n_left]]
    best = int(order[0])
    scale = float(np.mean([FINAL_SCALES[int(np.argmax(v[best]))] for v in by_task]))
    loss = made([round(float(p), 3) for p in finalists[best]], round(scale, 2))
    command = f"python benchmarks/library.py find --name {given.name} --seed {given.seed}"
    about = Library(use=given.use, found_on=list(FOUND_ON), command=command, outcomes=[])
    loss.save(LIBRARY / f"{given.name}.json", origin=Origin(library=about))
    print(loss)


def judge(name: str, given: argparse.Namespace) -> Outcome:
    """Compare a loss of the library with standard losses on one task."""
    recipe = task_of(HELD_OUT[name])
    train, rates = trainer_of(recipe, given, name), LearningRates.of(recipe)
    tried: dict[str, list[ComparedLoss]] = {}
    loss = load_loss(given.name)
    assert isinstance(loss, TaylorLoss)
    loss.anchor = None if loss.anchor is None else loss.anchor._replace(log_scale=0.0)
    plain = compared_evolved_loss(given.name, given.name, Role.EVOLVED, loss)
    tried[given.name] = [_at(plain, rate, rates) for rate in factors(TRAININGS)]
    tried["cross-entropy"] = [_at(cross_entropy(), rate, rates) for rate in factors(TRAININGS)]
    for family, its in FAMILIES.items():
        settings = its.settings()
        tried[family] = [
            standard_loss(family, family, values, rates, rates.start * factor)
            for values in settings
            for factor in factors(TRAININGS // len(settings))
        ]
    samples = {}
    for kind, losses in tried.items():
        values = train([stage_task(recipe, each, Stage.TUNE, 0) for each in losses])
        best = losses[int(np.argmax([-1.0 if value is None else value for value in values]))]
        tests = [
            stage_task(recipe, best, Stage.TEST, seed, on_test_set=True)
            for seed in range(TEST_TRAININGS)
        ]
        guess = 0.1  # of a training that diverges
        results = tuple(guess if value is None else value for value in train(tests))
        samples[kind] = Sample(kind, best.label, Role.BASELINE, results)
        print(f"{name}: {kind:16} {samples[kind].mean:.4f} {best.label}", flush=True)
    standard = max((samples[f] for f in FAMILIES), key=lambda sample: sample.mean)
    (against,) = contrasts(samples[given.name], [standard])
    return Outcome(
        task=name,
        loss=samples[given.name].mean,
        standard=standard.mean,
        standard_loss=standard.label,
        cross_entropy=samples["cross-entropy"].mean,
        low=against.low,
        high=against.high,
    )


def factors(n: int) -> list[float]:
    """Factors on the learning rate, the middles of n equal parts of the range in logarithms."""
    step = LOWEST_SCALE / n
    return [float(np.exp(step * (i + 0.5))) for i in range(n)]


def _at(loss: ComparedLoss, factor: float, rates: LearningRates) -> ComparedLoss:
    """A loss at a factor on the learning rate."""
    rate = rates.start * factor
    return replace(loss, label=f"{loss.label} at {rates.label(rate)}", **rates.settings(rate))


if __name__ == "__main__":
    main()
