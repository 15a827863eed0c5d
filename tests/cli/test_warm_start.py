"""Processes forked from one that has imported everything."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from searches import wait_until

from optuna_taylorglo.cli.warm_start import start_warm


@pytest.fixture
def environment() -> dict[str, str]:
    return os.environ | {"MARK": "here"}


def test_it_is_as_if_started_by_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    log = tmp_path / "log"
    log.write_text("before\n")
    process = start_warm(["warm_child", "tell", "a b"], log, environment)
    assert process.wait(60) == process.poll() == process.returncode == 7
    assert sorted(log.read_text().splitlines()) == sorted(
        [
            "before",
            f"True {tmp_path} here ['a b']",
            "and an error",
            "True ['tell', 'a b']",
        ]
    )


def test_a_killed_one_is_replaced_within_a_second(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    log = tmp_path / "log"
    process = start_warm(["warm_child", "wait"], log, environment)
    wait_until(lambda: "waiting" in log.read_text() if log.exists() else False)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(10) == -signal.SIGKILL
    begin = time.monotonic()
    another = start_warm(["warm_child", "wait"], log, environment)
    wait_until(lambda: log.read_text().count("waiting") == 2)
    assert time.monotonic() - begin < 1
    another.terminate()
    assert another.wait(10) == -signal.SIGTERM
