"""Which options of a search pay? Whole searches on the small MLPs, many trainings at a time.

    python benchmarks/search_options.py run --results options.jsonl [--task …] [--option …]
    python benchmarks/search_options.py table --results options.jsonl

Each option is one change to the anchored search of a recipe such as `digits_mlp_wrong_labels`, with
the same number of trainings. All networks of a generation, and of several searches with different
seeds, are trained together (`batched_mlp.py`).

Per search and per rule for the winner (the best evaluation, the mean of the final distribution, the
selection by full trainings; unlike the product's, its finalists do not share seeds) the mean test
accuracy of ten trainings is kept.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import torch
from batched_mlp import BatchedMLP, Job
from scipy import stats

from optuna_taylorglo.recipes.load import find_recipe, load_recipe
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.search.candidates import make_sampler
from optuna_taylorglo.search.sampler import TaylorGLOSampler
from optuna_taylorglo.search.scheduler import GenerationScheduler

TASKS = ("digits_mlp_wrong_labels", "digits_mlp_confused_labels", "digits_mlp")
TEST_SEEDS = range(10)
CHOICE_SEEDS_BY_ROUND = (2, 2, 4)
N_BEST = 10

Parameters = dict[str, float]


@dataclass(frozen=True)
class Option:
    """One change to the search.

    Attributes:
        popsize: Candidates per generation; the number of trainings stays.
        repeats: Trainings per evaluation.
        recheck: Candidates of each generation, its best, that are trained once more.
        restarts: Independent searches among which the budget is divided.
        space_filling: Whether the first generation is a scrambled Sobol sequence.
        sampler: Arguments of the sampler in place of the recipe's.
        extra: Further parameters and what counts as 1 for CMA-ES.
    """

    popsize: int = 16
    repeats: int = 1
    recheck: int = 0
    restarts: int = 1
    space_filling: bool = False
    sampler: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, float] = field(default_factory=dict)


OPTIONS = {
    "as the recipe has it": Option(),
    "popsize 8": Option(popsize=8),
    "popsize 32": Option(popsize=32),
    "sigma 0.6": Option(sampler={"sigma": 0.6}),
    "sigma 2.4": Option(sampler={"sigma": 2.4}),
    "first generation space-filling": Option(space_filling=True),
    "overlap 4": Option(sampler={"overlap": 4}),
    "overlap 8": Option(sampler={"overlap": 8}),
    "two repeats": Option(repeats=2),
    "best four of a generation trained again": Option(recheck=4),
    "two restarts": Option(restarts=2),
    "cubic in the target's probability": Option(extra={"cubic": 1.0}),
    "scale that changes with progress": Option(extra={"anneal": 1.0}),
}


class Search:
    """One search, which is asked for a generation and told its results."""

    def __init__(self, recipe: Recipe, option: Option, seed: int, n_classes: int) -> None:
        self.option = option
        plain = make_sampler(recipe, n_classes)
        names = (*plain.names, *option.extra)
        accept = plain.settings.accept
        self.sampler = TaylorGLOSampler(
            **{
                "names": names,
                "popsize": option.popsize,
                "sigma": recipe.search.sigma,
                "seed": seed,
                "accept": lambda p: accept is None or accept(p[: len(plain.names)]),
                "units": dict(zip(plain.names, plain.settings.units, strict=True)) | option.extra,
                "limits": dict(zip(plain.names, plain.settings.limits, strict=True)),
                **option.sampler,
            }
        )
        self.study = optuna.create_study(direction="maximize", sampler=self.sampler)
        self.scheduler = GenerationScheduler(self.study)
        if option.space_filling:
            self._fill_space(seed)

    def _fill_space(self, seed: int) -> None:
        sampler, accept = self.sampler, self.sampler.settings.accept
        normal = stats.qmc.MultivariateNormalQMC(np.zeros(len(sampler.names)), seed=seed)
        points = (
            p * sampler.settings.sigma * np.array(sampler.settings.units)
            for p in normal.random(1024)
        )
        bounds = np.array(sampler.settings.limits)
        allowed = (p for p in points if (bounds[:, 0] <= p).all() and (p <= bounds[:, 1]).all())
        good = [p for p in allowed if accept is None or accept(p.tolist())]
        for point in good[: self.option.popsize]:
            self.study.enqueue_trial(dict(zip(sampler.names, point.tolist(), strict=True)))

    def ask(self) -> list[Parameters]:
        """The candidates of the next generation."""
        self._trials = []
        for _ in range(self.option.popsize):
            trial = self.scheduler.claim()
            assert trial is not None
            self._trials.append(trial)
        return [
            dict(zip(self.sampler.names, self.sampler.suggest(trial), strict=True))
            for trial in self._trials
        ]

    def tell(self, values: Sequence[float]) -> None:
        """The results of the generation that was asked for."""
        for trial, value in zip(self._trials, values, strict=True):
            self.scheduler.finish(trial, value)

    def best(self, n: int) -> list[tuple[float, Parameters]]:
        """The n best evaluations."""
        done = [(float(t.values[0]), dict(t.params)) for t in self.study.get_trials(deepcopy=False)]
        return sorted(done, key=lambda pair: -pair[0])[:n]

    def mean(self) -> Parameters:
        """The mean of the final distribution."""
        mean = self.sampler.search_state(self.study)[-1].mean
        return dict(zip(self.sampler.names, mean, strict=True))


def run(
    trainings: BatchedMLP, option: Option, seeds: Sequence[int], n_trainings: int
) -> list[dict[str, Any]]:
    """Several searches side by side; returns a result for each seed."""
    recipe = trainings.recipe
    numbers = {seed: iter(range(10**6 * (seed + 1), 10**6 * (seed + 2))) for seed in seeds}
    searches = {
        (seed, restart): Search(recipe, option, 1000 * restart + seed, trainings.n_classes)
        for seed in seeds
        for restart in range(option.restarts)
    }

    def train(wanted: Sequence[tuple[int, Parameters]]) -> list[float]:
        return evaluate(trainings, [(c, next(numbers[s])) for s, c in wanted])

    per_generation = option.popsize * option.repeats + option.recheck
    for _ in range(round(n_trainings / (per_generation * option.restarts))):
        asked = {key: search.ask() for key, search in searches.items()}
        wanted = [
            (key, i) for key, asks in asked.items() for i in range(len(asks))
            for _ in range(option.repeats)
        ]  # fmt: skip
        found: dict[tuple[int, int], list[list[float]]] = {
            key: [[] for _ in asks] for key, asks in asked.items()
        }
        _fill(found, wanted, train([(key[0], asked[key][i]) for key, i in wanted]))
        again = [
            (key, i)
            for key, values in found.items()
            for i in sorted(range(len(values)), key=lambda i: -values[i][0])[: option.recheck]
        ]
        if again:
            _fill(found, again, train([(key[0], asked[key][i]) for key, i in again]))
        for key, search in searches.items():
            search.tell([statistics.fmean(values) for values in found[key]])
    return [_judge(trainings, seed, searches, train) for seed in seeds]


def evaluate(
    trainings: BatchedMLP, wanted: Sequence[tuple[Parameters, int]], *, on_test_set: bool = False
) -> list[float]:
    """Metric of each candidate trained with its seed; 0 for a training that diverges."""
    rate = trainings.recipe.optimizer.lr
    jobs = [Job("taylor", candidate, seed, rate, on_test_set) for candidate, seed in wanted]
    return [value or 0.0 for value in trainings.train(jobs)]


def _fill(
    found: dict[tuple[int, int], list[list[float]]],
    wanted: Sequence[tuple[tuple[int, int], int]],
    values: Sequence[float],
) -> None:
    for (key, i), value in zip(wanted, values, strict=True):
        found[key][i].append(value)


def _judge(
    trainings: BatchedMLP,
    seed: int,
    searches: dict[tuple[int, int], Search],
    train: Callable[[Sequence[tuple[int, Parameters]]], list[float]],
) -> dict[str, Any]:
    """Test accuracy of the winner by each rule."""
    own = [search for (of, _), search in searches.items() if of == seed]
    best = sorted((pair for s in own for pair in s.best(N_BEST)), key=lambda pair: -pair[0])
    finalists = [search.mean() for search in own] + [c for _, c in best[:N_BEST]]
    values: list[list[float]] = [[] for _ in finalists]
    staying = list(range(len(finalists)))
    for number, n_seeds in enumerate(CHOICE_SEEDS_BY_ROUND, start=1):
        results = train([(seed, finalists[i]) for i in staying for _ in range(n_seeds)])
        for place, i in enumerate(staying):
            values[i] += results[place * n_seeds : (place + 1) * n_seeds]
        staying.sort(key=lambda i: -statistics.fmean(values[i]))
        if number < len(CHOICE_SEEDS_BY_ROUND):
            kept = math.ceil(len(staying) / 2) if number == 1 else 3
            staying = [*staying[:kept], *(i for i in staying[kept:] if i < len(own))]
    mean = staying[min(staying.index(i) for i in range(len(own)) if i in staying)]
    n = len(values[staying[0]])
    differences = [a - b for a, b in zip(values[staying[0]], values[mean], strict=True)]
    clearly = statistics.fmean(differences) > statistics.stdev(differences) / math.sqrt(n)
    chosen = finalists[staying[0] if clearly else mean]
    winners = {"best": best[0][1], "mean": finalists[mean], "chosen": chosen}
    tested = {
        rule: evaluate(trainings, [(winner, 10**8 + seed) for seed in TEST_SEEDS], on_test_set=True)
        for rule, winner in winners.items()
    }
    return {"seed": seed, "tested": tested, "chosen": chosen}


def print_table(results: list[dict[str, Any]]) -> None:
    """Print, for each task and option, test accuracies by each rule: mean ± sd over searches."""
    for task in dict.fromkeys(r["task"] for r in results):
        print(f"\n{task}\n")
        print("| option | searches | best evaluation | mean of the distribution | chosen |")
        print("|---|---|---|---|---|")
        for option in OPTIONS:
            own = [r for r in results if (r["task"], r["option"]) == (task, option)]
            if not own:
                continue
            cells = []
            for rule in ("best", "mean", "chosen"):
                means = [statistics.fmean(r["tested"][rule]) for r in own]
                spread = statistics.stdev(means) if len(means) > 1 else math.nan
                cells.append(f"{statistics.fmean(means):.4f} ± {spread:.4f}")
            print(f"| {option} | {len(own)} | {' | '.join(cells)} |")


def main() -> None:
    """Run searches, or print the table of those that were run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("--results", type=Path, required=True, help="file of finished searches")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--task", action="append", help=f"recipe on an MLP; default: {TASKS}")
    parser.add_argument("--option", choices=OPTIONS, action="append")
    parser.add_argument("--seeds", type=int, default=4)
    arguments = parser.parse_args()
    lines = arguments.results.read_text().splitlines() if arguments.results.exists() else []
    results = [json.loads(line) for line in lines]
    if arguments.what == "table":
        print_table(results)
        return
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    for task in arguments.task or TASKS:
        recipe = load_recipe(find_recipe(Path(task)))
        trainings = BatchedMLP(recipe, arguments.data_dir)
        n_trainings = recipe.search.popsize * recipe.search.n_generations
        for option in arguments.option or OPTIONS:
            done = {r["seed"] for r in results if (r["task"], r["option"]) == (task, option)}
            seeds = [seed for seed in range(arguments.seeds) if seed not in done]
            if not seeds:
                continue
            begin = time.monotonic()
            for result in run(trainings, OPTIONS[option], seeds, n_trainings):
                with arguments.results.open("a") as file:
                    file.write(json.dumps({"task": task, "option": option, **result}) + "\n")
            print(f"{task}, {option}: {time.monotonic() - begin:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
