"""Slots of generations, as they follow from trials."""

from typing import Any

import pytest
from optuna.trial import TrialState, create_trial

from optuna_taylorglo.attributes import (
    ATTEMPT,
    GENERATION,
    INDEX,
    RELEASED,
    STOPPED,
    WITHDRAWN,
    WORKER,
)
from optuna_taylorglo.evolution.scheduler import GenerationLog, RetryPolicy, Slot

Spec = dict[str, Any]
FAILED = {"state": TrialState.FAIL}
ABORTED = {"state": TrialState.PRUNED}
STOPPED_ = ABORTED | {STOPPED: True}
RUNNING = {"state": TrialState.RUNNING}
WAITING = {"state": TrialState.WAITING}


def done(value=0.0, **spec):
    return {"state": TrialState.COMPLETE, "value": value} | spec


def at(generation, index, spec, attempt=0):
    return spec | {GENERATION: generation, INDEX: index, ATTEMPT: attempt}


def study_of(*specs):
    """Trials with numbers in order."""
    trials = []
    for number, spec in enumerate(specs):
        trial = create_trial(
            state=spec["state"],
            value=spec.get("value"),
            user_attrs={key: value for key, value in spec.items() if key.startswith("taylorglo:")},
            intermediate_values=spec.get("reports", {}),
        )
        trial.number = number
        trials.append(trial)
    return trials


def slot_of(*specs, index=0, **policy):
    return Slot(0, index, RetryPolicy(**{"popsize": 2} | policy), tuple(study_of(*specs)))


def log_of(trials, **policy):
    log = GenerationLog(RetryPolicy(**policy))
    log.read(trials)
    return log


def slot_numbers(log, trials):
    slots = map(log.slot_of, trials)
    return [None if s is None else s.generation * log.policy.popsize + s.index for s in slots]


def test_a_trial_without_a_place_takes_the_first_slot_that_no_earlier_trial_has():
    trials = study_of(done(), FAILED, at(0, 1, RUNNING), RUNNING)
    log = log_of(trials, popsize=2, max_failures=3)
    assert slot_numbers(log, trials) == [0, 1, 1, 2]
    assert log.generation == 0
    assert [len(slot.trials) for slot in log.current_slots()] == [1, 2]
    # An enqueued one keeps its slot when a planned one comes later.
    planned = [at(0, index, RUNNING) for index in range(3)]
    trials = study_of(planned[0], WAITING, planned[1], planned[2], WAITING)
    log = log_of(trials, popsize=3)
    assert slot_numbers(log, trials) == [0, 1, 1, 2, 3]
    assert log.current_slots()[1].active is trials[2], "what runs is not stopped"
    for index in (-1, "0", None, True):
        trials = study_of(done(), at(0, index, RUNNING))
        assert slot_numbers(log_of(trials, popsize=4), trials) == [0, 1], "an invalid place"


def test_a_duplicate_that_is_being_withdrawn_does_not_count():
    """To withdraw a trial, a worker claims it first."""
    slot = slot_of(WAITING, RUNNING | {WITHDRAWN: True})
    waiting, running = slot.trials
    assert (slot.active, slot.superfluous) == (waiting, [])
    running.user_attrs[WORKER] = {"host": "there", "pid": 17}
    assert slot.active is running, "what runs is not stopped"


@pytest.mark.parametrize(
    ("specs", "closed"),
    [
        ([ABORTED, STOPPED_], True),
        ([ABORTED, FAILED | {STOPPED: True}], False),
        ([ABORTED, FAILED, FAILED], False),
        ([ABORTED, FAILED, ABORTED, ABORTED], True),
        ([FAILED] * 3 + [FAILED | {RELEASED: True}] * 9, False),
        ([FAILED] * 4, True),
        ([FAILED, done()], True),
    ],
)
def test_a_slot_is_closed_by_a_result_a_stop_or_too_many_attempts(specs, closed):
    slot = slot_of(*specs, attempts=3, max_failures=3)
    assert slot.closed == closed
    assert slot.next_attempt == sum(spec["state"] == TrialState.PRUNED for spec in specs)


@pytest.mark.parametrize("maximize", [True, False])
def test_complete_slots_rank_before_stopped_before_aborted_ones(maximize):
    sign = 1 if maximize else -1
    specs = [
        [FAILED],
        [ABORTED | {"reports": {1: 0.5 * sign, 10: 0.10 * sign}}],
        [done(0.2 * sign)],
        [ABORTED | {"reports": {1: float("nan")}}],
        [ABORTED | {"reports": {9: 0.05 * sign}}, ABORTED | {"reports": {9: 9.0 * sign}}],
        [done(0.9 * sign)],
        [ABORTED, done(0.2 * sign)],
        [STOPPED_ | {"reports": {5: 0.01 * sign}}],
        [STOPPED_ | {"reports": {5: 0.02 * sign}}],
    ]
    slots = [slot_of(*spec, index=i) for i, spec in enumerate(specs)]
    ranked = sorted(slots, key=lambda slot: slot.sort_key(maximize=maximize))
    assert [slot.index for slot in ranked] == [5, 2, 6, 8, 7, 4, 1, 0, 3]


def test_reading_piece_by_piece_equals_reading_at_once():
    """Trials of later generations may come early, as in a plain study."""
    policy = {"popsize": 3, "attempts": 2, "max_failures": 1}
    placed = (at(0, 1, done(3.0)), at(0, 2, ABORTED, attempt=1))
    later = (done(4.0), FAILED, at(1, 2, FAILED), done(5.0))
    trials = study_of(done(1.0), FAILED, ABORTED, done(2.0), *placed, *later)
    at_once, piece_by_piece = log_of(trials, **policy), log_of([], **policy)
    for n in range(len(trials) + 1):
        piece_by_piece.read(trials[:n])
    assert piece_by_piece.finished == at_once.finished
    assert [s.result.value for s in at_once.finished[0] if s.result] == [1.0, 3.0]
    assert piece_by_piece.current_slots() == at_once.current_slots()
    for log in (piece_by_piece, at_once):
        assert slot_numbers(log, trials[-1:]) == [6]


def test_what_comes_late_is_superfluous():
    trials = study_of(
        at(0, 0, done()), at(0, 1, RUNNING), at(1, 0, FAILED), at(1, 0, done()), at(1, 0, WAITING)
    )
    log = log_of(trials, popsize=2, attempts=2, max_failures=3, overlap=1)
    assert log.generation == 0
    assert log.open_slots()[2].superfluous == [trials[4]]
    trials[1].state, trials[1].values = TrialState.COMPLETE, [1.0]
    late = study_of(*[done()] * 5, at(0, 0, WAITING))[-1]
    log.read([*trials, late])
    assert log.generation == 1
    assert log.leftovers == [late]
