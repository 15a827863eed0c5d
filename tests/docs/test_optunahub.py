"""The OptunaHub package: the same trials for any number of processes, kills and restarts."""

import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import Study
from optuna.trial import TrialState
from searches import ROOT

from optuna_taylorglo.attributes import GENERATION, INDEX, STALE
from optuna_taylorglo.study.optuna_private import storage_of
from optuna_taylorglo.study.storages import RetryingStorage

optunahub = pytest.importorskip("optunahub")
REGISTRY = ROOT / "docs" / "optunahub" / "package"
FOLDER = REGISTRY / "samplers" / "taylorglo_cmaes"
Sampler: Any = optunahub.load_local_module(
    "samplers/taylorglo_cmaes", registry_root=str(REGISTRY)
).TaylorGLOCmaEsSampler

SPACE: dict[str, BaseDistribution] = {
    "x": FloatDistribution(-5, 5),
    "lr": FloatDistribution(1e-5, 1e-1, log=True),
    "n": IntDistribution(1, 100),
    "step": FloatDistribution(0, 2e6, step=1e5),
}
START = {"x": -4.0, "lr": 1e-4}


def objective(trial: optuna.Trial) -> float:
    x = trial.suggest_float("x", -5, 5)
    lr = trial.suggest_float("lr", 1e-5, 1e-1, log=True)
    n, step = trial.suggest_int("n", 1, 100), trial.suggest_float("step", 0, 2e6, step=1e5)
    return x**2 + math.log10(lr / 1e-3) ** 2 + (n / 50 - 1) ** 2 + (step / 1e6 - 1) ** 2


def evaluated(study: Study) -> list[tuple[int, int, dict[str, Any], float | None]]:
    """Generation, index, parameters and value of the complete trials, in order."""
    trials = study.get_trials(states=[TrialState.COMPLETE])
    found = [(t.user_attrs[GENERATION], t.user_attrs[INDEX], t.params, t.value) for t in trials]
    return sorted(found, key=lambda each: each[:2])


def serial(n_trials: int = 40, **arguments: Any) -> Study:
    study = optuna.create_study(sampler=Sampler(SPACE, **{"popsize": 8} | arguments))
    study.optimize(objective, n_trials=n_trials)
    return study


def test_the_search_starts_at_x0_in_the_units_of_each_range_and_finds_the_optimum() -> None:
    trials = serial(20, sigma0=1e-9, x0=START, popsize=20).trials
    assert all(trial.params["x"] == pytest.approx(-4.0) for trial in trials)
    assert all(trial.params["lr"] == pytest.approx(1e-4) for trial in trials)
    assert {(trial.params["n"], trial.params["step"]) for trial in trials} == {(51, 1e6)}
    logs = [math.log10(t.params["lr"]) for t in serial(200, popsize=200).trials]
    mean = sum(logs) / 200
    assert mean == pytest.approx(-3, abs=0.15)
    # A sixth of four decades.
    assert sum((each - mean) ** 2 for each in logs) / 200 == pytest.approx((4 / 6) ** 2, rel=0.25)
    best = serial(400, x0=START).best_trial
    assert best.value is not None
    assert best.value < 0.01
    assert Sampler(SPACE).policy.popsize == 8  # 4 + floor(3 ln 4), as CmaEsSampler


@pytest.mark.parametrize("storage", ["memory", "sqlite", "journal"])
def test_restarts_and_exceptions_change_no_trial(tmp_path: Path, storage: str) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}" if storage == "sqlite" else None
    place: Any = url
    if storage == "journal":
        place = JournalStorage(JournalFileBackend(str(tmp_path / "journal.log")))
    study = optuna.create_study(storage=place)
    calls: list[bool] = []

    def fails_at_times(trial: optuna.Trial) -> float:
        calls.append(isinstance(storage_of(trial.study), RetryingStorage))
        if len(calls) in (3, 12):
            raise ZeroDivisionError
        return objective(trial)

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            Sampler(SPACE, popsize=8).optimize(study, fails_at_times, 16)
    Sampler(SPACE, popsize=8).optimize(study, fails_at_times, 15)
    assert len(calls) == 18  # a whole generation
    Sampler(SPACE, popsize=8).optimize(study, fails_at_times, 40)
    assert evaluated(study) == evaluated(serial())
    # A plain SQLite storage may let two processes claim one trial.
    assert set(calls) == {storage == "sqlite"}


def test_caught_exceptions_and_pruned_trials_rank_below_the_others() -> None:
    seen: list[int] = []

    def mixed(trial: optuna.Trial) -> float:
        place = (trial.user_attrs[GENERATION], trial.user_attrs[INDEX])
        if place == (0, 1):
            seen.append(trial.number)
            raise ZeroDivisionError
        if place == (0, 2):
            raise optuna.TrialPruned
        return float("nan") if place == (0, 3) else objective(trial)

    study = optuna.create_study()
    Sampler(SPACE, popsize=8, max_failures=1).optimize(study, mixed, 16, catch=ZeroDivisionError)
    assert len(seen) == 2
    states = [trial.state for trial in study.trials]
    assert [states.count(state) for state in (TrialState.FAIL, TrialState.PRUNED)] == [2, 2]
    assert len(evaluated(study)) == 13
    worst = optuna.create_study(sampler=Sampler(SPACE, popsize=8))
    worst.optimize(lambda t: objective(t) + 1e9 * t.number * (t.number < 4), 9)
    assert evaluated(study)[5][2] == worst.trials[8].params


WORKER = """
import sys, time
sys.path.insert(0, {folder!r})
from test_optunahub import SPACE, Sampler, objective
import optuna

def noted(trial):
    print("begun", flush=True)
    time.sleep(float(sys.argv[1]))
    return objective(trial)

study = optuna.load_study(study_name="study", storage={url!r})
Sampler(SPACE, popsize=8).optimize(study, noted, 40)
"""


@pytest.mark.pages
def test_four_processes_of_which_one_is_killed_evaluate_the_trials_of_one(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    study = optuna.create_study(study_name="study", storage=url)
    code = WORKER.format(folder=str(Path(__file__).parent), url=url)
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "helpers")])

    def start(seconds: float) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", code, str(seconds)],
            env=os.environ | {"PYTHONPATH": path},
            stdout=subprocess.PIPE,
            text=True,
        )

    hangs = start(600)
    assert hangs.stdout is not None
    assert hangs.stdout.readline() == "begun\n"
    others = [start(0.01) for _ in range(3)]
    while len(evaluated(study)) < 7:  # all of the first generation but the one that hangs
        time.sleep(0.05)
    hangs.kill()
    for each in others:
        each.communicate(timeout=120)
    hangs.communicate()
    assert [each.returncode for each in others] == [0, 0, 0]
    assert sum(STALE in trial.user_attrs for trial in study.trials) == 1
    assert evaluated(study) == evaluated(serial())


@pytest.mark.pages
def test_the_example_runs_without_importing_torch(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(FOLDER / "example.py")],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONPROFILEIMPORTTIME": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    imported = set(re.findall(r"\| +([\w.]+)$", done.stderr, re.MULTILINE))
    assert "optuna_taylorglo.evolution.scheduler" in imported
    assert "torch" not in imported
    assert float(re.findall(r"Best value (\S+)", done.stdout)[0]) < 0.01
    study = optuna.load_study(
        study_name="example", storage=f"sqlite:///{tmp_path / 'taylorglo_cmaes.db'}"
    )
    assert len(evaluated(study)) == 160


@pytest.mark.pages
def test_the_code_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(package: str) -> Any:
        return optunahub.load_local_module(package, registry_root=str(REGISTRY))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(optunahub, "load_module", load)
    (code,) = re.findall(r"```python\n(.*?)```", (FOLDER / "README.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["study"].best_value < 0.1


@pytest.mark.parametrize(
    ("space", "arguments", "message"),
    [
        ({}, {}, r"search_space must map names to distributions, got \{\}"),
        (
            {"c": CategoricalDistribution("ab")},
            {},
            "search_space must give 'c' a FloatDistribution",
        ),
        ({"x": FloatDistribution(1, 1)}, {}, "with low < high, got FloatDistribution"),
        (SPACE, {"sigma0": 2.0}, r"sigma0 must be a share of the ranges, in \(0, 1\], got 2.0"),
        (SPACE, {"sigma0": 0}, "sigma0 must be"),
        (SPACE, {"x0": {"y": 1.0}}, "x0 has 'y'; the parameters are x, lr, n, step"),
        (SPACE, {"x0": {"lr": 0.0}}, "x0 has lr 0.0, which is not in FloatDistribution"),
        (SPACE, {"popsize": 1}, "popsize must be an integer of at least 2, got 1"),
        (SPACE, {"seed": -1}, "seed must be an integer of at least 0, got -1"),
    ],
)
def test_bad_arguments_are_refused(space: Any, arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sampler(space, **arguments)


def test_studies_and_objectives_that_do_not_fit_are_refused() -> None:
    study = optuna.create_study()
    study.add_trial(optuna.create_trial(value=1.0))
    with pytest.raises(ValueError, match="has 1 trials of another sampler"):
        Sampler(SPACE).optimize(study, objective, 8)
    study = optuna.create_study()
    Sampler(SPACE).optimize(study, objective, 8)
    with pytest.raises(ValueError, match="begun with other arguments"):
        Sampler(SPACE, seed=1).optimize(study, objective, 16)
    with pytest.raises(ValueError, match="n_trials must be an integer of at least 1, got 0"):
        Sampler(SPACE).optimize(study, objective, 0)
    for suggest, message in (
        (lambda t: t.suggest_float("y", 0, 1), "suggests y from .*; search_space has only x, lr"),
        (lambda t: t.suggest_float("x", 4.9, 5), "suggests x from .*; search_space has Float"),
    ):
        with pytest.raises(ValueError, match=message):
            optuna.create_study(sampler=Sampler(SPACE)).optimize(suggest, n_trials=1)


def test_enqueued_trials_count_if_they_are_in_range(caplog: pytest.LogCaptureFixture) -> None:
    study = optuna.create_study()
    study.enqueue_trial({"x": 1.5})
    study.enqueue_trial({"x": 7.0})
    Sampler(SPACE).optimize(study, objective, 8)
    xs = [params["x"] for _, _, params, _ in evaluated(study)]
    assert xs[0] == 1.5
    assert 7.0 not in xs
    assert len(xs) == 8
