"""Which options of a search pay? Whole searches on the small MLPs, many trainings at a time.

    python benchmarks/search_options.py run --results options.jsonl [--task …] [--option …]
    python benchmarks/search_options.py table --results options.jsonl

Each option is one change to the anchored search of a recipe such as `digits_mlp_wrong_labels`, with
the same number of trainings. All networks of a generation, and of several searches with different
seeds, are trained together by batched matrix products, gradients written out by hand (checked
against the losses themselves at the start): about a tenth of a second per training, where a worker
takes one. Random numbers differ from a worker's, so numbers agree in distribution only.

Per search and per rule for the winner (the best evaluation, the mean of the final distribution, the
choice by full trainings) the mean test accuracy of ten trainings is kept.
"""

from __future__ import annotations

import argparse
import itertools
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
from scipy import stats
from torch import Tensor

from lightning_modules.data.batches import EvaluationBatches
from lightning_modules.data.image_data import ImageData
from optuna_taylorglo.losses.canonical import from_canonical
from optuna_taylorglo.losses.taylor_loss import TaylorLoss
from optuna_taylorglo.recipes.bundled import find_recipe
from optuna_taylorglo.recipes.class_paths import data_module_class
from optuna_taylorglo.recipes.loading import load_recipe
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.search.candidates import candidate_loss, make_sampler, parameter_names
from optuna_taylorglo.search.sampler import TaylorGLOSampler
from optuna_taylorglo.search.scheduler import GenerationScheduler

TASKS = ("digits_mlp_wrong_labels", "digits_mlp_confused_labels", "digits_mlp")
TEST_SEEDS = range(10)
CHOICE_SEEDS_BY_ROUND = (2, 2, 4)
N_BEST = 10
AT_A_TIME = 48
"""Networks trained together; more no longer saves anything."""

Parameters = dict[str, float]


@dataclass(frozen=True)
class Option:
    """One change to the search.

    Attributes:
        population: Candidates per generation; the number of trainings stays.
        repeats: Trainings per evaluation.
        recheck: Candidates of each generation, its best, that are trained once more.
        restarts: Independent searches among which the budget is divided.
        space_filling: Whether the first generation is a scrambled Sobol sequence.
        sampler: Arguments of the sampler in place of the recipe's.
        extra: Further parameters and what counts as 1 for CMA-ES.
    """

    population: int = 16
    repeats: int = 1
    recheck: int = 0
    restarts: int = 1
    space_filling: bool = False
    sampler: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, float] = field(default_factory=dict)


OPTIONS = {
    "as the recipe has it": Option(),
    "population 8": Option(population=8),
    "population 32": Option(population=32),
    "sigma 0.6": Option(sampler={"sigma": 0.6}),
    "sigma 2.4": Option(sampler={"sigma": 2.4}),
    "first generation space-filling": Option(space_filling=True),
    "learning-rate adaptation": Option(sampler={"lr_adapt": True}),
    "two repeats": Option(repeats=2),
    "best four of a generation trained again": Option(recheck=4),
    "two restarts": Option(restarts=2),
    "cubic in the target's probability": Option(extra={"cubic": 1.0}),
    "scale that changes with progress": Option(extra={"anneal": 1.0}),
}


class Problem:
    """Data of a recipe as whole tensors, and the training of many networks on them."""

    def __init__(self, recipe: Recipe, data_dir: Path) -> None:
        self.recipe = recipe
        data_class = data_module_class(recipe.data.class_path)
        assert issubclass(data_class, ImageData)
        data = data_class(data_dir, recipe.batch_size, **recipe.data.init_args)
        data.setup("test")
        self.train = _whole(data, data.train_data)
        self.validation = _whole(data, data.val_data)
        self.test = _whole(data, data.test_data)
        self.n_classes = data.num_classes

    def evaluate(
        self, candidates: Sequence[Parameters], seeds: Sequence[int], *, on_test: bool = False
    ) -> list[float]:
        """Train each candidate with its seed; 0 for a training that diverges."""
        values: list[float] = []
        for first in range(0, len(seeds), AT_A_TIME):
            part = slice(first, first + AT_A_TIME)
            values += self._train(candidates[part], seeds[part], on_test)
        return values

    def _train(
        self, candidates: Sequence[Parameters], seeds: Sequence[int], on_test: bool
    ) -> list[float]:
        steps, batch = self.recipe.budget.full, self.recipe.batch_size
        images, labels = self.train
        inputs, hidden = images.shape[1], (64, 64)
        widths = (inputs, *hidden, self.n_classes)
        per_pass = len(labels) // batch
        weights: list[list[Tensor]] = []
        orders = []
        for seed in seeds:
            generator = torch.Generator().manual_seed(seed)
            weights.append(
                [
                    torch.randn(i, o, generator=generator) * math.sqrt(2 / i)
                    for i, o in itertools.pairwise(widths)
                ]
            )
            passes = [
                torch.randperm(len(labels), generator=generator)[: per_pass * batch]
                for _ in range(math.ceil(steps / per_pass))
            ]
            orders.append(torch.cat(passes)[: steps * batch].view(steps, batch))
        order = torch.stack(orders, 1)
        w = [torch.stack(layer) for layer in zip(*weights, strict=True)]
        b = [torch.zeros(len(seeds), 1, width) for width in widths[1:]]
        names = candidates[0]
        columns = {
            name: torch.tensor([c[name] for c in candidates]).view(-1, 1, 1) for name in names
        }
        momenta = [torch.zeros_like(p) for p in (*w, *b)]
        optimiser = self.recipe.optimiser
        for step in range(steps):
            chosen = order[step]
            x = images[chosen]
            h1 = torch.baddbmm(b[0], x, w[0]).relu_()
            h2 = torch.baddbmm(b[1], h1, w[1]).relu_()
            logits = torch.baddbmm(b[2], h2, w[2])
            d3 = logit_gradient(logits, labels[chosen], columns, step / steps).div_(batch)
            d2 = torch.bmm(d3, w[2].transpose(1, 2)).mul_(h2 > 0)
            d1 = torch.bmm(d2, w[1].transpose(1, 2)).mul_(h1 > 0)
            gradients = [
                torch.bmm(below.transpose(1, 2), d) for below, d in ((x, d1), (h1, d2), (h2, d3))
            ] + [d.sum(1, keepdim=True) for d in (d1, d2, d3)]
            for p, momentum, gradient in zip((*w, *b), momenta, gradients, strict=True):
                p.add_(momentum.mul_(optimiser.momentum).add_(gradient), alpha=-optimiser.lr)
        images, labels = self.test if on_test else self.validation
        values = []
        for k in range(len(seeds)):
            h = images
            for layer in range(2):
                h = torch.addmm(b[layer][k], h, w[layer][k]).relu_()
            logits = torch.addmm(b[2][k], h, w[2][k])
            finite = bool(logits.isfinite().all())
            values.append(float((logits.argmax(1) == labels).float().mean()) if finite else 0.0)
        return values


def _whole(data: ImageData, subset: Any) -> tuple[Tensor, Tensor]:
    (batch,) = EvaluationBatches(subset, len(subset.indices))
    images, labels = data.on_after_batch_transfer(batch, 0)
    return images.flatten(1).contiguous(), labels


def logit_gradient(logits: Tensor, target: Tensor, p: dict[str, Tensor], progress: float) -> Tensor:
    """Derivative of e^s (CE_ε - f) with respect to the logits, for each network's parameters.

    Args:
        logits: Shape (networks, B, C).
        target: Shape (networks, B).
        p: Parameters by name, each of shape (networks, 1, 1).
        progress: Share of the training that is over.
    """
    y = torch.softmax(logits, -1)
    x = torch.zeros_like(y).scatter_(-1, target.unsqueeze(-1), 1.0)
    y_t = (y * x).sum(-1, keepdim=True)
    at_target = p["alpha"] + p["beta"] * y_t
    if "cubic" in p:
        at_target = at_target + p["cubic"] * y_t**2
    slope = x * at_target + p["gamma"] * y + p["delta"] * y**2
    from_f = y * (slope - (y * slope).sum(-1, keepdim=True))
    smoothing = p["smoothing"]
    from_ce = y - (1 - smoothing) * x - smoothing / y.shape[-1]
    log_scale = p["log_scale"]
    if "anneal" in p:
        log_scale = log_scale + p["anneal"] * (progress - 0.5)
    return (from_ce - from_f).mul_(log_scale.exp())


def check_gradient(recipe: Recipe, n_classes: int) -> None:
    """The gradient by hand is that of the loss that a worker would train with."""
    values = (2.0, -1.0, 1.5, 0.7, -0.4, 0.2)
    candidate = dict(zip(parameter_names(recipe), values, strict=True))
    logits = torch.randn(1, 64, n_classes, generator=torch.Generator().manual_seed(0))
    target = torch.arange(64).remainder(n_classes).view(1, -1)
    columns = {name: torch.tensor(value).view(1, 1, 1) for name, value in candidate.items()}
    leaf = logits[0].clone().requires_grad_()
    loss = candidate_loss(recipe, values, n_classes)
    (expected,) = torch.autograd.grad(loss(leaf, target[0]), leaf)
    found = logit_gradient(logits, target, columns, 0.0)[0] / 64
    torch.testing.assert_close(found, expected)
    assert isinstance(loss, TaylorLoss)
    assert loss.theta == tuple(from_canonical(values[:4], loss.form))


class Search:
    """One search, which is asked for a generation and told its results."""

    def __init__(self, recipe: Recipe, option: Option, seed: int, n_classes: int) -> None:
        self.option = option
        plain = make_sampler(recipe, n_classes)
        names = (*plain.names, *option.extra)
        accept = plain.accept
        self.sampler = TaylorGLOSampler(
            **{
                "names": names,
                "popsize": option.population,
                "sigma": recipe.search.sigma,
                "seed": seed,
                "accept": lambda p: accept is None or accept(p[: len(plain.names)]),
                "units": dict(zip(plain.names, plain.units, strict=True)) | option.extra,
                "limits": dict(zip(plain.names, plain.limits, strict=True)),
                **option.sampler,
            }
        )
        self.study = optuna.create_study(direction="maximize", sampler=self.sampler)
        self.scheduler = GenerationScheduler(self.study)
        if option.space_filling:
            self._fill_space(seed)

    def _fill_space(self, seed: int) -> None:
        sampler = self.sampler
        normal = stats.qmc.MultivariateNormalQMC(np.zeros(len(sampler.names)), seed=seed)
        points = (p * sampler.sigma * np.array(sampler.units) for p in normal.random(1024))
        bounds = np.array(sampler.limits)
        allowed = (p for p in points if (bounds[:, 0] <= p).all() and (p <= bounds[:, 1]).all())
        good = [p for p in allowed if sampler.accept is None or sampler.accept(p.tolist())]
        for point in good[: self.option.population]:
            self.study.enqueue_trial(dict(zip(sampler.names, point.tolist(), strict=True)))

    def ask(self) -> list[Parameters]:
        """The candidates of the next generation."""
        self._trials = []
        for _ in range(self.option.population):
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
    problem: Problem, option: Option, seeds: Sequence[int], n_trainings: int
) -> list[dict[str, Any]]:
    """Several searches side by side; returns a result for each seed."""
    recipe = problem.recipe
    numbers = {seed: iter(range(10**6 * (seed + 1), 10**6 * (seed + 2))) for seed in seeds}
    searches = {
        (seed, restart): Search(recipe, option, 1000 * restart + seed, problem.n_classes)
        for seed in seeds
        for restart in range(option.restarts)
    }

    def train(wanted: Sequence[tuple[int, Parameters]]) -> list[float]:
        return problem.evaluate([c for _, c in wanted], [next(numbers[s]) for s, _ in wanted])

    per_generation = option.population * option.repeats + option.recheck
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
    return [_judge(problem, seed, searches, train) for seed in seeds]


def _fill(
    found: dict[tuple[int, int], list[list[float]]],
    wanted: Sequence[tuple[tuple[int, int], int]],
    values: Sequence[float],
) -> None:
    for (key, i), value in zip(wanted, values, strict=True):
        found[key][i].append(value)


def _judge(
    problem: Problem,
    seed: int,
    searches: dict[tuple[int, int], Search],
    train: Callable[[Sequence[tuple[int, Parameters]]], list[float]],
) -> dict[str, Any]:
    """Test accuracy of the winner by each rule."""
    own = [search for (of, _), search in searches.items() if of == seed]
    best = sorted((pair for s in own for pair in s.best(N_BEST)), key=lambda pair: -pair[0])
    contenders = [search.mean() for search in own] + [c for _, c in best[:N_BEST]]
    # Fewer rounds would do for a benchmark, but then it would be another rule.
    values: list[list[float]] = [[] for _ in contenders]
    staying = list(range(len(contenders)))
    for number, n_seeds in enumerate(CHOICE_SEEDS_BY_ROUND, start=1):
        results = train([(seed, contenders[i]) for i in staying for _ in range(n_seeds)])
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
    chosen = contenders[staying[0] if clearly else mean]
    winners = {"best": best[0][1], "mean": contenders[mean], "chosen": chosen}
    tested = {
        rule: problem.evaluate(
            [winner] * len(TEST_SEEDS), [10**8 + s for s in TEST_SEEDS], on_test=True
        )
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
        problem = Problem(recipe, arguments.data_dir)
        check_gradient(recipe, problem.n_classes)
        n_trainings = recipe.search.population * recipe.search.generations
        for option in arguments.option or OPTIONS:
            done = {r["seed"] for r in results if (r["task"], r["option"]) == (task, option)}
            seeds = [seed for seed in range(arguments.seeds) if seed not in done]
            if not seeds:
                continue
            begin = time.monotonic()
            for result in run(problem, OPTIONS[option], seeds, n_trainings):
                with arguments.results.open("a") as file:
                    file.write(json.dumps({"task": task, "option": option, **result}) + "\n")
            print(f"{task}, {option}: {time.monotonic() - begin:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
