"""The simulated searches and clocks of the benchmark are those of the real scheduler."""

import heapq
import sys

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState
from searches import ROOT

from optuna_taylorglo.attributes import STOPPED
from optuna_taylorglo.search.pruners import FallingBehindPruner
from optuna_taylorglo.search.sampler import TaylorGLOSampler
from optuna_taylorglo.search.scheduler import GenerationScheduler

sys.path.insert(0, str(ROOT / "benchmarks"))


@pytest.fixture(scope="module")
def overlap():
    pytest.importorskip("cma")
    return pytest.importorskip("overlap")


@pytest.mark.parametrize("n_overlapping", [0, 4])
@pytest.mark.parametrize("n_workers", [1, 5, 24])
def test_workers_on_a_simulated_clock_take_as_long(overlap, n_overlapping, n_workers):
    """One worker more or less, or another order of slots, and the times differ."""
    n_generations, popsize = 3, overlap.POPSIZE
    limit = n_generations * popsize
    search, state = overlap.search("noisy ellipsoid", 0, n_overlapping, limit=limit)
    durations = [evaluation.duration for evaluation in search]
    function, noise, _ = overlap.PROBLEMS["noisy ellipsoid"]
    dice = np.random.default_rng([0, 1])
    noises = []
    for _ in durations:
        noises.append(noise * dice.standard_normal())
        dice.lognormal()
    study = optuna.create_study(
        sampler=TaylorGLOSampler(
            popsize=popsize, sigma=overlap.SIGMA, bound=overlap.BOUND, overlap=n_overlapping
        ),
        pruner=FallingBehindPruner(
            popsize=popsize, keep=overlap.KEEP, step=1, sign=-1, overlap=n_overlapping
        ),
    )
    scheduler = GenerationScheduler(study, n_generations=n_generations)
    clock, idle, busy, finished = 0.0, n_workers, [], {}
    while not scheduler.over:
        while idle and (trial := scheduler.claim()) is not None:
            heapq.heappush(busy, (clock + durations[trial.number], trial.number, trial))
            idle -= 1
        if not busy:
            break
        clock, number, trial = heapq.heappop(busy)
        idle += 1
        finished[number] = clock
        value = function(scheduler.sampler.suggest(trial)) + noises[number]
        trial.report(value, 1)
        if trial.should_prune():
            trial.set_user_attr(STOPPED, True)
            scheduler.finish(trial, state=TrialState.PRUNED)
        else:
            scheduler.finish(trial, value)
    expected = overlap.finish_times(
        durations, popsize=popsize, overlap=n_overlapping, n_workers=n_workers
    )
    assert [finished[number] for number in range(len(durations))] == expected
    stops = sum(trial.state == TrialState.PRUNED for trial in study.trials)
    assert 0 < stops < len(durations)
    assert scheduler.sampler.search_state(study)[-1] == state
