from __future__ import annotations

from typing import Any

import pytest
from optuna.trial import FrozenTrial, TrialState, create_trial

from optuna_taylorglo.attributes import (
    ATTEMPT,
    GENERATION,
    INDEX,
    RELEASED,
    STOPPED,
    WITHDRAWN,
    WORKER,
)
from optuna_taylorglo.search.generations import GenerationLog, RetryPolicy, Slot

COMPLETE, PRUNED, FAIL = TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL
RUNNING, WAITING = TrialState.RUNNING, TrialState.WAITING


def study_of(*specs: dict[str, Any]) -> list[FrozenTrial]:
    """Trials with numbers in order; ``place=(generation, index)`` names a slot."""
    trials = []
    for number, spec in enumerate(specs):
        marks = {"released": RELEASED, "stopped": STOPPED, "withdrawn": WITHDRAWN}
        attrs: dict[str, Any] = {mark: True for key, mark in marks.items() if spec.get(key)}
        if "place" in spec:
            attrs |= dict(zip((GENERATION, INDEX), spec["place"], strict=True))
            attrs[ATTEMPT] = spec.get("attempt", 0)
        trial = create_trial(
            state=spec["state"],
            value=spec.get("value"),
            user_attrs=attrs,
            intermediate_values=spec.get("reports", {}),
        )
        trial.number = number
        trials.append(trial)
    return trials


def done(value: float = 0.0, **spec: Any) -> dict[str, Any]:
    return {"state": COMPLETE, "value": value} | spec


def ranked(slots: list[Slot], *, maximize: bool) -> list[int]:
    return [slot.index for slot in sorted(slots, key=lambda s: s.sort_key(maximize=maximize))]


def slot_number(log: GenerationLog, trial: FrozenTrial) -> int | None:
    slot = log.slot_of(trial)
    return None if slot is None else slot.generation * log.policy.popsize + slot.index


def test_a_trial_without_a_place_takes_the_first_slot_that_no_earlier_trial_has() -> None:
    log = GenerationLog(RetryPolicy(popsize=2, attempts=1, max_failures=3))
    trials = study_of(
        done(), {"state": FAIL}, {"state": RUNNING, "place": (0, 1)}, {"state": RUNNING}
    )
    log.read(trials)
    assert [slot_number(log, trial) for trial in trials] == [0, 1, 1, 2]
    assert log.generation == 0
    assert [len(slot.trials) for slot in log.current_slots()] == [1, 2]


def test_an_enqueued_trial_keeps_its_slot_when_a_planned_one_comes_later() -> None:
    log = GenerationLog(RetryPolicy(popsize=3))
    planned = [{"state": RUNNING, "place": (0, index)} for index in range(3)]
    waiting = {"state": WAITING}
    trials = study_of(planned[0], waiting, planned[1], planned[2], waiting)
    log.read(trials)
    assert [slot_number(log, trial) for trial in trials] == [0, 1, 1, 2, 3]
    assert log.current_slots()[1].active is trials[2], "what runs is not stopped"


def test_a_duplicate_that_is_being_withdrawn_does_not_count() -> None:
    """To withdraw a trial is to claim it first; meanwhile it runs, and nobody evaluates it."""
    place = (0, 0)
    trials = study_of(
        {"state": WAITING, "place": place},
        {"state": RUNNING, "place": place, "withdrawn": True},
    )
    slot = Slot(0, 0, RetryPolicy(popsize=2), tuple(trials))
    assert (slot.active, slot.superfluous) == (trials[0], [])
    trials[1].user_attrs[WORKER] = {"host": "there", "pid": 17}
    assert slot.active is trials[1], "what runs is not stopped"


def test_stop_closes_a_slot_that_has_attempts_left() -> None:
    rules = RetryPolicy(popsize=2, attempts=3, max_failures=3)
    aborted, stopped = {"state": PRUNED}, {"state": PRUNED, "stopped": True}
    assert Slot(0, 0, rules, tuple(study_of(aborted, stopped))).closed
    lost = {"state": FAIL, "stopped": True}
    assert not Slot(0, 0, rules, tuple(study_of(aborted, lost))).closed


def test_stopped_slots_rank_below_complete_ones_and_above_aborted_ones() -> None:
    rules = RetryPolicy(popsize=5)
    outcomes: list[dict[str, Any]] = [
        {"state": PRUNED, "reports": {5: 0.9}},
        {"state": PRUNED, "reports": {5: 0.5}, "stopped": True},
        done(0.1),
        {"state": PRUNED},
        {"state": PRUNED, "reports": {5: 0.6}, "stopped": True},
    ]
    slots = [Slot(0, i, rules, (trial,)) for i, trial in enumerate(study_of(*outcomes))]
    assert ranked(slots, maximize=True) == [2, 4, 1, 0, 3]


def test_abort_uses_up_an_attempt_and_loss_repeats_it() -> None:
    rules = RetryPolicy(popsize=2, attempts=3, max_failures=3)
    aborted, lost = {"state": PRUNED}, {"state": FAIL}
    slot = Slot(0, 0, rules, tuple(study_of(aborted, lost, lost)))
    assert (slot.next_attempt, slot.failures, slot.closed) == (1, 2, False)
    slot = Slot(0, 0, rules, tuple(study_of(aborted, lost, aborted, aborted)))
    assert slot.closed


@pytest.mark.parametrize(("failures", "closed"), [(3, False), (4, True)])
def test_losses_are_limited(failures: int, closed: bool) -> None:
    rules = RetryPolicy(popsize=2, max_failures=3)
    released = {"state": FAIL, "released": True}
    trials = study_of(*[{"state": FAIL}] * failures, *[released] * 9)
    assert Slot(0, 0, rules, tuple(trials)).closed == closed


@pytest.mark.parametrize("maximize", [True, False])
def test_rank_puts_completed_before_aborted_before_nothing(maximize: bool) -> None:
    sign = 1 if maximize else -1
    specs: list[list[dict[str, Any]]] = [
        [{"state": FAIL}],
        [{"state": PRUNED, "reports": {1: 0.5 * sign, 10: 0.10 * sign}}],
        [done(0.2 * sign)],
        [{"state": PRUNED, "reports": {1: float("nan")}}],
        [
            {"state": PRUNED, "reports": {9: 0.05 * sign}},
            {"state": PRUNED, "reports": {9: 9.0 * sign}},
        ],
        [done(0.9 * sign)],
        [{"state": PRUNED}, done(0.2 * sign)],
    ]
    rules = RetryPolicy(popsize=7)
    slots = [Slot(0, i, rules, tuple(study_of(*spec))) for i, spec in enumerate(specs)]
    assert ranked(slots, maximize=maximize) == [5, 2, 6, 4, 1, 0, 3]


def test_generation_finishes_when_every_slot_is_closed() -> None:
    log = GenerationLog(RetryPolicy(popsize=2, attempts=2))
    log.read(study_of(done(1.0), {"state": PRUNED}))
    assert log.generation == 0
    log.read(study_of(done(1.0), {"state": PRUNED}, done(2.0, place=(0, 1))))
    assert log.generation == 1
    assert [slot.result.value for slot in log.finished[0] if slot.result] == [1.0, 2.0]


def test_reading_piece_by_piece_equals_reading_at_once() -> None:
    """Trials of later generations may come early, as in an ungated study."""
    rules = RetryPolicy(popsize=3, attempts=2, max_failures=1)
    specs: list[dict[str, Any]] = [
        done(1.0),
        {"state": FAIL},
        {"state": PRUNED},
        done(2.0),
        done(3.0, place=(0, 1)),
        {"state": PRUNED, "place": (0, 2), "attempt": 1},
        done(4.0),
        {"state": FAIL},
        {"state": FAIL, "place": (1, 2)},
        done(5.0),
    ]
    trials = study_of(*specs)
    at_once, piece_by_piece = GenerationLog(rules), GenerationLog(rules)
    at_once.read(trials)
    for n in range(len(trials) + 1):
        piece_by_piece.read(trials[:n])
    assert piece_by_piece.finished == at_once.finished
    assert len(at_once.finished) == 2
    assert piece_by_piece.current_slots() == at_once.current_slots()
    assert slot_number(piece_by_piece, trials[9]) == slot_number(at_once, trials[9]) == 6


@pytest.mark.parametrize("index", [-1, "0", None, True])
def test_a_place_that_is_none_is_ignored(index: object) -> None:
    trials = study_of(done(), {"state": RUNNING, "place": (0, index)})
    log = GenerationLog(RetryPolicy(popsize=4))
    log.read(trials)
    assert slot_number(log, trials[1]) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("popsize", 1),
        ("popsize", 2.0),
        ("attempts", 0),
        ("max_failures", -1),
        ("attempts", True),
        ("overlap", -1),
        ("overlap", 0.5),
    ],
)
def test_bad_rules_are_named(field: str, value: Any) -> None:
    with pytest.raises(
        ValueError, match=rf"{field} must be an integer of at least \d, got {value}"
    ):
        RetryPolicy(**{field: value})


def test_overlap_of_a_whole_generation_is_refused() -> None:
    with pytest.raises(ValueError, match="overlap must be smaller than popsize 4, got 4"):
        RetryPolicy(popsize=4, overlap=4)
    assert RetryPolicy(popsize=4, overlap=3).overlap == 3


def test_slots_are_open_in_the_order_in_which_they_start() -> None:
    log = GenerationLog(RetryPolicy(popsize=3, overlap=2))
    log.read(study_of(done(), {"state": RUNNING}, done(), done()))
    assert [slot.generation * 3 + slot.index for slot in log.current_slots()] == [0, 1, 2]
    assert [slot.generation * 3 + slot.index for slot in log.open_slots()] == [0, 1, 2, 3, 4]
    assert [slot.closed for slot in log.open_slots()] == [True, False, True, True, False]
    assert log.open_slots(n_generations=2) == log.open_slots()
    assert log.open_slots(n_generations=1) == log.current_slots()


def test_trials_that_wait_for_a_closed_slot_are_superfluous() -> None:
    log = GenerationLog(RetryPolicy(popsize=2, attempts=2, max_failures=3, overlap=1))
    early = (1, 0)
    trials = study_of(
        done(place=(0, 0)),
        {"state": RUNNING, "place": (0, 1)},
        {"state": FAIL, "place": early},
        done(place=early),
        {"state": WAITING, "place": early},
    )
    log.read(trials)
    assert log.generation == 0
    assert log.open_slots()[2].superfluous == [trials[4]]
    trials[1].state, trials[1].values = COMPLETE, [1.0]
    late = study_of(*[done()] * 5, {"state": WAITING, "place": (0, 0)})[-1]
    log.read([*trials, late])
    assert log.generation == 1
    assert log.leftovers == [late]
