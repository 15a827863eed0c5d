"""Processes on this machine: what dies is restarted, wrong usage ends all, stopping leaves none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import local_jobs
import pytest
from searches import ROOT, descendants_of, is_alive, wait_until

from optuna_taylorglo import local
from optuna_taylorglo.errors import WorkersFailed
from optuna_taylorglo.local import MAX_FAILURES, Job, LocalProcesses
from optuna_taylorglo.process import BROKEN


class Processes:
    """Makes processes and leaves none of them behind."""

    def __init__(self, log_dir: Path) -> None:
        self.log_dir = log_dir
        self._made: list[LocalProcesses] = []

    def __call__(self, *jobs: Job) -> LocalProcesses:
        self._made.append(LocalProcesses(jobs, self.log_dir))
        self._made[-1].start()
        return self._made[-1]

    def log(self, number: int = 0) -> str:
        path = self.log_dir / f"{number}.log"
        return path.read_text() if path.exists() else ""

    def close(self) -> None:
        for processes in self._made:
            for job in processes._jobs:
                if job.process is not None:
                    job.process.kill()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    made = Processes(tmp_path / "logs" / "study")
    yield made
    made.close()


@pytest.fixture
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "LONGEST_WAIT", 0.01)


def job(run: Callable[..., int], *arguments: object, **environment: str) -> Job:
    return Job(run, arguments, environment)


def running(processes: LocalProcesses) -> list[bool]:
    return [job.is_running for job in processes._jobs]


def until_over(processes: LocalProcesses) -> None:
    wait_until(lambda: not processes.poll())


def test_one_that_is_done_is_not_restarted_while_others_work(
    processes: Processes, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    made = LocalProcesses([], tmp_path)
    assert not made.poll(), "nothing was started"
    started = processes(job(local_jobs.say, "begun"), job(local_jobs.until_file, str(gate)))
    wait_until(lambda: started.poll() and running(started) == [False, True])
    gate.touch()
    until_over(started)
    assert processes.log() == "begun\n"
    # More work may come later, for which all are needed once more.
    started.start()
    until_over(started)
    assert processes.log() == "begun\nbegun\n"


@pytest.mark.parametrize("code", [2, BROKEN])
def test_wrong_usage_and_hopeless_evaluations_end_all(
    processes: Processes, tmp_path: Path, code: int
) -> None:
    failing = job(local_jobs.die, str(tmp_path / "counter"), 1, str(code))
    started = processes(job(local_jobs.until_told), failing)
    with pytest.raises(WorkersFailed, match=rf"code {code}; its log .*1\.log ends with\n  begun"):
        until_over(started)
    assert running(started) == [False, False]


def test_stopping_asks_first_and_then_insists(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "STOP_LIMIT", 1.0)
    started = processes(job(local_jobs.until_told), job(local_jobs.stubborn))
    wait_until(lambda: all("ready" in processes.log(number) for number in (0, 1)))
    started.stop()
    assert [job.exit_code for job in started._jobs] == [5, -signal.SIGKILL]
    assert processes.log().endswith("asked\n")


def test_everything_is_imported_before_the_copy_and_a_copy_is_safe(processes: Processes) -> None:
    """Neither threads nor CUDA survive a fork; the copy has one thread more, of its own."""
    started = processes(job(local_jobs.n_threads))
    until_over(started)
    imported, threads, cuda = processes.log().split()
    assert (imported, cuda) == ("True", "False")
    assert int(threads) <= 2


@pytest.mark.usefixtures("_no_waits")
def test_kills_never_end_a_run(processes: Processes, tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    started = processes(job(local_jobs.die, str(counter), MAX_FAILURES, "SIGKILL"))
    until_over(started)
    assert counter.read_text() == "x" * (MAX_FAILURES + 1)


@pytest.mark.usefixtures("_no_waits")
def test_processes_that_all_fail_again_and_again_end_it(
    processes: Processes, tmp_path: Path
) -> None:
    failing = [job(local_jobs.die, str(tmp_path / name), 99, "7") for name in ("a", "b")]
    started = processes(job(local_jobs.say_environment, "OWN", "OTHER", OWN="a"), *failing)
    with pytest.raises(WorkersFailed, match=r"the worker ended with code 7(.|\n)*begun"):
        until_over(started)
    assert running(started) == [False] * 3
    logs = [processes.log(number) for number in range(3)]
    assert logs == ["a None\n", *["begun\n" * MAX_FAILURES] * 2]


@pytest.mark.usefixtures("_no_waits")
def test_one_that_always_fails_does_not_stop_the_others(
    processes: Processes, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    jobs = [
        job(local_jobs.until_file_unless_broken, str(gate), BROKEN=broken)
        for broken in ("yes", "no")
    ]
    started = processes(*jobs)
    wait_until(lambda: started.poll() and jobs[0].restart_at == float("inf"))
    assert running(started) == [False, True]
    gate.touch()
    until_over(started)


def test_waits_grow_and_begin_again_after_a_while_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(local.time, "monotonic", lambda: now)
    made = Job(local_jobs.say, ())

    def wait_after_living(seconds: float, code: int = -9) -> float:
        nonlocal now
        made.started = now
        now += seconds
        made.plan_restart(code)
        assert made.restart_at is not None
        return made.restart_at - now

    assert [wait_after_living(3) for _ in range(9)] == [0, 1, 3, 7, 15, 31, 60, 60, 60]
    assert [wait_after_living(s) for s in (30, 3, 3, 30)] == [0, 1, 3, 0]
    for _ in range(2000):
        assert wait_after_living(0) <= 60
    # Three failed evaluations take a while, and are failures of the process all the same.
    ends = [wait_after_living(90, code=1) for _ in range(MAX_FAILURES)]
    assert ends == [0] * (MAX_FAILURES - 1) + [float("inf")]
    assert wait_after_living(3600, code=1) == 0


COMMAND = """
import pathlib, time
import local_jobs
from optuna_taylorglo.local import Job, LocalProcesses
if __name__ == "__main__":
    LocalProcesses([Job(local_jobs.until_told, ()) for _ in range(2)], pathlib.Path(".")).start()
    time.sleep(60)
"""


@pytest.fixture
def command(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A command that has started two processes, which are ready."""
    (tmp_path / "command.py").write_text(COMMAND)
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'helpers'}"}
    words = [sys.executable, "command.py"]
    with (tmp_path / "command.log").open("wb") as log:
        process = subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=log, stderr=log)
    wait_until(lambda: all("ready" in said(tmp_path, number) for number in range(2)))
    yield process
    for pid in (process.pid, *descendants_of(process.pid)):
        os.kill(pid, signal.SIGKILL)
    process.wait()


def said(directory: Path, number: int) -> str:
    log = directory / f"{number}.log"
    return log.read_text() if log.exists() else ""


@pytest.mark.parametrize("victim", ["command", "fork server"])
def test_processes_end_with_the_command_and_with_the_fork_server(
    command: subprocess.Popen[bytes], tmp_path: Path, victim: str
) -> None:
    started = descendants_of(command.pid)
    (server,) = (pid for pid in started if descendants_of(pid))
    workers = [pid for pid in started if pid != server and os.getpgid(pid) == pid]
    time.sleep(1.5)
    assert "asked" not in said(tmp_path, 0)
    os.kill(command.pid if victim == "command" else server, signal.SIGKILL)
    wait_until(lambda: all("asked" in said(tmp_path, number) for number in range(2)))
    wait_until(lambda: not any(map(is_alive, workers)))
    assert len(workers) == 2
    assert (tmp_path / "command.log").read_text() == ""
