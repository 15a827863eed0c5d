"""How well and how cheaply many workers search together, on test functions and a simulated clock.

    python benchmarks/search.py [--seeds N]

Evaluations and time until the first candidate at the target, for this package's sampler, Optuna's
CmaEsSampler, and the library cmaes in series.
"""

from __future__ import annotations

import argparse
import heapq
import math
import statistics
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import cmaes
import numpy as np
import optuna

from optuna_taylorglo.evolution.sampler import THETA_NAMES, TaylorGLOSampler
from optuna_taylorglo.evolution.scheduler import GenerationScheduler

POPSIZE, SIGMA, BOUND, DIMENSION = 28, 1.2, 1000.0, 8
LIMIT = 20_000

Function = Callable[[Sequence[float]], float]


def ellipsoid(x: Sequence[float]) -> float:
    """Condition number 10⁶, optimum at (1, …, 1)."""
    return sum(10 ** (6 * i / (DIMENSION - 1)) * (v - 1) ** 2 for i, v in enumerate(x))


PROBLEMS: dict[str, tuple[Function, float, float]] = {
    # function, standard deviation of the noise on what the search sees, target of the true value
    "ellipsoid": (ellipsoid, 0.0, 1e-6),
    "noisy ellipsoid": (ellipsoid, 2.0, 10.0),
}


class Judge:
    """Evaluates candidates, notes the first one at the target, and tells times."""

    def __init__(self, problem: str, seed: int) -> None:
        self._function, self._noise, self._target = PROBLEMS[problem]
        self._rng = np.random.default_rng([seed, 1])
        self.evaluations = 0
        self.reached = False

    def __call__(self, x: Sequence[float]) -> float:
        self.evaluations += 1
        true = self._function(x)
        self.reached = self.reached or true <= self._target
        return true + self._noise * float(self._rng.standard_normal())

    def duration(self) -> float:
        """Time of one evaluation; trainings differ by some ten per cent."""
        return float(self._rng.lognormal(0.0, 0.2))


Result = tuple[int, float, float]  # evaluations, simulated time, share of evaluations not used


def serial_cmaes(problem: str, seed: int) -> Result:
    judge = Judge(problem, seed)
    optimizer = cmaes.CMA(mean=np.zeros(DIMENSION), sigma=SIGMA, population_size=POPSIZE, seed=seed)
    clock = 0.0
    while not judge.reached and judge.evaluations < LIMIT:
        told = []
        for _ in range(POPSIZE):
            x = optimizer.ask()
            told.append((x, judge(x)))
            clock += judge.duration()
            if judge.reached:
                break
        else:
            optimizer.tell(told)
    return judge.evaluations, clock, 0.0


def simulate(
    n_workers: int,
    judge: Judge,
    take: Callable[[], tuple[Any, Sequence[float]] | None],
    give: Callable[[Any, float], None],
) -> float:
    """Run workers on a simulated clock until the target is reached.

    A worker that finds nothing to do waits for the next worker to finish.
    """
    clock, order, idle = 0.0, 0, n_workers
    busy: list[tuple[float, int, Any, float]] = []
    while not judge.reached and judge.evaluations < LIMIT:
        while idle and (taken := take()) is not None:
            trial, x = taken
            heapq.heappush(busy, (clock + judge.duration(), order, trial, judge(x)))
            idle, order = idle - 1, order + 1
        clock, _, trial, value = heapq.heappop(busy)
        give(trial, value)
        idle += 1
    # The evaluation that reached the target is done when its worker is.
    return max((time for time, *_ in busy), default=clock)


def ours(problem: str, seed: int, n_workers: int) -> Result:
    judge = Judge(problem, seed)
    sampler = TaylorGLOSampler(
        names=THETA_NAMES, popsize=POPSIZE, sigma=SIGMA, seed=seed, bound=BOUND
    )
    study = optuna.create_study(sampler=sampler)
    scheduler = GenerationScheduler(study)

    def take() -> tuple[Any, Sequence[float]] | None:
        trial = scheduler.claim()
        return None if trial is None else (trial, sampler.suggest(trial))

    clock = simulate(n_workers, judge, take, scheduler.finish)
    log = sampler.read(study)
    told = len(log.finished) * POPSIZE
    pending = sum(slot.result is not None for slot in log.current_slots())
    complete = len(study.get_trials(deepcopy=False, states=[optuna.trial.TrialState.COMPLETE]))
    return judge.evaluations, clock, 1 - (told + pending) / complete if complete else 0.0


def stock(problem: str, seed: int, n_workers: int) -> Result:
    """Optuna's sampler, started as fairly as it can be: same mean and σ, no wasted first trial."""
    judge = Judge(problem, seed)
    distributions = {
        name: optuna.distributions.FloatDistribution(-BOUND, BOUND) for name in THETA_NAMES
    }

    class FixedSpace(optuna.samplers.CmaEsSampler):
        def infer_relative_search_space(self, study: Any, trial: Any) -> Any:
            return distributions

    sampler = FixedSpace(
        x0=dict.fromkeys(THETA_NAMES, 0.0),
        sigma0=SIGMA / (2 * BOUND),
        n_startup_trials=0,
        popsize=POPSIZE,
        seed=seed,
    )
    study = optuna.create_study(sampler=sampler)

    def take() -> tuple[Any, Sequence[float]]:
        trial = study.ask(distributions)
        return trial, [trial.params[name] for name in THETA_NAMES]

    clock = simulate(n_workers, judge, take, study.tell)
    sizes: dict[int, int] = {}
    for trial in study.get_trials(deepcopy=False, states=[optuna.trial.TrialState.COMPLETE]):
        generation = trial.system_attrs["cma:generation"]
        sizes[generation] = sizes.get(generation, 0) + 1
    ignored = sum(max(0, size - POPSIZE) for size in sizes.values())
    return judge.evaluations, clock, ignored / sum(sizes.values())


def spread(values: Sequence[float], digits: int = 0) -> str:
    return f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"


def search_table(n_seeds: int) -> None:
    print(f"λ = {POPSIZE}, {DIMENSION} dimensions, {n_seeds} seeds, mean ± standard deviation\n")
    print("| problem | search | workers | evaluations to target | against cmaes | time | unused |")
    print("|---|---|---|---|---|---|---|")
    runs: list[tuple[str, int, Callable[[str, int], Result]]] = [
        ("serial cmaes", 1, serial_cmaes),
    ]
    for n in (1, 8, 28):
        runs.append(("ours", n, lambda problem, seed, n=n: ours(problem, seed, n)))
        runs.append(("CmaEsSampler", n, lambda problem, seed, n=n: stock(problem, seed, n)))
    for problem in PROBLEMS:
        reference = math.nan
        for name, n, run in runs:
            results = [run(problem, seed) for seed in range(n_seeds)]
            evaluations, clocks, unused = zip(*results, strict=True)
            mean = statistics.mean(evaluations)
            reference = mean if name == "serial cmaes" else reference
            print(
                f"| {problem} | {name} | {n} | {spread(evaluations)} "
                f"| {100 * (mean / reference - 1):+.1f} % | {spread(clocks)} "
                f"| {100 * statistics.mean(unused):.1f} % |",
                flush=True,
            )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    search_table(parser.parse_args().seeds)


if __name__ == "__main__":
    main()
