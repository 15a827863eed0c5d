"""The supervisor: what dies is started again, wrong usage ends all, and stopping leaves nobody."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from searches import wait_until

from optuna_taylorglo.cli import supervisor as supervisor_module
from optuna_taylorglo.cli.process import BROKEN
from optuna_taylorglo.cli.supervisor import MAX_FAILURES, Supervisor, _Child
from optuna_taylorglo.errors import WorkersFailed
from optuna_taylorglo.queue.identity import TOKEN_VARIABLE, WorkerIdentity

SLEEPER = ["sleep", "60"]
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(60)
"""


def start_command(
    command: Sequence[str], log: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    with log.open("ab") as file:
        return subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment)


class Supervisors:
    """Makes supervisors and leaves none of their processes behind."""

    def __init__(self, log_dir: Path) -> None:
        self.log_dir = log_dir
        self._made: list[Supervisor] = []

    def __call__(
        self, *commands: list[str], environments: list[dict[str, str]] | None = None
    ) -> Supervisor:
        self._made.append(Supervisor(commands, start_command, self.log_dir, environments))
        return self._made[-1]

    def log(self, number: int = 0) -> str:
        return (self.log_dir / f"{number}.log").read_text()

    def close(self) -> None:
        for supervisor in self._made:
            supervisor.stop(longest_wait=0.1)


@pytest.fixture
def supervisors(tmp_path: Path) -> Iterator[Supervisors]:
    made = Supervisors(tmp_path / "logs" / "study")
    yield made
    made.close()


def shell(script: str) -> list[str]:
    return ["sh", "-c", script]


def running(supervisor: Supervisor) -> list[bool]:
    return [c.process is not None and c.process.poll() is None for c in supervisor._children]


def until_over(supervisor: Supervisor) -> None:
    wait_until(lambda: not supervisor.poll())


@pytest.mark.parametrize("death", ["exit 1", "exit 130", "kill -KILL $$"])
def test_a_worker_that_died_is_started_again(
    supervisors: Supervisors, tmp_path: Path, death: str
) -> None:
    mark = tmp_path / "mark"
    script = f"echo begun; [ -e {mark} ] && exit 0; touch {mark}; {death}"
    supervisor = supervisors(shell(script))
    supervisor.start()
    until_over(supervisor)
    assert supervisors.log() == "begun\nbegun\n"


def test_one_that_is_done_is_not_started_again_while_others_work(
    supervisors: Supervisors, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    waits = f"while [ ! -e {gate} ]; do sleep 0.05; done"
    supervisor = supervisors(shell("echo begun"), shell(waits))
    assert not supervisor.poll(), "nothing was started yet"
    supervisor.start()
    wait_until(lambda: supervisor.poll() and running(supervisor) == [False, True])
    assert supervisor.poll()
    gate.touch()
    until_over(supervisor)
    assert supervisors.log() == "begun\n"
    # More work may come later, for which all are needed once more.
    gate.unlink()
    supervisor.start()
    assert supervisor.poll()
    gate.touch()
    until_over(supervisor)
    assert supervisors.log() == "begun\nbegun\n"


def test_wrong_usage_ends_all_at_once(supervisors: Supervisors) -> None:
    supervisor = supervisors(SLEEPER, shell("echo no such device >&2; exit 2"))
    supervisor.start()
    with pytest.raises(WorkersFailed, match=r"code 2; .*1\.log ends with\n  no such device"):
        until_over(supervisor)
    assert running(supervisor) == [False, False]
    assert supervisors.log(1) == "no such device\n"


def test_stopping_asks_first_and_then_insists(supervisors: Supervisors) -> None:
    supervisor = supervisors(SLEEPER, [sys.executable, "-c", STUBBORN])
    supervisor.start()
    wait_until(lambda: "ready" in supervisors.log(1))
    begin = time.monotonic()
    supervisor.stop(longest_wait=1.0)
    assert 1.0 <= time.monotonic() - begin < 20
    assert running(supervisor) == [False, False]
    codes = [child.process.returncode for child in supervisor._children if child.process]
    assert codes == [-15, -9]


def test_each_has_its_own_log_and_environment(
    supervisors: Supervisors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARED", "all")
    script = shell("echo $SHARED $OWN")
    supervisor = supervisors(script, script, environments=[{"OWN": "a"}, {"OWN": "b"}])
    supervisor.start()
    until_over(supervisor)
    assert [supervisors.log(number) for number in (0, 1)] == ["all a\n", "all b\n"]


def test_a_death_is_told_at_once_and_an_orderly_end_is_not(
    supervisors: Supervisors, tmp_path: Path
) -> None:
    told: list[tuple[WorkerIdentity, str]] = []
    mark = tmp_path / "mark"
    dies_once = shell(f"[ -e {mark} ] && exit 0; touch {mark}; kill -KILL $$")
    stops = shell(f"[ -e {mark}2 ] && exit 0; touch {mark}2; exit 130")
    supervisor = Supervisor(
        [dies_once, stops],
        start_command,
        tmp_path,
        on_death=lambda dead, cause: told.append((dead, cause)),
    )
    supervisor.start()
    first = supervisor._children[0].identity
    until_over(supervisor)
    assert told == [(first, "the worker was ended by SIGKILL")]
    # Every start has a token of its own.
    assert supervisor._children[0].token != first.token


def test_one_that_had_to_be_killed_is_told_too(tmp_path: Path) -> None:
    told: list[str] = []
    supervisor = Supervisor(
        [[sys.executable, "-c", STUBBORN]],
        start_command,
        tmp_path,
        on_death=lambda dead, cause: told.append(cause),
    )
    supervisor.start()
    wait_until(lambda: "ready" in (tmp_path / "0.log").read_text())
    supervisor.stop(longest_wait=0.1)
    supervisor.stop()
    assert told == ["the worker was ended by SIGKILL"]


def test_a_worker_hears_its_token(supervisors: Supervisors) -> None:
    supervisor = supervisors(shell(f"echo ${TOKEN_VARIABLE}"))
    supervisor.start()
    until_over(supervisor)
    assert supervisors.log().strip() == supervisor._children[0].token


def test_evaluations_that_all_fail_are_not_begun_again(supervisors: Supervisors) -> None:
    supervisor = supervisors(SLEEPER, shell(f"echo KeyError >&2; exit {BROKEN}"))
    supervisor.start()
    with pytest.raises(WorkersFailed, match="KeyError"):
        until_over(supervisor)
    assert supervisors.log(1) == "KeyError\n"


@pytest.fixture
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "SHORTEST_WAIT", 0.01)
    monkeypatch.setattr(supervisor_module, "LONGEST_WAIT", 0.05)


@pytest.mark.usefixtures("_short_waits")
@pytest.mark.parametrize("death", ["kill -KILL $$", "kill -TERM $$", "exit 130"])
def test_kills_never_end_a_run(supervisors: Supervisors, tmp_path: Path, death: str) -> None:
    lives = 3 * MAX_FAILURES
    counter = tmp_path / "counter"
    script = f"echo >> {counter}; [ $(wc -l < {counter}) -gt {lives} ] && exit 0; {death}"
    supervisor = supervisors(shell(script))
    supervisor.start()
    until_over(supervisor)
    assert counter.read_text().count("\n") == lives + 1


@pytest.mark.usefixtures("_short_waits")
@pytest.mark.parametrize("death", ["exit 7", "exit 1", "kill -SEGV $$"])
def test_workers_that_all_fail_again_and_again_end_it(
    supervisors: Supervisors, tmp_path: Path, death: str
) -> None:
    failing = shell(f"echo last words; {death}")
    supervisor = supervisors(shell("exit 0"), failing, failing)
    supervisor.start()
    with pytest.raises(WorkersFailed, match=r"the worker (.|\n)*ends with\n(.|\n)*last words"):
        until_over(supervisor)
    assert running(supervisor) == [False] * 3
    for number in (1, 2):
        assert supervisors.log(number).count("last words") == MAX_FAILURES


@pytest.mark.usefixtures("_short_waits")
def test_one_that_always_fails_does_not_stop_the_others(
    supervisors: Supervisors, tmp_path: Path
) -> None:
    """And when these have come to the end, there is nothing left for it to do."""
    gate = tmp_path / "gate"
    # The same command, as with workers; who is broken is decided by its environment.
    script = shell(f"[ $BROKEN = yes ] && exit 1; while [ ! -e {gate} ]; do sleep 0.05; done")
    supervisor = supervisors(script, script, environments=[{"BROKEN": "yes"}, {"BROKEN": "no"}])
    supervisor.start()
    wait_until(lambda: supervisor.poll() and supervisor._children[0].hopeless)
    assert supervisor.poll()
    assert running(supervisor) == [False, True], "it would spoil one candidate after the other"
    gate.touch()
    until_over(supervisor)
    # For more work it is tried again.
    supervisor.start()
    assert supervisor.poll()
    until_over(supervisor)


def test_a_worker_in_back_off_keeps_nobody_waiting(
    supervisors: Supervisors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "SHORTEST_WAIT", 50.0)
    supervisor = supervisors(shell("kill -KILL $$"), SLEEPER)
    supervisor.start()
    wait_until(lambda: supervisor.poll() and supervisor._children[0].due is not None)
    begin = time.monotonic()
    for _ in range(20):
        assert supervisor.poll()
    assert time.monotonic() - begin < 25
    assert running(supervisor) == [False, True]
    supervisor.stop()
    assert time.monotonic() - begin < 50
    assert running(supervisor) == [False, False]


def test_waits_grow_and_begin_anew_after_a_while_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(supervisor_module.time, "monotonic", lambda: now)
    child = _Child([], tmp_path / "log", {}, start_command)

    def wait_after_living(seconds: float, code: int = -9) -> float:
        nonlocal now
        child.began = now
        now += seconds
        return child.plan_restart(code)

    assert [wait_after_living(3) for _ in range(9)] == [0, 1, 2, 4, 8, 16, 32, 60, 60]
    assert [wait_after_living(s) for s in (30, 3, 3, 30)] == [0, 1, 2, 0]
    for _ in range(2000):
        assert wait_after_living(0) <= 60
    assert not child.hopeless
    # Three failed evaluations take a while, and are a worker's own fault all the same.
    for expected in (False, False, False, False, True):
        wait_after_living(90, code=1)
        assert child.hopeless is expected
    wait_after_living(3600, code=1)
    assert not child.hopeless
