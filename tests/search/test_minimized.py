"""A search that minimizes m is the one that maximizes -m, bit for bit, and says so."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.study import Study
from optuna.trial import Trial, TrialState
from searches import load, results, small_recipe
from trainings import cpu

from optuna_taylorglo import worker
from optuna_taylorglo.attributes import N_CLASSES, STOPPED
from optuna_taylorglo.errors import StudyError
from optuna_taylorglo.process import USAGE
from optuna_taylorglo.recipes.load import load_recipe
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.search.candidates import make_pruner, make_sampler
from optuna_taylorglo.search.history import (
    SearchHistory,
    attach_recipe,
    direction_of,
    ranked_trials,
    winner,
)
from optuna_taylorglo.search.objective import Objective
from optuna_taylorglo.search.pruners import EarlyAbortPruner
from optuna_taylorglo.search.sampler import TaylorGLOSampler
from optuna_taylorglo.search.scheduler import GenerationScheduler
from optuna_taylorglo.study.open import create_study
from optuna_taylorglo.training.training import Training

MODES = {"min": 1, "max": -1}


def searched(recipe: Recipe, evaluation: Callable[[Study], Callable[[Trial], float]]) -> Study:
    """A whole search in memory; every eleventh trial is lost once."""
    study = optuna.create_study(direction=direction_of(recipe))
    attach_recipe(study, recipe)
    study.set_user_attr(N_CLASSES, 10)
    study.sampler = make_sampler(recipe, 10)
    study.pruner = make_pruner(recipe, lambda amount, unit: amount)
    scheduler = GenerationScheduler(study, n_generations=recipe.search.n_generations)
    evaluate = evaluation(study)
    while (trial := scheduler.claim()) is not None:
        try:
            value = evaluate(trial)
        except optuna.TrialPruned:
            scheduler.finish(trial, state=TrialState.PRUNED)
        else:
            if trial.number % 11 == 5:
                scheduler.finish(trial, state=TrialState.FAIL)
            else:
                scheduler.finish(trial, value)
    return study


def synthetic_search(folder: Path, mode: str) -> SearchHistory:
    """A search by a known error, minimized, or maximized with its sign turned round."""
    sign = MODES[mode]
    recipe = load_recipe(
        small_recipe(
            folder / f"{mode}.yaml",
            fitness={"metric": "val_error", "mode": mode},
            early_abort={"threshold": 30.0 * sign},
            search={"popsize": 6, "n_generations": 5, "filter": "none"},
        )
    )

    def evaluation(study: Study) -> Callable[[Trial], float]:
        def evaluate(trial: Trial) -> float:
            parameters = study.sampler.suggest(trial)  # type: ignore[attr-defined]
            error = sum((p - 0.5) ** 2 for p in parameters)
            for step in (4, 5):
                trial.report(sign * error * 10 / step, step)
                if trial.should_prune():
                    if study.pruner.reason == "stop":  # type: ignore[attr-defined]
                        trial.set_user_attr(STOPPED, True)
                    raise optuna.TrialPruned
            return sign * error

        return evaluate

    study = searched(recipe, evaluation)
    assert winner(study) == ranked_trials(study)[0]
    return SearchHistory(study, recipe)


def test_a_synthetic_search_does_not_depend_on_the_sign(tmp_path: Path) -> None:
    down, up = (synthetic_search(tmp_path, mode) for mode in MODES)
    assert down.finished
    assert [t.params for t in down.trials] == [t.params for t in up.trials]
    assert [t.state for t in down.trials] == [t.state for t in up.trials]
    # All that may become of a candidate was seen.
    assert {t.state for t in down.trials} == {
        TrialState.COMPLETE,
        TrialState.PRUNED,
        TrialState.FAIL,
    }
    assert any(t.user_attrs.get(STOPPED) for t in down.trials)
    for history, best in ((down, min), (up, max)):
        assert history.best is not None
        assert history.best.value == best(t.value for t in history.ranked)
        assert [c.fitness for c in history.best_of_each] == [
            best(g.values) for g in history.generations
        ]
    assert [t.number for t in down.ranked] == [t.number for t in up.ranked]
    assert [t.number for t in down.new_bests] == [t.number for t in up.new_bests]


def test_real_trainings_do_not_depend_on_the_sign(tmp_path: Path) -> None:
    found: dict[str, Any] = {}
    for mode, metric in (("min", "val_nll"), ("max", "val_log_likelihood")):
        path = small_recipe(
            tmp_path / f"{mode}.yaml",
            model={"class_path": "own_nets.LogsLikelihood", "init_args": {}},
            fitness={"metric": metric, "mode": mode},
            early_abort={"threshold": 2.31 * MODES[mode]},
        )
        training = Training(load_recipe(path), cpu(tmp_path, "own_nets"))

        def evaluation(study: Study, training: Training = training) -> Objective:
            assert isinstance(study.sampler, TaylorGLOSampler)
            return Objective(training, study.sampler)

        found[mode] = results(searched(training.recipe, evaluation))
    assert found["min"].keys() == found["max"].keys()
    for place, (params, state, value, reports) in found["min"].items():
        turned = found["max"][place]
        assert (params, state) == turned[:2]
        assert value == -turned[2]
        assert reports == {step: -report for step, report in turned[3].items()}
    states = {outcome[1] for outcome in found["min"].values()}
    assert states == {TrialState.COMPLETE, TrialState.PRUNED}


@pytest.mark.parametrize(("mode", "there"), [("min", "maximize"), ("max", "minimize")])
def test_a_study_of_the_other_direction_is_refused_and_stays_without_recipe(
    tmp_path: Path,
    sqlite_url: str,
    caplog: pytest.LogCaptureFixture,
    mode: str,
    there: Any,
) -> None:
    create_study("s", sqlite_url, direction=there)
    metric = "val_nll" if mode == "min" else "val_accuracy"
    recipe = small_recipe(tmp_path / "r.yaml", fitness={"metric": metric, "mode": mode})
    words = ["--study-name", "s", "--storage", sqlite_url, "--recipe", str(recipe)]
    assert worker.main([*words, "--data-dir", str(tmp_path)]) == USAGE
    right = "minimize" if mode == "min" else "maximize"
    assert f"has direction {there}, but" in caplog.text
    assert f"optuna create-study --direction {right} --study-name s" in caplog.text
    with pytest.raises(StudyError, match="no recipe yet"):
        attach_recipe(load(sqlite_url, "s"), None)


@pytest.mark.parametrize(("value", "pruned"), [(0.4, False), (0.5, False), (0.6, True)])
def test_above_the_threshold_is_too_bad_where_smaller_is_better(value: float, pruned: bool) -> None:
    study = optuna.create_study(pruner=EarlyAbortPruner(0.5, 3, sign=-1))
    trial = study.ask()
    trial.report(value, 3)
    assert trial.should_prune() == pruned
    trial.report(math.nan, 4)
    assert trial.should_prune()
