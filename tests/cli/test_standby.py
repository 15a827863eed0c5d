"""Workers that have imported everything before they are needed."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from searches import wait_until

from optuna_taylorglo.cli.standby import StandbyWorkers


def has_imported(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process waits for what to do: it has mapped PyTorch and reads its input."""
    maps, where = (Path(f"/proc/{process.pid}/{name}") for name in ("maps", "wchan"))
    return "libtorch_cpu" in maps.read_text() and "pipe" in where.read_text()


def test_a_worker_on_standby_begins_at_once_as_if_started_by_a_command(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    with StandbyWorkers() as standby:
        standby.prepare(1)
        (waiting,) = standby._waiting
        wait_until(lambda: has_imported(waiting))
        begin = time.monotonic()
        storage = f"sqlite:///{tmp_path}/none.db"
        process = standby.start(
            ["--study-name", "nobody"], log, os.environ | {"OPTUNA_STORAGE": storage}
        )
        assert process is waiting
        assert process.wait(60) == 2
        assert time.monotonic() - begin < 5
    said = log.read_text()
    assert said.startswith("before\n")
    assert f"worker {process.pid} starts on study nobody" in said
    assert "there is no study 'nobody'" in said


def test_one_that_died_on_standby_is_not_used(tmp_path: Path) -> None:
    with StandbyWorkers() as standby:
        standby.prepare(1)
        (first,) = standby._waiting
        first.send_signal(signal.SIGKILL)
        first.wait()
        process = standby.start(["--version"], tmp_path / "log", os.environ)
        assert process is not first
        assert process.wait(60) == 0
    assert (tmp_path / "log").read_text().startswith("taylorglo-worker ")


def test_nobody_is_left_on_standby() -> None:
    with StandbyWorkers() as standby:
        standby.prepare(2)
        waiting = list(standby._waiting)
    assert all(process.poll() is not None for process in waiting)
