"""CMA-ES of the OptunaHub package against Optuna's own: trials that coincide, and evaluations.

Trials coincide if the k-th complete one has the same parameters and value with 1 and 4 processes.
Evaluations are those of a serial search until 1e-6 (sphere) or 1e-3 (Rosenbrock), as median and
quartiles.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import optuna
import optunahub
from optuna.distributions import FloatDistribution
from optuna.samplers import BaseSampler, CmaEsSampler
from optuna.study import MaxTrialsCallback, Study

from optuna_taylorglo.attributes import GENERATION, INDEX

REGISTRY = Path(__file__).resolve().parents[1] / "docs" / "optunahub" / "package"
N, LOW, HIGH = 5, -5.0, 5.0
SPACE = {f"x{i}": FloatDistribution(LOW, HIGH) for i in range(N)}
TARGETS = {"sphere": 1e-6, "rosenbrock": 1e-3}
SAMPLERS = ("CmaEsSampler", "TaylorGLOCmaEsSampler")


def function(name: str, trial: optuna.Trial) -> float:
    x = [trial.suggest_float(name, LOW, HIGH) for name in SPACE]
    if name == "sphere":
        return sum((each - 1) ** 2 for each in x)
    return sum(100 * (b - a * a) ** 2 + (1 - a) ** 2 for a, b in pairwise(x))


def make(sampler: str, seed: int) -> BaseSampler:
    if sampler == "CmaEsSampler":
        return CmaEsSampler(seed=seed)
    package = optunahub.load_local_module("samplers/taylorglo_cmaes", registry_root=str(REGISTRY))
    return package.TaylorGLOCmaEsSampler(SPACE, seed=seed)


def work(name: str, seed: int, url: str, n_trials: int) -> None:
    """One process of several."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)

    def objective(trial: optuna.Trial) -> float:
        time.sleep(0.02)
        return function("sphere", trial)

    sampler = make(name, seed)
    study = optuna.load_study(study_name="study", storage=url, sampler=sampler)
    if name == "CmaEsSampler":
        study.optimize(objective, callbacks=[MaxTrialsCallback(n_trials)])
    else:
        sampler.optimize(study, objective, n_trials)


def run(sampler: str, seed: int, n_processes: int, n_trials: int) -> Study:
    url = f"sqlite:///{tempfile.mkdtemp()}/study.db"
    study = optuna.create_study(study_name="study", storage=url)
    context = multiprocessing.get_context("spawn")
    args = (sampler, seed, url, n_trials)
    processes = [context.Process(target=work, args=args) for _ in range(n_processes)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return study


def in_order(study: Study) -> list[optuna.trial.FrozenTrial]:
    """Complete trials by generation and index, which CmaEsSampler does not have, then by number."""
    trials = study.get_trials(states=[optuna.trial.TrialState.COMPLETE])
    return sorted(trials, key=lambda t: [t.user_attrs.get(key, 0) for key in (GENERATION, INDEX)])


def coinciding(sampler: str, seed: int, n_trials: int) -> int:
    serial, parallel = (in_order(run(sampler, seed, n, n_trials))[:n_trials] for n in (1, 4))
    pairs = zip(serial, parallel, strict=True)
    return sum((a.params, a.value) == (b.params, b.value) for a, b in pairs)


def evaluations(sampler: str, seed: int, name: str, limit: int = 8000) -> int:
    """Evaluations of a serial search until the target is reached."""
    study = optuna.create_study(sampler=make(sampler, seed))

    def stop(study: Study, trial: optuna.trial.FrozenTrial) -> None:
        if trial.value is not None and trial.value <= TARGETS[name]:
            study.stop()

    study.optimize(lambda trial: function(name, trial), n_trials=limit, callbacks=[stop])
    return len(study.trials)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="the first 5 for processes")
    parser.add_argument("--n-trials", type=int, default=200)
    given = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    seeds = range(given.seeds)
    print(f"| sampler | trials of {given.n_trials} that coincide | sphere | Rosenbrock |")
    print("|---|---|---|---|")
    for sampler in SAMPLERS:
        same = ", ".join(str(coinciding(sampler, seed, given.n_trials)) for seed in seeds[:5])
        row = [sampler, same]
        for name in TARGETS:
            counts = [evaluations(sampler, seed, name) for seed in seeds]
            low, middle, high = statistics.quantiles(counts, n=4)
            row.append(f"{middle:.0f} ({low:.0f}–{high:.0f})")
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
