"""Processes that begin at once, as copies of one that has imported everything."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from searches import ROOT, descendants_of, is_alive, wait_until

from optuna_taylorglo.cli import forked

ORDERLY = "orderly"
"""A module of the test's own that waits until it is told to stop."""

SOURCE = """
import os, signal, sys
from optuna_taylorglo.cli.process import stop_on_signals

def main(words):
    stop = stop_on_signals()
    hangup = signal.getsignal(signal.SIGHUP)
    print("ready", os.getpid(), os.getsid(0), os.environ.get("WHO"), *words, hangup, flush=True)
    stop.wait(60)
    print("asked", flush=True)
    return 5
"""

COMMAND = """
import os, pathlib, sys, time
from optuna_taylorglo.cli import forked
forked._CAN_FORK = forked._CAN_FORK and "CANNOT_FORK" not in os.environ
if __name__ == "__main__":
    for number in range(2):
        forked.start(["orderly"], pathlib.Path(f"{number}.log"), os.environ)
    time.sleep(60)
"""


@pytest.fixture
def orderly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "orderly.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def _cannot_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS, where each process imports for itself."""
    monkeypatch.setattr(forked, "_CAN_FORK", False)
    monkeypatch.setenv("CANNOT_FORK", "1")


@pytest.fixture
def command(orderly: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A command that has started two processes, which are ready."""
    (orderly / "command.py").write_text(COMMAND)
    environment = os.environ | {"PYTHONPATH": f"{orderly}:{ROOT}"}
    words = [sys.executable, "command.py"]
    with (orderly / "command.log").open("wb") as log:
        process = subprocess.Popen(
            words, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    wait_until(lambda: all("ready" in said(orderly, number) for number in range(2)))
    yield process
    for pid in (process.pid, *descendants_of(process.pid)):
        os.kill(pid, signal.SIGKILL)
    process.wait()


def said(directory: Path, number: int | str) -> str:
    log = directory / f"{number}.log"
    return log.read_text() if log.exists() else ""


def test_a_process_is_as_if_a_command_had_started_it(orderly: Path) -> None:
    log = orderly / "log"
    log.write_text("before\n")
    process = forked.start([ORDERLY, "a", "b"], log, {"WHO": "me"})
    wait_until(lambda: "ready" in log.read_text())
    before, ready = log.read_text().splitlines()
    assert before == "before"
    # Its own session, its environment and words; and it hears hang-ups, which the server does not.
    assert ready.startswith(f"ready {process.pid} {process.pid} me a b <function")
    assert process.poll() is process.returncode is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.terminate()
    assert process.wait(60) == process.poll() == process.returncode == 5
    assert log.read_text().endswith("asked\n")


def test_once_everything_is_imported_a_process_begins_at_once(tmp_path: Path) -> None:
    words = ["optuna_taylorglo.worker", "--study-name", "nobody"]
    environment = os.environ | {"OPTUNA_STORAGE": f"sqlite:///{tmp_path}/none.db"}
    forked.start(words, tmp_path / "first", environment).wait(300)
    seconds = []
    for log in (tmp_path / name for name in ("second", "third", "fourth")):
        begin = time.monotonic()
        assert forked.start(words, log, environment).wait(60) == 2
        seconds.append(time.monotonic() - begin)
        assert "there is no study 'nobody'" in log.read_text()
    # Once would be enough: a machine may stall at any moment, but not thrice.
    assert min(seconds) < 3


def nice_session(niceness: int, told: Any) -> None:
    os.setsid()
    os.nice(niceness)
    forked.stay_nice()
    told.send(Path("/proc/self/autogroup").read_text())


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="needs Linux's autogroups")
@pytest.mark.parametrize("niceness", [0, 7])
def test_the_processes_of_a_nice_command_are_nice_to_other_sessions(niceness: int) -> None:
    fork = multiprocessing.get_context("fork")
    hearing, told = fork.Pipe(duplex=False)
    process = fork.Process(target=nice_session, args=(niceness, told))
    process.start()
    assert hearing.recv().split()[1:] == ["nice", str(niceness)]
    process.join()


def test_how_a_process_was_killed_is_known(orderly: Path) -> None:
    process = forked.start([ORDERLY], orderly / "log", os.environ)
    process.kill()
    assert process.wait(60) == -signal.SIGKILL


def test_what_a_module_raises_is_in_the_log(orderly: Path) -> None:
    (orderly / "broken.py").write_text("def main(words): raise ValueError('no such luck')")
    process = forked.start(["broken"], orderly / "log", os.environ)
    assert process.wait(60) == 1
    assert "ValueError: no such luck" in (orderly / "log").read_text()


def test_processes_end_with_a_command_that_is_killed(
    command: subprocess.Popen[bytes], orderly: Path
) -> None:
    started = descendants_of(command.pid)
    time.sleep(1.5)
    assert "asked" not in said(orderly, 0)
    command.kill()
    wait_until(lambda: all("asked" in said(orderly, number) for number in range(2)))
    wait_until(lambda: not any(map(is_alive, started)))
    assert said(orderly, "command") == ""


@pytest.mark.usefixtures("_cannot_fork")
def test_they_do_so_where_processes_cannot_be_copied(
    command: subprocess.Popen[bytes], orderly: Path
) -> None:
    test_processes_end_with_a_command_that_is_killed(command, orderly)


@pytest.mark.usefixtures("_cannot_fork")
def test_where_processes_cannot_be_copied_they_are_started_anew(orderly: Path) -> None:
    test_a_process_is_as_if_a_command_had_started_it(orderly)
    test_how_a_process_was_killed_is_known(orderly)
    test_what_a_module_raises_is_in_the_log(orderly)


def test_processes_whose_server_is_killed_end_because_nobody_can_watch_them(
    command: subprocess.Popen[bytes], orderly: Path
) -> None:
    (server,) = (pid for pid in descendants_of(command.pid) if descendants_of(pid))
    os.kill(server, signal.SIGKILL)
    wait_until(lambda: all("asked" in said(orderly, number) for number in range(2)))
    assert command.poll() is None


def test_one_signal_for_all_does_not_silence_the_server(
    command: subprocess.Popen[bytes],
) -> None:
    (server,) = (pid for pid in descendants_of(command.pid) if descendants_of(pid))
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        os.kill(server, number)
    time.sleep(0.5)
    assert is_alive(server)


def test_the_server_is_fit_to_be_copied() -> None:
    """Neither threads nor CUDA survive a fork, and the number of GPUs is asked for only once.

    NumPy's linear algebra has threads, but ends them before every fork.
    """
    script = """
import os, torch
def asked(*arguments): raise SystemExit("somebody asked for GPUs")
for name in ("_cuda_getDeviceCount", "_cuda_init"):
    setattr(torch._C, name, asked)
torch.cuda.device_count = torch.cuda.is_available = asked
import optuna_taylorglo.cli.fork_server
if (copy := os.fork()) == 0:
    os._exit(0)
os.waitpid(copy, 0)
print(len(os.listdir("/proc/self/task")), torch.cuda.is_initialized(), flush=True)
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-c", script]
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.stdout == "1 False\n", done.stderr
