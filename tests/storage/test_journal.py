"""A journal file: signs of life are a counter, and every process has its own clock."""

from __future__ import annotations

import multiprocessing
import time

import optuna
import pytest

from optuna_taylorglo.attributes import BEAT
from optuna_taylorglo.storage.journal import WatchedJournalStorage

fork = multiprocessing.get_context("fork")
pytestmark = pytest.mark.filterwarnings("ignore:Heartbeat of storage is supposed")


def opened(path: str) -> WatchedJournalStorage:
    return WatchedJournalStorage(path, heartbeat=1, grace=10)


def beat(path: str, trial_id: int) -> None:
    opened(path).record_heartbeat(trial_id)


class Clock:
    """Time as a test wants it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def new_study(path: str) -> optuna.Study:
    return optuna.create_study(study_name="a", storage=opened(path))


def test_silence_is_noticed_after_the_grace_and_not_before(journal_path: str, clock: Clock) -> None:
    study = new_study(journal_path)
    trial = study.ask()._trial_id
    watcher = opened(journal_path)
    # Nobody knows how long the trial has been silent; the first look starts the clock.
    assert watcher._get_stale_trial_ids(study._study_id) == []
    clock.now += 9
    assert watcher._get_stale_trial_ids(study._study_id) == []
    clock.now += 2
    assert watcher._get_stale_trial_ids(study._study_id) == [trial]
    late = opened(journal_path)
    assert late._get_stale_trial_ids(study._study_id) == []


def test_the_beat_of_another_process_is_seen(journal_path: str, clock: Clock) -> None:
    study = new_study(journal_path)
    silent, beating = study.ask()._trial_id, study.ask()._trial_id
    watcher = opened(journal_path)
    watcher._get_stale_trial_ids(study._study_id)
    for _ in range(2):
        clock.now += 8
        process = fork.Process(target=beat, args=(journal_path, beating))
        process.start()
        process.join()
        stale = watcher._get_stale_trial_ids(study._study_id)
    assert stale == [silent]
    assert watcher.get_trial(beating).user_attrs[BEAT] == 2
    clock.now += 11
    assert watcher._get_stale_trial_ids(study._study_id) == [silent, beating]


def test_only_running_trials_can_be_silent(journal_path: str, clock: Clock) -> None:
    study = new_study(journal_path)
    study.enqueue_trial({})
    running = study.ask()
    study.enqueue_trial({})
    watcher = opened(journal_path)
    watcher._get_stale_trial_ids(study._study_id)
    study.tell(running, 1.0)
    clock.now += 100
    assert watcher._get_stale_trial_ids(study._study_id) == []


def test_optuna_gives_up_silent_trials_of_a_journal(journal_path: str, clock: Clock) -> None:
    """Optuna asks only storages that it takes for ones with signs of life."""
    study = new_study(journal_path)
    study.ask()
    optuna.storages.fail_stale_trials(study)
    clock.now += 11
    optuna.storages.fail_stale_trials(study)
    assert [trial.state for trial in study.trials] == [optuna.trial.TrialState.FAIL]
