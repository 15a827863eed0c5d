import math

import optuna
import pytest
from optuna.trial import TrialState

from optuna_taylorglo.attributes import GENERATION, INDEX
from optuna_taylorglo.evolution.pruners import EarlyAbortPruner, EarlyEndPruner, FallingBehindPruner

NAN, INF = math.nan, math.inf


def should_prune(reports, **settings):
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
        ({10: 0.5, 11: 0.0}, False),
        ({10: 0.1, 11: 0.9}, True),
        # Reports every four steps: the first one from step 10 on decides.
        ({4: 0.1, 8: 0.1, 12: 0.2, 16: 0.1}, False),
        ({1: NAN}, True),
        ({1: 0.9, 2: -INF}, True),
        ({20: 0.9, 21: NAN}, True),
    ],
)
def test_early_abort(reports, pruned):
    assert should_prune(reports) == pruned
    settings = {"threshold": 0.5, "step": 3, "sign": -1}  # smaller is better
    found = [should_prune({2: 0.9, 3: value}, **settings) for value in (0.4, 0.5, 0.6, NAN)]
    assert found == [False, False, True, True]


@pytest.mark.parametrize(
    ("field", "value"), [("threshold", NAN), ("threshold", True), ("step", -1), ("step", 1.5)]
)
def test_bad_arguments_are_named(field, value):
    with pytest.raises(ValueError, match=f"{field} must be .*, got {value}"):
        EarlyAbortPruner(**{field: value})
    with pytest.raises(ValueError, match="keep must lie between 0 and 1, got nan"):
        FallingBehindPruner(popsize=4, keep=NAN, step=5)


COMPLETE, PRUNED, FAIL = TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL
PACE = [(COMPLETE, 0.8), (COMPLETE, 0.6), (PRUNED, 0.4), (PRUNED, None)]
"""What four candidates of a generation had reached at step 5."""


def falls_behind(value, before, generation=1, index=0, **changes):
    """Whether a candidate with this value at step 5 is stopped by the pace of generation 0."""
    pruner = FallingBehindPruner(**({"popsize": 4, "keep": 0.5, "step": 5} | changes))
    study = optuna.create_study(pruner=pruner, direction="maximize")
    for other, (state, report) in enumerate(before):
        finished = optuna.create_trial(
            state=state,
            value=0.9 if state == COMPLETE else None,
            user_attrs={GENERATION: 0, INDEX: other % 4},
            intermediate_values={} if report is None else {5: report, 9: 1.0},
        )
        study.add_trial(finished)
    trial = study.ask()
    trial.set_user_attr(GENERATION, generation)
    trial.set_user_attr(INDEX, index)
    trial.report(0.0, 4)
    assert not trial.should_prune()
    trial.report(value, 5)
    return trial.should_prune()


ANY_SIZE = {"popsize": None}


@pytest.mark.parametrize(
    ("pace", "before", "changes"),
    [
        (0.6, PACE, {}),
        (0.8, PACE, {"keep": 0.25}),
        (0.4, PACE, {"keep": 0.75}),
        # The fourth of four had no report: none is slower than that.
        (-INF, PACE, {"keep": 0.9}),
        # An unfinished or missing generation sets no pace, and neither do failed trials.
        (-INF, [], {}),
        (-INF, PACE[:1], {}),
        (0.6, [*PACE, (FAIL, 1.0), (FAIL, 0.0)], {}),
        # Of two attempts at candidates 0 and 1 the better one counts.
        (0.7, [*PACE, (PRUNED, 0.1), (PRUNED, 0.7)], {}),
        # Where generations differ in size, the share is of those that were evaluated.
        (0.6, PACE, ANY_SIZE),
        (0.6, PACE[:3], ANY_SIZE),
        (0.6, PACE[1:2], ANY_SIZE),
        (-INF, [], ANY_SIZE),
    ],
)
def test_pace_is_that_of_the_generation_before(pace, before, changes):
    assert not falls_behind(max(pace, -1.0), before, **changes)
    assert falls_behind(pace - 0.01, before, **changes) == (pace > -INF)


@pytest.mark.parametrize("generation", [0, 1, 2, 3])
@pytest.mark.parametrize("index", [1, 2])
def test_a_candidate_that_did_not_wait_is_compared_with_the_generation_that_it_knows(
    generation, index
):
    due = 2 if index < 2 else 1
    assert falls_behind(0.0, PACE, generation, index, overlap=2) == (generation == due)
    assert falls_behind(0.0, PACE, generation, index) == (generation == 1)


@pytest.mark.parametrize(("abort", "stop"), [(0.5, 0.0), (0.0, 0.5), (0.5, 0.5), (0.0, None)])
def test_either_reason_ends_a_training(abort, stop):
    second = None if stop is None else EarlyAbortPruner(stop, 3)
    pruner = EarlyEndPruner(EarlyAbortPruner(abort, 3), second)
    trial = optuna.create_study(pruner=pruner).ask()
    trial.report(0.4, 3)
    assert trial.should_prune() == (0.5 in (abort, stop))
    assert pruner.reason == ("abort" if abort else "stop" if stop else None)
