"""Four processes search together. Kill any of them, start this again: the trials are the same."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import optuna
import optunahub
from optuna.distributions import FloatDistribution

# From the registry: optunahub.load_module("samplers/taylorglo_cmaes")
registry = str(Path(__file__).resolve().parents[2])
cmaes = optunahub.load_local_module("samplers/taylorglo_cmaes", registry_root=registry)

STUDY_NAME, STORAGE = "example", "sqlite:///taylorglo_cmaes.db"
SEARCH_SPACE = {
    "x": FloatDistribution(-5, 5),
    "lr": FloatDistribution(1e-5, 1e-1, log=True),
}


def objective(trial: optuna.Trial) -> float:
    x = trial.suggest_float("x", -5, 5)
    lr = trial.suggest_float("lr", 1e-5, 1e-1, log=True)
    return (x - 2) ** 2 + (lr / 1e-3 - 1) ** 2


def work() -> None:
    sampler = cmaes.TaylorGLOCmaEsSampler(SEARCH_SPACE, popsize=8, seed=0)
    study = optuna.load_study(study_name=STUDY_NAME, storage=STORAGE)
    sampler.optimize(study, objective, n_trials=160)


if __name__ == "__main__":
    study = optuna.create_study(study_name=STUDY_NAME, storage=STORAGE, load_if_exists=True)
    processes = [multiprocessing.Process(target=work) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    print(f"Best value {study.best_value:.2e} in {len(study.trials)} trials: {study.best_params}")
