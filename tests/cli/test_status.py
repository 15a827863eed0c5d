"""``taylorglo status``: how far a study is and who works on it, or which studies there are."""

from __future__ import annotations

import os
import socket
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from types import SimpleNamespace

import pytest
from optuna.trial import TrialState, create_trial
from searches import small_recipe

from optuna_taylorglo import cli
from optuna_taylorglo.attributes import N_CLASSES, WORKER
from optuna_taylorglo.cli.status import duration, seconds_left
from optuna_taylorglo.recipes.load import load_recipe
from optuna_taylorglo.search.candidates import make_sampler
from optuna_taylorglo.search.history import attach_recipe
from optuna_taylorglo.search.scheduler import GenerationScheduler
from optuna_taylorglo.study.heartbeat import WorkerProcess
from optuna_taylorglo.study.open import create_evaluation_study, create_study
from optuna_taylorglo.study.optuna_private import storage_of


@pytest.fixture
def searching(tmp_path, sqlite_url, monkeypatch):
    """A study with three candidates evaluated and one in hand, the storage of this process."""
    monkeypatch.setenv("OPTUNA_STORAGE", sqlite_url)
    monkeypatch.setenv("COLUMNS", "160")
    study = create_study("first", sqlite_url)
    recipe = attach_recipe(study, load_recipe(small_recipe(tmp_path / "recipe.yaml")))
    study.set_user_attr(N_CLASSES, 10)
    study.sampler = make_sampler(recipe, 10)
    queue = GenerationScheduler(study)
    for value in (0.25, 0.5, 0.125):
        queue.finish(queue.claim(), value)
    queue.claim()
    return study


def test_a_study_shows_its_workers_and_the_time_left(searching, capsys):
    assert cli.main(["status", "first"]) == cli.DONE
    out = capsys.readouterr().out
    assert "Generations: 0 of 2 complete, 3 of 8 candidates evaluated" in out
    worker = f"{socket.gethostname()}:{os.getpid()}"
    (line,) = [line for line in out.splitlines() if worker in line]
    assert "generation 1, candidate 4" in line
    assert "s ago" in line, "no last heartbeat"
    assert "Time left: about" in out


def test_without_a_name_there_is_a_line_for_each_study(searching, sqlite_url, capsys):
    create_evaluation_study(searching, sqlite_url)
    create_study("second", sqlite_url)
    assert cli.main(["status"]) == cli.DONE
    out = capsys.readouterr().out
    (first,) = [line for line in out.splitlines() if "first" in line]
    for part in ("Digits", "DigitsCNN", "0 of 2", "0.5000", "1 training"):
        assert part in first
    assert "no worker has begun" in out
    assert "verdict" not in out


@pytest.mark.parametrize("words", [["status"], ["status", "s"], ["export", "s"], ["report", "s"]])
@pytest.mark.parametrize("storage", ["sqlite:///none.db", "none.journal"])
def test_only_looking_creates_no_file(tmp_path, monkeypatch, caplog, words, storage):
    monkeypatch.chdir(tmp_path)
    assert cli.main([*words, "--storage", storage]) == cli.USAGE
    assert "does not exist" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_a_study_of_which_nobody_trains_says_so(searching, capsys):
    for trial in searching.get_trials(states=(TrialState.RUNNING,)):
        searching.tell(trial.number, state=TrialState.FAIL)
    assert cli.main(["status", "first"]) == cli.DONE
    out = capsys.readouterr().out
    assert "Workers: none is training" in out
    assert "Time left" not in out
    assert cli.main(["status"]) == cli.DONE
    assert "interrupted" in capsys.readouterr().out


def test_the_time_left_follows_from_the_rate():
    def ended(n):
        trial = create_trial(value=0.5)
        trial.datetime_complete = datetime(2026, 1, 1) + timedelta(seconds=10 * n)
        return trial

    def history(count):
        return SimpleNamespace(trials=[ended(n) for n in range(count)], n_slots=10, n_filled=4)

    assert seconds_left(history(5)) == 60
    assert seconds_left(history(1)) is None
    assert [duration(s) for s in (0.4, 119, 150, 3600 * 3 + 1200)] == [
        *("0 s", "119 s", "2 min"),
        "3 h 20 min",
    ]


def test_a_worker_without_heartbeat_is_named(searching, capsys, monkeypatch):
    (trial,) = searching.get_trials(states=(TrialState.RUNNING,))
    silent = asdict(replace(WorkerProcess.current(), heartbeat=1e9))
    storage_of(searching).set_trial_user_attr(trial._trial_id, WORKER, silent)
    assert cli.main(["status", "first"]) == cli.DONE
    name = f"generation 1, candidate 4 on {socket.gethostname()}:{os.getpid()}"
    assert f"No heartbeat of {name}" in " ".join(capsys.readouterr().out.split())
