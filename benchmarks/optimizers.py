"""Which optimizer for how many trainings: CMA-ES from known losses, TPE, random points, cold.

    python benchmarks/optimizers.py run --output DIR --tasks "MNIST, 35 % confused" …
    python benchmarks/optimizers.py table --output DIR

Every way gets 24, 48 and 96 trainings; then its two finalists are trained with four seeds each, the
better one with five for the test set. All seeds of a way train together. Resumes.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import numpy as np
import optuna
import torch
from batched_mlp import BatchedMLP, Job
from library import FOUND_ON, HELD_OUT, task_of

from optuna_taylorglo import load_loss
from optuna_taylorglo.evolution.candidates import make_sampler
from optuna_taylorglo.evolution.sampler import (
    ANCHOR_LIMITS,
    ANCHOR_UNITS,
    ANCHORED_NAMES,
    TaylorGLOSampler,
)
from optuna_taylorglo.evolution.scheduler import GenerationScheduler
from optuna_taylorglo.losses.canonical import to_canonical
from optuna_taylorglo.losses.taylor import TaylorLoss
from optuna_taylorglo.recipes.presets import BOX, SCALES, STANDARD, Shape

BUDGETS = (24, 48, 96)
SEEDS, TEST_SEEDS, SELECTION_SEEDS, BATCH = 5, 5, 4, 8
CENTER = {name: (low + high) / 2 for name, (low, high) in BOX.items()}
QUARTER = {name: (high - low) / 4 for name, (low, high) in BOX.items()}

Point = Sequence[float]


class Way(Protocol):
    """Proposes points and is told their scores."""

    def ask(self) -> list[Point]:
        """The next points, to be trained together."""

    def tell(self, scores: Sequence[float]) -> None:
        """Take in their scores."""

    def finalists(self) -> list[Point]:
        """The two best, by its own judgment."""


class Generations:
    """CMA-ES, from known losses or cold, as the package searches."""

    def __init__(self, seed: int, **settings: object) -> None:
        units, limits = {**ANCHOR_UNITS}, {**ANCHOR_LIMITS}
        settings = {"units": units, "limits": limits, "seed": seed, "max_failures": 0} | settings
        self._sampler = TaylorGLOSampler(names=ANCHORED_NAMES, **settings)  # type: ignore[arg-type]
        study = optuna.create_study(direction="maximize", sampler=self._sampler)
        self._scheduler, self._taken = GenerationScheduler(study), list[optuna.Trial]()

    def ask(self) -> list[Point]:
        self._taken = []
        while (trial := self._scheduler.claim()) is not None:
            self._taken.append(trial)
        return [self._sampler.suggest(trial) for trial in self._taken]

    def tell(self, scores: Sequence[float]) -> None:
        for trial, score in zip(self._taken, scores, strict=True):
            self._scheduler.finish(trial, score)

    def finalists(self) -> list[Point]:
        study = self._scheduler.study
        best = self._sampler.start(study) or [study.best_params[name] for name in ANCHORED_NAMES]
        states = self._sampler.search_state(study)
        return [best, states[-1].mean] if states else [best]


class Independent:
    """Points of the box by a sampler of Optuna's; known losses first."""

    def __init__(
        self,
        sampler: optuna.samplers.BaseSampler,
        accept: Callable[[Sequence[float]], bool],
        first: Sequence[Point] = (),
    ) -> None:
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._accept, self._taken = accept, list[optuna.Trial]()
        self._n_first = len(first)
        for point in first:
            self._study.enqueue_trial(dict(zip(BOX, point, strict=True)))

    def ask(self) -> list[Point]:
        self._taken = []
        points: list[Point] = []
        while len(points) < BATCH:
            trial = self._study.ask()
            point = [trial.suggest_float(name, *ends) for name, ends in BOX.items()]
            if trial.number < self._n_first or self._accept(point):
                self._taken.append(trial)
                points.append(point)
            else:
                self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
        return points

    def tell(self, scores: Sequence[float]) -> None:
        for trial, score in zip(self._taken, scores, strict=True):
            self._study.tell(trial, score)

    def finalists(self) -> list[Point]:
        complete = self._study.get_trials(states=(optuna.trial.TrialState.COMPLETE,))
        ranked = sorted(complete, key=lambda trial: -trial.values[0])
        return [[trial.params[name] for name in BOX] for trial in ranked[:2]]


def ways(seed: int, accept: Callable[[Sequence[float]], bool]) -> dict[str, Way]:
    """All that is compared, by name."""
    loss = load_loss("wrong-labels")
    assert isinstance(loss, TaylorLoss)
    assert loss.anchor is not None
    shape: Shape = (*to_canonical(loss.theta, loss.form), loss.anchor.smoothing)
    scales = {shape: SCALES} | STANDARD
    first = [[*each[:4], s, each[4]] for each in scales for s in scales[each]]
    tpe = optuna.samplers.TPESampler(
        seed=seed, n_startup_trials=len(first), multivariate=True, constant_liar=True
    )
    from_known = {"known": [shape], "popsize": 8, "accept": accept}
    cold = {"x0": CENTER, "units": QUARTER, "sigma": 1.0, "popsize": 8, "accept": accept}
    return {
        "known losses, CMA-ES": Generations(seed, sigma=0.5, **from_known),
        "known losses, TPE": Independent(tpe, accept, first),
        "CMA-ES from the box": Generations(seed, **cold),
        "CMA-ES from 0": Generations(seed, sigma=1.2, popsize=16, accept=accept),
        "random points of the box": Independent(optuna.samplers.RandomSampler(seed), accept),
    }


class Task:
    """A task's trainings, and what they gave."""

    def __init__(self, name: str, output: Path, data_dir: Path) -> None:
        recipe = task_of((HELD_OUT | FOUND_ON)[name])
        file = f"optimizers-{name.replace(', ', '-').replace(' ', '_').replace('%', '')}.jsonl"
        self._trainings = BatchedMLP(recipe, data_dir, output / file)
        assert recipe.optimizer is not None
        self._rate = recipe.optimizer.lr
        made = make_sampler(recipe, self._trainings.n_classes)
        assert isinstance(made, TaylorGLOSampler)
        assert made.settings.accept is not None
        self.accept = made.settings.accept

    def scores(
        self, jobs: Sequence[tuple[Point, int]], *, on_test_set: bool = False
    ) -> list[float]:
        """Metrics of trainings with points and seeds; guessing for one that diverged."""
        made = [Job("taylor", _named(point), seed, self._rate, on_test_set) for point, seed in jobs]
        values = self._trainings.train(made)
        return [1 / self._trainings.n_classes if value is None else value for value in values]


def _named(point: Point) -> dict[str, float]:
    return dict(zip(BOX, map(float, point), strict=True))


def run(name: str, task: Task) -> dict[int, list[float]]:
    """Test accuracy by budget of each seed of one way."""
    made = [ways(seed, task.accept)[name] for seed in range(SEEDS)]
    found: dict[int, list[float]] = {}
    n_done = 0
    while True:
        asked = [way.ask() for way in made]
        after = n_done + max(map(len, asked))
        for budget in BUDGETS:
            if n_done <= budget < after:
                found[budget] = _judge([way.finalists() for way in made], task, budget)
        if n_done >= max(BUDGETS) or max(BUDGETS) in found:
            return found
        jobs = [
            (point, 1_000_000 * (seed + 1) + n_done + i)
            for seed, points in enumerate(asked)
            for i, point in enumerate(points)
        ]
        scores = task.scores(jobs)
        ends = np.cumsum([0, *map(len, asked)]).tolist()
        for way, (first, last) in zip(made, pairwise(ends), strict=True):
            way.tell(scores[first:last])
        n_done = after


def _judge(finalists: Sequence[Sequence[Point]], task: Task, budget: int) -> list[float]:
    """Test accuracy of the better of each seed's finalists."""
    accuracies = []
    for seed, points in enumerate(finalists):
        first = 1_000_000 * (seed + 1) + 1000 * budget
        jobs = [(point, first + i) for point in points for i in range(SELECTION_SEEDS)]
        means = np.reshape(task.scores(jobs), (len(points), -1)).mean(1)
        best = points[int(means.argmax())]
        tested = task.scores([(best, 7_000_000 + i) for i in range(TEST_SEEDS)], on_test_set=True)
        accuracies.append(statistics.fmean(tested))
    return accuracies


def print_table(output: Path) -> None:
    """Print all results as Markdown."""
    results = json.loads((output / "optimizers.json").read_text())
    for task, by_way in results.items():
        print(f"\n| {task} | {' | '.join(map(str, BUDGETS))} |\n|---|---|---|---|")
        for way, by_budget in by_way.items():
            cells = [
                f"{statistics.fmean(v):.3f} ({statistics.stdev(v):.3f})" for v in by_budget.values()
            ]
            print(f"| {way} | {' | '.join(cells)} |")


def main() -> None:
    """Run or print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("--tasks", nargs="+", default=["MNIST, 35 % confused"])
    parser.add_argument("--output", type=Path, default=Path("optimizers"), help="folder")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    given = parser.parse_args()
    if given.what == "table":
        print_table(given.output)
        return
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    given.output.mkdir(parents=True, exist_ok=True)
    for name in given.tasks:
        task = Task(name, given.output, given.data_dir)
        for way in ways(0, task.accept):
            accuracies = run(way, task)
            file = given.output / "optimizers.json"
            results = json.loads(file.read_text()) if file.exists() else {}
            results.setdefault(name, {})[way] = accuracies
            file.write_text(json.dumps(results, indent=1))
            said = {budget: round(math.fsum(v) / SEEDS, 4) for budget, v in accuracies.items()}
            print(name, way, said, flush=True)


if __name__ == "__main__":
    main()
