from __future__ import annotations

import math
from typing import Any

import optuna
import pytest

from optuna_taylorglo.pruner import EarlyAbortPruner

NAN, INF = math.nan, math.inf


def should_prune(reports: dict[int, float], **settings: Any) -> bool:
    study = optuna.create_study(pruner=EarlyAbortPruner(**settings), direction="maximize")
    trial = study.ask()
    for step, value in reports.items():
        trial.report(value, step)
    return trial.should_prune()


@pytest.mark.parametrize(
    ("reports", "pruned"),
    [
        ({}, False),
        ({9: 0.0}, False),
        ({10: 0.1499}, True),
        ({10: 0.15}, False),
        ({9: 0.0, 10: 0.5}, False),
        ({10: 0.5, 11: 0.0}, False),
        ({10: 0.1, 11: 0.9}, True),
        # Reports every four steps: the first one from step 10 on decides.
        ({4: 0.1, 8: 0.1, 12: 0.1}, True),
        ({4: 0.1, 8: 0.1, 12: 0.2, 16: 0.1}, False),
        ({1: NAN}, True),
        ({1: INF}, True),
        ({1: 0.9, 2: -INF}, True),
        ({20: 0.9, 21: NAN}, True),
    ],
)
def test_rule(reports: dict[int, float], pruned: bool) -> None:
    assert should_prune(reports) == pruned


def test_settings_are_used() -> None:
    assert should_prune({3: 0.4}, threshold=0.5, step=3)
    assert not should_prune({2: 0.4}, threshold=0.5, step=3)


def test_pruned_trials_end_as_pruned_in_a_study() -> None:
    def objective(trial: optuna.Trial) -> float:
        value = 0.1 if trial.number == 1 else 0.9
        for step in range(12):
            trial.report(value, step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return value

    study = optuna.create_study(pruner=EarlyAbortPruner(), direction="maximize")
    study.optimize(objective, n_trials=3)
    states = [trial.state.name for trial in study.trials]
    assert states == ["COMPLETE", "PRUNED", "COMPLETE"]
    assert study.trials[1].last_step == 10


@pytest.mark.parametrize(
    ("field", "value"),
    [("threshold", NAN), ("threshold", INF), ("threshold", True), ("step", -1), ("step", 1.5)],
)
def test_bad_arguments_are_named(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{field} must be .*, got {value}"):
        EarlyAbortPruner(**{field: value})
