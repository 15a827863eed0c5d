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
import pytest
from databases import PostgreSQL
from optuna.trial import TrialState
from searches import load, process, small_recipe, wait_until

from optuna_taylorglo import cli
from optuna_taylorglo.attributes import RELEASED
from optuna_taylorglo.cli import lifeline

# Far below the grace period and the patience in an outage; a busy machine may need much of it.
LONGEST_END = 100


def children_of(pid: int) -> list[int]:
    """All processes that a process started."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


def is_alive(pid: int) -> bool:
    """Whether a process runs; where nobody asks for its exit code, it stays in the list."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


class LongRun:
    """`taylorglo run` of a search whose evaluations never end, with a candidate in hand."""

    def __init__(self, directory: Path, url: str) -> None:
        length = {"evaluation": 10**7, "full": 10**7}
        small_recipe(directory / "long.yaml", budget=length, early_abort=None, early_stop=None)
        words = ("run", "long.yaml", "--workers", "1")
        self._url = url
        self.command = process("optuna_taylorglo.cli", *words, cwd=directory, storage=url)
        wait_until(self._is_at_work)
        self.children = children_of(self.command.pid)

    def study(self) -> optuna.Study:
        return load(self._url, "long")

    def running(self) -> int:
        return len(self.study().get_trials(states=(TrialState.RUNNING,)))

    def _is_at_work(self) -> bool:
        assert self.command.poll() is None, self.command.communicate()[0]
        with contextlib.suppress(KeyError):
            return self.running() == 1
        return False

    def nobody_left(self) -> bool:
        return not any(map(is_alive, self.children))


@pytest.mark.usefixtures("hangups_are_heard")
def test_children_end_with_a_command_that_is_killed_and_the_same_command_goes_on(
    tmp_path: Path, sqlite_url: str
) -> None:
    run = LongRun(tmp_path, sqlite_url)
    assert len(run.children) >= 2, "a worker and the baseline"
    run.command.kill()
    begin = time.monotonic()
    wait_until(run.nobody_left)
    assert time.monotonic() - begin < LONGEST_END
    run.command.communicate()
    trial, *_ = run.study().trials
    assert trial.state == TrialState.FAIL
    assert trial.user_attrs[RELEASED], "its worker was at work, and has given it back"

    # A terminal that is closed ends it in good order.
    run = LongRun(tmp_path, sqlite_url)
    run.command.send_signal(signal.SIGHUP)
    output, _ = run.command.communicate()
    assert run.command.returncode == cli.INTERRUPTED, output
    assert run.nobody_left()
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
    assert run.nobody_left()
    own_postgresql.start()


ORDERLY = """
import sys, time
from optuna_taylorglo.cli.process import stop_on_signals
stop = stop_on_signals()
print("ready", flush=True)
stop.wait(60)
print("asked", flush=True)
"""

PARENT = f"""
import subprocess, sys, threading, time
from optuna_taylorglo.cli.supervisor import start_command
from optuna_taylorglo.cli import lifeline
import os, pathlib
log = pathlib.Path(sys.argv[1])
def start():
    start_command([sys.executable, "-c", {ORDERLY!r}], log, os.environ | lifeline.environment())
thread = threading.Thread(target=start)  # a thread that is gone must not count as the parent
thread.start()
thread.join()
if os.fork() == 0:  # as processes that load data are made; it must not keep the children alive
    os.fork()
    time.sleep(30)
    os._exit(0)
time.sleep(60)
"""


def test_a_child_hears_of_its_parents_end_and_of_nothing_else(tmp_path: Path) -> None:
    log, faults = tmp_path / "log", tmp_path / "faults"
    with faults.open("w") as file:
        words = [sys.executable, "-c", PARENT, str(log)]
        parent = subprocess.Popen(words, stderr=file, start_new_session=True)
    wait_until(lambda: log.exists() and "ready" in log.read_text())
    time.sleep(0.3)
    assert "asked" not in log.read_text()
    parent.kill()
    parent.wait()
    wait_until(lambda: "asked" in log.read_text())
    assert faults.read_text() == ""
    os.killpg(parent.pid, signal.SIGKILL)  # its copies, which were there all the time


@pytest.mark.parametrize("value", [None, "9999", "0"])
def test_without_a_lifeline_there_is_nothing_to_watch(
    monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    """Such as for a worker that was started by hand."""
    monkeypatch.delenv(lifeline.VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(lifeline.VARIABLE, value)
    started: list[object] = []
    monkeypatch.setattr(lifeline.threading.Thread, "start", started.append)
    monkeypatch.setattr(lifeline, "_is_pipe", lambda descriptor: False)
    lifeline.end_with_parent()
    assert started == []
    assert lifeline.VARIABLE not in os.environ


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
