from __future__ import annotations

import math
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from optuna_taylorglo.attributes import GENERATION, INDEX
from optuna_taylorglo.search.pruners import EarlyAbortPruner, EarlyEndPruner, FallingBehindPruner

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


COMPLETE, PRUNED, FAIL = TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL
PACE = [(COMPLETE, 0.8), (COMPLETE, 0.6), (PRUNED, 0.4), (PRUNED, None)]
"""What four candidates of a generation had reached at step 5."""


def falls_behind(
    value: float,
    before: list[tuple[TrialState, float | None]],
    generation: int = 1,
    index: int = 0,
    **changes: Any,
) -> bool:
    """Whether a candidate with this value at step 5 is stopped by the pace of generation 0."""
    study = optuna.create_study(
        pruner=FallingBehindPruner(**({"popsize": 4, "keep": 0.5, "step": 5} | changes)),
        direction="maximize",
    )
    for other, (state, report) in enumerate(before):
        study.add_trial(
            optuna.create_trial(
                state=state,
                value=0.9 if state == COMPLETE else None,
                user_attrs={GENERATION: 0, INDEX: other % 4},
                intermediate_values={} if report is None else {5: report, 9: 1.0},
            )
        )
    trial = study.ask()
    trial.set_user_attr(GENERATION, generation)
    trial.set_user_attr(INDEX, index)
    trial.report(0.0, 4)
    assert not trial.should_prune()
    trial.report(value, 5)
    return trial.should_prune()


@pytest.mark.parametrize(
    ("value", "keep", "stopped"),
    [
        (0.59, 0.5, True),
        (0.6, 0.5, False),
        (0.79, 0.25, True),
        (0.39, 0.75, True),
        (0.4, 0.75, False),
        # The fourth of four had no report: nobody is slower than that.
        (0.0, 0.9, False),
    ],
)
def test_pace_is_that_of_the_generation_before(value: float, keep: float, stopped: bool) -> None:
    assert falls_behind(value, PACE, keep=keep) == stopped


@pytest.mark.parametrize("generation", [0, 1, 2, 3])
@pytest.mark.parametrize("index", [0, 1, 2, 3])
def test_pace_of_a_candidate_that_did_not_wait_is_that_of_the_generation_before(
    generation: int, index: int
) -> None:
    assert falls_behind(0.0, PACE, generation, index, overlap=2) == (
        generation == (2 if index < 2 else 1)
    )
    assert falls_behind(0.0, PACE, generation, index) == (generation == 1)


def test_an_unfinished_or_missing_generation_sets_no_pace() -> None:
    assert not falls_behind(0.0, [])
    assert not falls_behind(0.0, PACE[:1])


@pytest.mark.parametrize(("value", "stopped"), [(0.59, True), (0.6, False)])
def test_where_generations_differ_in_size_the_share_is_of_those_that_were_evaluated(
    value: float, stopped: bool
) -> None:
    """The better half of four is two, of three it is two, of one it is one."""
    assert falls_behind(value, PACE, popsize=None) == stopped
    assert falls_behind(value, PACE[:3], popsize=None) == stopped
    assert falls_behind(value, PACE[1:2], popsize=None) == stopped
    assert not falls_behind(0.0, [], popsize=None)


def test_lost_trials_set_no_pace_and_attempts_of_one_candidate_count_once() -> None:
    assert falls_behind(0.59, [*PACE, (FAIL, 0.0)])
    assert not falls_behind(0.6, [*PACE, (FAIL, 1.0), (FAIL, 1.0)])
    # A second attempt at candidate 0, which was slower: its best attempt counts.
    assert falls_behind(0.59, [*PACE, (PRUNED, 0.1)])
    assert not falls_behind(0.6, [*PACE, (PRUNED, 0.7)])


@pytest.mark.parametrize("keep", [0.0, 1.0, -0.5, NAN])
def test_bad_share_is_named(keep: float) -> None:
    with pytest.raises(ValueError, match="keep must lie between 0 and 1"):
        FallingBehindPruner(popsize=4, keep=keep, step=5)


@pytest.mark.parametrize(("abort", "stop"), [(0.5, 0.0), (0.0, 0.5), (0.5, 0.5), (0.0, 0.0)])
def test_either_reason_ends_a_training(abort: float, stop: float) -> None:
    pruner = EarlyEndPruner(EarlyAbortPruner(abort, 3), EarlyAbortPruner(stop, 3))
    trial = optuna.create_study(pruner=pruner).ask()
    trial.report(0.4, 3)
    assert trial.should_prune() == (0.5 in (abort, stop))
