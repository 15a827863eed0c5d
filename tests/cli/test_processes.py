"""Real processes: whatever ends them, no work is lost, and none is left when the command ends."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import optuna
import pytest
from databases import PostgreSQL
from optuna.trial import TrialState
from searches import descendants_of, is_alive, load, process, small_recipe, wait_until

from optuna_taylorglo import cli, load_loss
from optuna_taylorglo.attributes import CROSS_ENTROPY, RECIPE, RELEASED
from optuna_taylorglo.process import stop_on_signals
from optuna_taylorglo.study.heartbeat import WorkerProcess


class Run:
    """`taylorglo run` in a process, with a candidate in hand; by default one that never ends."""

    def __init__(self, directory: Path, url: str, length: int = 10**7, workers: int = 1) -> None:
        stops = {} if length < 100 else {"early_abort": None, "early_stop": None}
        budget = {"evaluation": length, "full": length}
        small_recipe(directory / "tiny.yaml", budget=budget, **stops)
        words = ("run", "tiny.yaml", "--workers", str(workers))
        self._url = url
        self.command = process("optuna_taylorglo.cli", *words, cwd=directory, storage=url)
        wait_until(self._is_at_work)
        self.started = descendants_of(self.command.pid)

    def study(self) -> optuna.Study:
        return load(self._url, "tiny")

    def workers(self) -> set[WorkerProcess]:
        """Those that have a candidate in hand."""
        running = self.study().get_trials(states=(TrialState.RUNNING,))
        return set(filter(None, map(WorkerProcess.of, running)))

    def _is_at_work(self) -> bool:
        assert self.command.poll() is None, self.command.communicate()[0]
        with contextlib.suppress(KeyError):
            return bool(self.workers())
        return False

    def wait_until_nobody_is_left(self) -> None:
        begin = time.monotonic()
        wait_until(lambda: not any(map(is_alive, self.started)))
        # Far below the grace period; a busy machine may need much of it.
        assert time.monotonic() - begin < 100


def test_a_search_survives_a_killed_worker_and_ends_with_the_winner(
    tmp_path: Path, sqlite_url: str
) -> None:
    run = Run(tmp_path, sqlite_url, length=12, workers=2)
    victim = next(iter(run.workers()))
    os.kill(victim.pid, signal.SIGKILL)
    begin = time.monotonic()
    wait_until(lambda: victim not in run.workers())
    assert time.monotonic() - begin < 60, "the trial was given back after the grace period only"
    output, _ = run.command.communicate()
    assert run.command.returncode == cli.DONE, output
    assert "Traceback" not in output
    study = run.study()
    best = max(study.get_trials(states=(TrialState.COMPLETE,)), key=lambda trial: trial.value)
    assert f"{best.value:.4f}, one training of the best of" in output
    assert len(study.user_attrs[CROSS_ENTROPY]) == 3
    assert "cross-entropy at the same budget: " in output
    loss = load_loss(tmp_path / "tiny_loss.json")
    assert loss.theta == tuple(best.params[f"theta_{i}"] for i in range(8))
    assert (loss.n_classes, loss.origin.study) == (10, "tiny")
    assert loss.origin.validation_accuracy == best.value
    assert loss.origin.recipe == study.user_attrs[RECIPE]["recipe"]


def test_however_the_command_ends_its_processes_do_and_it_can_be_repeated(
    tmp_path: Path, sqlite_url: str
) -> None:
    run = Run(tmp_path, sqlite_url)
    assert len(run.started) >= 3, "the fork server, a worker and the baseline"
    run.command.kill()
    run.wait_until_nobody_is_left()
    run.command.communicate()
    trial, *_ = run.study().trials
    assert trial.state == TrialState.FAIL
    assert trial.user_attrs[RELEASED], "its worker was at work, and has given it back"

    # A fork server that is killed costs its workers, and others take their places.
    run = Run(tmp_path, sqlite_url)
    first = run.workers()
    (server,) = (pid for pid in run.started if descendants_of(pid))
    os.kill(server, signal.SIGKILL)
    wait_until(lambda: run.workers() - first)
    run.started += descendants_of(run.command.pid)

    run.command.send_signal(signal.SIGINT)
    output, _ = run.command.communicate()
    assert run.command.returncode == cli.INTERRUPTED, output
    assert "the same command goes on where it was" in output
    run.wait_until_nobody_is_left()
    states = {trial.state for trial in run.study().trials}
    assert states == {TrialState.FAIL, TrialState.WAITING}


def test_ctrl_c_is_heard_while_the_database_is_away(
    tmp_path: Path, own_postgresql: PostgreSQL
) -> None:
    run = Run(tmp_path, own_postgresql.new_database())
    own_postgresql.stop()
    time.sleep(2)  # the command looks at the study every second, and waits for it now
    assert run.command.poll() is None
    run.command.send_signal(signal.SIGINT)
    output, _ = run.command.communicate()
    assert run.command.returncode == cli.INTERRUPTED, output
    assert "Traceback" not in output
    run.wait_until_nobody_is_left()
    own_postgresql.start()


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_a_command_under_nohup_goes_on_when_its_terminal_is_closed(monkeypatch, handler) -> None:
    taken = []
    monkeypatch.setattr(signal, "signal", lambda number, _: taken.append(number))
    monkeypatch.setattr(signal, "getsignal", lambda _: handler)
    stop_on_signals()
    assert (signal.SIGHUP in taken) is (handler == signal.SIG_DFL)
