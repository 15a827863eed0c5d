"""TaylorGLO against GLO and against random trees: what does a quality cost?

    python benchmarks/glo.py run --output DIR [--seeds 0 1 2 3 4]
    python benchmarks/glo.py table --output DIR

Four searches on the same network, data and trainings:

- TaylorGLO as in the paper: all eight parameters from θ = 0, 28 × 16 = 448 evaluations, after which
  its winner on MNIST had been found;
- TaylorGLO as the recipe has it: cross-entropy's neighborhood in the canonical space;
- GLO: trees, then coefficients of the best one;
- random trees: GLO's first generation, as large as its whole search.

The quality of a best candidate so far is the median test accuracy of `FRESH` trainings. A search
has reached the quality of its task when that is cross-entropy's plus `ABOVE`.

Trainings are batched (`batched_mlp.py`) and saved in DIR, so an interrupted run resumes.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import optuna
import torch
from batched_mlp import BatchedMLP
from optuna.trial import FrozenTrial, TrialState

from optuna_taylorglo.evolution.history import SearchHistory, trial_loss
from optuna_taylorglo.losses.tree_loss import TreeLoss
from optuna_taylorglo.recipes.load import find_recipe, load_recipe
from optuna_taylorglo.recipes.presets import COLD_SEARCH, PAPER_LOSS, PAPER_SEARCH
from optuna_taylorglo.recipes.schema import EarlyAbortSettings, LossSettings, Recipe
from optuna_taylorglo.recipes.settings import (
    CoefficientSettings,
    GLOSettings,
    SearchSettings,
)
from optuna_taylorglo.seeds import Stage
from optuna_taylorglo.verdict.statistics import Role
from optuna_taylorglo.verdict.tasks import Task, compared_evolved_loss, cross_entropy, stage_task

ABOVE = {"digits_mlp": 0.0, "digits_mlp_wrong_labels": 0.24}
"""The tasks, and how far above cross-entropy their quality lies. With wrong labels 0.24 is about
what cross-entropy gains when its learning rate is tuned (docs/results/README.md)."""

FRESH = 5
"""Fresh trainings of a best candidate; of cross-entropy five times as many."""

PAPER = {"TaylorGLO, paper": 448, "GLO": 11_120}
"""Evaluations on MNIST that the paper gives."""

ABORT = EarlyAbortSettings(unit="steps", at=200, threshold=0.15, attempts=1)


def _paper(recipe: Recipe) -> Recipe:
    search = SearchSettings(**PAPER_SEARCH | {"n_generations": 16})
    loss = LossSettings(**PAPER_LOSS | {"folded": True, "class_reduction": "sum"})
    return recipe.changed(search=search, loss=loss)


def _glo(recipe: Recipe) -> Recipe:
    stage = CoefficientSettings(popsize=16, n_generations=12)
    return _with_trees(recipe, GLOSettings(popsize=50, n_generations=30, coefficients=stage))


def _random(recipe: Recipe) -> Recipe:
    stage = CoefficientSettings(n_generations=0)
    popsize = 50 * 30 + 16 * 12
    return _with_trees(recipe, GLOSettings(popsize=popsize, n_generations=1, coefficients=stage))


def _with_trees(recipe: Recipe, glo: GLOSettings) -> Recipe:
    search = SearchSettings(method="glo", glo=glo, **PAPER_SEARCH)
    return recipe.changed(search=search, loss=LossSettings(base="none"))


def _cold(recipe: Recipe) -> Recipe:
    return recipe.changed(search=SearchSettings(start=None, **COLD_SEARCH))


METHODS: dict[str, Callable[[Recipe], Recipe]] = {
    "TaylorGLO, paper": _paper,
    "TaylorGLO, ours": _cold,
    "GLO": _glo,
    "random trees": _random,
}


@dataclass(frozen=True)
class Best:
    """A candidate that was the best of its search for a while.

    Attributes:
        evaluations: Evaluations until it was found, itself included.
        steps: Training steps of these.
        fitness: Its validation accuracy in the search.
        median: Median test accuracy of fresh trainings.
        name: What it is.
    """

    evaluations: int
    steps: int
    fitness: float
    median: float
    name: str


@dataclass(frozen=True)
class Outcome:
    """The result of one search.

    Attributes:
        task: Name of the recipe.
        method: One of `METHODS`.
        seed: Of the search.
        evaluations: Of the whole search.
        reused: Trees that were equal to one that had been evaluated.
        steps: Training steps of the whole search.
        quality: Median test accuracy of cross-entropy.
        bests: Best candidates in the order in which they were found.
    """

    task: str
    method: str
    seed: int
    evaluations: int
    reused: int
    steps: int
    quality: float
    bests: tuple[Best, ...]

    @property
    def wanted(self) -> float:
        """The quality that counts as reached."""
        return self.quality + ABOVE[self.task]

    @property
    def reached(self) -> Best | None:
        """The first best candidate that is worth the quality."""
        # An accuracy is a multiple of one image's share; a sum must not miss it by rounding.
        least = self.wanted - 1e-9
        return next((best for best in self.bests if best.median >= least), None)

    @property
    def final(self) -> float:
        """What the last best candidate is worth; 0 if nothing trained."""
        return self.bests[-1].median if self.bests else 0.0


def search(task: str, method: str, seed: int, folder: Path, data: Path) -> Outcome:
    """Search, and measure every best candidate by fresh trainings."""
    plain = load_recipe(find_recipe(Path(task)))
    recipe = METHODS[method](plain.changed(early_abort=ABORT, selection=None))
    recipe = recipe.changed(search=recipe.search.changed(seed=seed))
    kept = folder / f"{task}_{method.replace(', ', '_').replace(' ', '_')}_{seed}.trainings.jsonl"
    trainings = BatchedMLP(recipe, data, kept)
    study = trainings.search("benchmark")
    history = SearchHistory(study, recipe)
    trials = [t for t in history.trials if t.state in (TrialState.COMPLETE, TrialState.PRUNED)]
    bests = _measured(study, history.new_bests, trials, recipe, trainings)
    tasks = [_fresh(recipe, None, number) for number in range(5 * FRESH)]
    quality = _median(trainings.do(tasks))
    return Outcome(
        task, method, seed, len(trials), history.n_reused, _steps(trials, recipe), quality, bests
    )


def _measured(
    study: optuna.Study,
    new_bests: Sequence[FrozenTrial],
    trials: Sequence[FrozenTrial],
    recipe: Recipe,
    trainings: BatchedMLP,
) -> tuple[Best, ...]:
    tasks = [_fresh(recipe, (study, t), number) for t in new_bests for number in range(FRESH)]
    values = trainings.do(tasks)
    found = []
    for place, trial in enumerate(new_bests):
        before = [t for t in trials if t.number <= trial.number]
        median = _median(values[place * FRESH : (place + 1) * FRESH])
        loss = trial_loss(study, trial)
        theta = ", ".join(f"{value:.3g}" for value in trial.params.values())
        name = loss.formula if isinstance(loss, TreeLoss) else theta
        steps = _steps(before, recipe)
        found.append(Best(len(before), steps, trial.values[0], median, name))
    return tuple(found)


def _fresh(recipe: Recipe, of: tuple[optuna.Study, FrozenTrial] | None, number: int) -> Task:
    loss = cross_entropy(role=Role.REFERENCE)
    if of is not None:
        loss = compared_evolved_loss("best", "best", Role.EVOLVED, trial_loss(*of))
    return stage_task(recipe, loss, Stage.TEST, number, on_test_set=True)


def _steps(trials: Sequence[FrozenTrial], recipe: Recipe) -> int:
    whole = sum(trial.state == TrialState.COMPLETE for trial in trials)
    return whole * recipe.budget.full + (len(trials) - whole) * ABORT.at


def _median(values: Sequence[float | None]) -> float:
    """With diverged trainings as the worst."""
    return statistics.median(0.0 if value is None else value for value in values)


def read(folder: Path) -> list[Outcome]:
    """All outcomes that a folder holds."""
    file = folder / "outcomes.jsonl"
    return read_file(file) if file.exists() else []


def read_file(file: Path) -> list[Outcome]:
    """The outcomes of a file, one in each line."""
    contents = [json.loads(line) for line in file.read_text().splitlines()]
    return [
        Outcome(**content | {"bests": tuple(Best(**best) for best in content["bests"])})
        for content in contents
    ]


def run(arguments: argparse.Namespace) -> None:
    """Search what is missing."""
    folder = arguments.output
    folder.mkdir(parents=True, exist_ok=True)
    done = {(o.task, o.method, o.seed) for o in read(folder)}
    for seed in arguments.seeds:
        for task in ABOVE:
            for method in METHODS:
                if (task, method, seed) in done:
                    continue
                begin = time.monotonic()
                outcome = search(task, method, seed, folder, arguments.data_dir)
                with (folder / "outcomes.jsonl").open("a") as file:
                    file.write(json.dumps(asdict(outcome)) + "\n")
                reached = outcome.reached
                after = "never" if reached is None else f"after {reached.evaluations} evaluations"
                print(
                    f"{task}, {method}, seed {seed}: {outcome.wanted:.4f} {after}, "
                    f"{outcome.final:.4f} in the end, {outcome.evaluations} evaluations, "
                    f"{outcome.reused} reused ({time.monotonic() - begin:.0f} s)",
                    flush=True,
                )


def _row(task: str, method: str, same: Sequence[Outcome]) -> tuple[str, ...]:
    reached = [o.reached for o in same]
    finals = [o.final for o in same]
    deviation = statistics.stdev(finals) if len(finals) > 1 else 0.0
    return (
        task,
        method,
        f"{statistics.median(o.wanted for o in same):.4f}",
        f"{sum(r is not None for r in reached)} of {len(same)}",
        _spread([math.inf if r is None else r.evaluations for r in reached]),
        f"{statistics.fmean(finals):.4f} ({deviation:.4f})",
        f"{PAPER[method]:,}" if method in PAPER else "",
    )


HEADER = (
    "task",
    "search",
    "quality",
    "reached by",
    "evaluations until then",
    "accuracy in the end",
    "paper, MNIST",
)


def _spread(values: Sequence[float]) -> str:
    """Median and range; a search that never came there counts as infinite."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{_number(middle)} ({_number(low)} to {_number(high)})"


def _number(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:,.0f}"


def print_table(outcomes: Sequence[Outcome]) -> None:
    """Print a row for each task and method that has outcomes."""
    print(f"| {' | '.join(HEADER)} |")
    print("|" + "---|" * len(HEADER))
    for task in dict.fromkeys(o.task for o in outcomes):
        for method in METHODS:
            same = [o for o in outcomes if (o.task, o.method) == (task, method)]
            if same:
                print(f"| {' | '.join(_row(task, method, same))} |")


def main() -> None:
    """Measure, or print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=["run", "table"])
    parser.add_argument("--output", type=Path, required=True, help="folder of the results")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    arguments = parser.parse_args()
    if arguments.action == "table":
        print_table(read(arguments.output))
        return
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    run(arguments)


if __name__ == "__main__":
    main()
