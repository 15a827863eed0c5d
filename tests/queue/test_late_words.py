"""What a trial says after it was given up is part of its result, and of who is stopped."""

from __future__ import annotations

import pytest
from optuna.trial import Trial
from schedulers import COMPLETE, PRUNED, give_up_running, new_scheduler, place, take

from optuna_taylorglo.attributes import STOPPED
from optuna_taylorglo.queue.late_words import annotate, report, should_prune
from optuna_taylorglo.search.pruners import EarlyAbortPruner, EarlyEndPruner, FallingBehindPruner
from optuna_taylorglo.search.scheduler import GenerationScheduler
from optuna_taylorglo.storage.open_storage import open_storage


@pytest.fixture
def scheduler(sqlite_url: str) -> GenerationScheduler:
    return new_scheduler(open_storage(sqlite_url), popsize=2, attempts=3)


@pytest.mark.parametrize("given_up", [False, True])
def test_a_stop_is_a_stop_whenever_it_comes(scheduler: GenerationScheduler, given_up: bool) -> None:
    trial = take(scheduler)
    if given_up:
        give_up_running(scheduler)
    report(trial, 0.3, 50)
    annotate(trial, STOPPED, True)
    scheduler.finish(trial, state=PRUNED)
    # Its slot is closed: the next one is another candidate's first attempt.
    assert place(take(scheduler)) == (0, 1, 0)
    slot = scheduler.sampler.read(scheduler.study).current_slots()[0]
    assert slot.stop is not None
    assert slot.best_aborted == [0.3]


def test_a_late_result_brings_its_reports(scheduler: GenerationScheduler) -> None:
    trial = take(scheduler)
    report(trial, 0.1, 10)
    give_up_running(scheduler)
    report(trial, 0.5, 50)
    scheduler.finish(trial, 0.9)
    (late,) = scheduler.study.get_trials(states=(COMPLETE,))
    assert late.intermediate_values == {10: 0.1, 50: 0.5}
    assert late.value == 0.9


def test_who_is_pruned_does_not_depend_on_being_given_up(scheduler: GenerationScheduler) -> None:
    behind = FallingBehindPruner(popsize=2, keep=0.5, step=50)
    scheduler.study.pruner = pruner = EarlyEndPruner(EarlyAbortPruner(0.2, 10), behind)

    def first_generation() -> None:
        for value in (0.8, 0.9):
            trial = take(scheduler)
            report(trial, value, 50)
            scheduler.finish(trial, value)

    def answers(trial: Trial) -> list[tuple[bool, str | None]]:
        found = []
        for step, value in ((10, 0.3), (50, 0.85)):
            report(trial, value, step)
            found.append((should_prune(trial), pruner.reason))
        return found

    first_generation()
    alive, lost = take(scheduler), take(scheduler)
    expected = [(False, None), (True, "stop")]
    assert answers(alive) == expected
    give_up_running(scheduler)
    assert answers(lost) == expected
