"""Trials that go silent are given to others; those that give signs of life are not."""

from __future__ import annotations

import time
from pathlib import Path

import optuna
import pytest
import sqlalchemy
from optuna.trial import TrialState
from schedulers import COMPLETE, PRUNED, age_heartbeats, new_scheduler, place, silence, take

from optuna_taylorglo.queue import heartbeat
from optuna_taylorglo.queue.heartbeat import Heartbeat
from optuna_taylorglo.queue.late_words import report
from optuna_taylorglo.storage.open_storage import open_storage
from optuna_taylorglo.storage.optuna_private import storage_of


@pytest.fixture(params=["sqlite", "journal"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/a.db" if request.param == "sqlite" else str(tmp_path / "a.log")


def test_worker_killed_before_its_first_beat_blocks_nothing(url: str) -> None:
    dead, alive = new_scheduler(open_storage(url)), new_scheduler(open_storage(url))
    lost = [take(dead), take(dead)]
    assert alive.claim() is None
    silence(alive)
    again = [take(alive), take(alive)]
    assert [place(trial) for trial in again] == [place(trial) for trial in lost]
    assert [trial.params for trial in again] == [trial.params for trial in lost]


def test_result_of_a_worker_given_up_too_early(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Who finishes first counts, and the other one is told that nobody waits for him."""
    slow, quick = new_scheduler(open_storage(url)), new_scheduler(open_storage(url))
    first, second = take(slow), take(slow)
    silence(quick)
    again = take(quick)
    assert place(again) == place(first)
    report(first, 0.5, 1)
    assert not slow.is_wanted(first), "another is at work on it"
    assert slow.is_wanted(second), "nobody has taken it up"
    slow.finish(first, 1.0)
    slow.finish(second, 2.0)
    assert not quick.is_wanted(again)
    optuna.logging.enable_propagation()
    quick.finish(again, 3.0)
    optuna.logging.disable_propagation()
    assert "was given up as lost before it ended as COMPLETE with value 3.0" in caplog.text
    assert place(take(quick)) == (1, 0, 0)
    (slots,) = quick.sampler.read(quick.study).finished
    assert [slot.result.value for slot in slots if slot.result] == [1.0, 2.0]
    assert [t.value for t in quick.study.trials if t.state == COMPLETE] == [1.0, 2.0]
    assert [s.failures for s in slots] == [0, 0]


def test_a_late_abort_counts_too(url: str) -> None:
    slow, quick = new_scheduler(open_storage(url)), new_scheduler(open_storage(url))
    late = take(slow)
    silence(quick)
    again = take(quick)
    slow.finish(late, state=PRUNED)
    assert place(take(slow)) == (0, 0, 1), "it counts though another is at work on its repetition"
    quick.finish(again, state=PRUNED)
    assert place(take(quick)) == (0, 1, 0), "one attempt is used up, not two"


def test_a_result_that_waited_for_the_database_longer_than_the_grace_is_stored_once(
    database_url: str,
) -> None:
    """After an outage all signs of life are old, and others may look before the next ones come."""
    slow, quick = (
        new_scheduler(open_storage(database_url)),
        new_scheduler(open_storage(database_url)),
    )
    trials = [take(slow), take(slow)]
    age_heartbeats(storage_of(slow.study))
    assert quick.claim() is None
    for trial in trials:
        slow.finish(trial, 0.5)
    assert [t.state for t in quick.study.trials] == [COMPLETE] * 2


@pytest.mark.parametrize("kind", ["sqlite", "journal"])
def test_heartbeat_keeps_a_trial_alive(kind: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db" if kind == "sqlite" else str(tmp_path / "a.log")
    schedulers = [
        new_scheduler(open_storage(url, heartbeat=1, grace=2), popsize=2) for _ in range(2)
    ]
    silent, beating = take(schedulers[0]), take(schedulers[0])
    with Heartbeat(beating):
        while (again := schedulers[1].claim()) is None:
            time.sleep(0.2)
        assert place(again) == place(silent)
        assert schedulers[1].claim() is None
    assert schedulers[1].study.trials[beating.number].state == TrialState.RUNNING


def test_heartbeat_survives_an_outage(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = new_scheduler(open_storage(sqlite_url, heartbeat=1, grace=2))
    trial = take(scheduler)
    beats: list[float] = []

    def beat(storage: object, trial_id: int) -> bool:
        beats.append(time.monotonic())
        if len(beats) == 1:
            raise sqlalchemy.exc.OperationalError("UPDATE", None, Exception("gone"))
        return True

    monkeypatch.setattr(heartbeat, "beat", beat)
    with Heartbeat(trial):
        while len(beats) < 3:
            time.sleep(0.05)
    time.sleep(0.1)
    ended = len(beats)
    time.sleep(1.2)
    assert len(beats) == ended
