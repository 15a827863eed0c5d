"""However `taylorglo run` is ended, nobody is left at work, and nothing is left in hand."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import optuna
from databases import PostgreSQL
from optuna.trial import TrialState
from searches import descendants_of, is_alive, load, process, small_recipe, wait_until

from optuna_taylorglo import cli
from optuna_taylorglo.attributes import RELEASED
from optuna_taylorglo.study.heartbeat import WorkerProcess

# Far below the grace period and the patience in an outage; a busy machine may need much of it.
LONGEST_END = 100


class LongRun:
    """`taylorglo run` of a search whose evaluations never end, with a candidate in hand."""

    def __init__(self, directory: Path, url: str) -> None:
        length = {"evaluation": 10**7, "full": 10**7}
        small_recipe(directory / "long.yaml", budget=length, early_abort=None, early_stop=None)
        words = ("run", "long.yaml", "--workers", "1")
        self._url = url
        self.command = process("optuna_taylorglo.cli", *words, cwd=directory, storage=url)
        wait_until(self._is_at_work)
        self.started = descendants_of(self.command.pid)

    def study(self) -> optuna.Study:
        return load(self._url, "long")

    def running(self) -> int:
        return len(self.study().get_trials(states=(TrialState.RUNNING,)))

    def workers(self) -> set[str]:
        """Those that have a candidate in hand."""
        running = self.study().get_trials(states=(TrialState.RUNNING,))
        return {str(WorkerProcess.of(trial)) for trial in running}

    def _is_at_work(self) -> bool:
        assert self.command.poll() is None, self.command.communicate()[0]
        with contextlib.suppress(KeyError):
            return self.running() == 1
        return False

    def nobody_left(self) -> bool:
        return not any(map(is_alive, self.started))


def test_children_end_with_a_command_that_is_killed_and_the_same_command_goes_on(
    tmp_path: Path, sqlite_url: str
) -> None:
    run = LongRun(tmp_path, sqlite_url)
    assert len(run.started) >= 3, "the fork server, a worker and the baseline"
    run.command.kill()
    begin = time.monotonic()
    wait_until(run.nobody_left)
    assert time.monotonic() - begin < LONGEST_END
    run.command.communicate()
    trial, *_ = run.study().trials
    assert trial.state == TrialState.FAIL
    assert trial.user_attrs[RELEASED], "its worker was at work, and has given it back"

    # A fork server that is killed costs its workers, and others take their places.
    run = LongRun(tmp_path, sqlite_url)
    first = run.workers()
    (server,) = (pid for pid in run.started if descendants_of(pid))
    os.kill(server, signal.SIGKILL)
    wait_until(lambda: run.running() == 1 and not first & run.workers())
    run.started += descendants_of(run.command.pid)

    # A terminal that is closed ends it in good order.
    run.command.send_signal(signal.SIGHUP)
    output, _ = run.command.communicate()
    assert run.command.returncode == cli.INTERRUPTED, output
    wait_until(run.nobody_left)
    assert run.running() == 0


def test_ctrl_c_is_heard_while_the_database_is_away(
    tmp_path: Path, own_postgresql: PostgreSQL
) -> None:
    run = LongRun(tmp_path, own_postgresql.new_database())
    own_postgresql.stop()
    time.sleep(2)  # the command looks at the study every second, and waits for it now
    assert run.command.poll() is None
    run.command.send_signal(signal.SIGINT)
    begin = time.monotonic()
    output, _ = run.command.communicate()
    assert time.monotonic() - begin < LONGEST_END
    assert run.command.returncode == cli.INTERRUPTED, output
    assert "Traceback" not in output
    wait_until(run.nobody_left)
    own_postgresql.start()


ORDERLY = """
import sys, time
from optuna_taylorglo.process import stop_on_signals
stop = stop_on_signals()
print("ready", flush=True)
stop.wait(60)
print("asked", flush=True)
"""


def test_a_command_under_nohup_goes_on_when_its_terminal_is_closed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("w") as file:
        ignoring = ["sh", "-c", 'trap "" HUP; exec "$0" "$@"', sys.executable, "-c", ORDERLY]
        command = subprocess.Popen(ignoring, stdout=file)
    wait_until(lambda: "ready" in log.read_text())
    command.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    assert "asked" not in log.read_text()
    command.send_signal(signal.SIGTERM)
    assert command.wait(30) == 0
    assert "asked" in log.read_text()
