"""Trials that go silent are given to others; those that give signs of life are not."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest
import sqlalchemy
from optuna.trial import TrialState
from schedulers import COMPLETE, age_heartbeats, new_scheduler, place, take

from optuna_taylorglo.queue.heartbeat import Heartbeat
from optuna_taylorglo.queue.late_words import report
from optuna_taylorglo.search.scheduler import GenerationScheduler
from optuna_taylorglo.storage.open_storage import open_storage

Silenced = tuple[str, Callable[[GenerationScheduler], None]]


@pytest.fixture(params=["sqlite", "journal"])
def silenced(request: pytest.FixtureRequest, tmp_path: Path) -> Silenced:
    """A storage, and how to make all its running trials look dead to a scheduler."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/a.db"

        def silence(scheduler: GenerationScheduler) -> None:
            age_heartbeats(scheduler._storage)
            scheduler._stale_check_due = 0.0

    else:
        url = str(tmp_path / "a.log")

        def silence(scheduler: GenerationScheduler) -> None:
            scheduler._stale_check_due = 0.0
            scheduler.claim()
            scheduler._storage.grace_period = -1
            scheduler._stale_check_due = 0.0

    return url, silence


def test_worker_killed_before_its_first_beat_blocks_nothing(
    silenced: tuple[str, Callable[[GenerationScheduler], None]],
) -> None:
    url, silence = silenced
    dead, alive = new_scheduler(open_storage(url)), new_scheduler(open_storage(url))
    lost = [take(dead), take(dead)]
    assert alive.claim() is None
    silence(alive)
    again = [take(alive), take(alive)]
    assert [place(trial) for trial in again] == [place(trial) for trial in lost]
    assert [trial.params for trial in again] == [trial.params for trial in lost]


def test_result_of_a_worker_given_up_too_early(
    silenced: tuple[str, Callable[[GenerationScheduler], None]], caplog: pytest.LogCaptureFixture
) -> None:
    url, silence = silenced
    slow, quick = new_scheduler(open_storage(url)), new_scheduler(open_storage(url))
    first, second = take(slow), take(slow)
    silence(quick)
    again = take(quick)
    assert place(again) == place(first)
    optuna.logging.enable_propagation()
    report(first, 0.5, 1)
    # Somebody else is at the first slot by now; the second is still free.
    slow.finish(first, 1.0)
    slow.finish(second, 2.0)
    optuna.logging.disable_propagation()
    assert "Trial 0 was given up as lost before it ended as COMPLETE" in caplog.text
    quick.finish(again, 3.0)
    assert place(take(quick)) == (1, 0, 0)
    (slots,) = quick.sampler.read(quick.study).finished
    assert [slot.result.value for slot in slots if slot.result] == [3.0, 2.0]
    assert [t.value for t in quick.study.trials if t.state == COMPLETE] == [3.0, 2.0]


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

    def beat(trial_id: int) -> None:
        beats.append(time.monotonic())
        if len(beats) == 1:
            raise sqlalchemy.exc.OperationalError("UPDATE", None, Exception("gone"))

    monkeypatch.setattr(scheduler._storage, "record_heartbeat", beat)
    with Heartbeat(trial):
        while len(beats) < 3:
            time.sleep(0.05)
    time.sleep(0.1)
    ended = len(beats)
    time.sleep(1.2)
    assert len(beats) == ended
