"""How a process of ours ends: its exit code, what it says, and what signals do to it."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
import sqlalchemy

from optuna_taylorglo.errors import (
    OperationError,
    RecipeError,
    StopRequested,
    StorageUnreachable,
    UsageError,
)
from optuna_taylorglo.process import FAILED, INTERRUPTED, configure_logging, exit_code
from optuna_taylorglo.study.outages import stop_requested

logger = logging.getLogger("optuna_taylorglo.test")
OUTAGE = sqlalchemy.exc.OperationalError("SELECT 1", None, Exception("server\n  closed"))


def ended_by(error: BaseException | None) -> int:
    def act() -> int:
        if error is not None:
            raise error
        return 5

    return exit_code(act, logger)


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UsageError("take another"), 2, "take another"),
        (RecipeError("search.sigma", "0 is bad", "my.yaml"), 2, "my.yaml: search.sigma: 0 is bad"),
        (OperationError("it broke"), 1, "it broke"),
        (StorageUnreachable("no answer"), 1, "no answer"),
        (OUTAGE, 1, "the database did not come back: server closed"),
        (StopRequested(), 130, "stopped; the same command goes on where it was"),
    ],
)
def test_what_was_understood_is_said_in_one_line(
    error: Exception, code: int, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger=logger.name):
        assert ended_by(error) == code
    (record,) = caplog.records
    assert (record.getMessage(), bool(record.exc_info)) == (message, False)
    assert record.levelno == (logging.INFO if code == INTERRUPTED else logging.ERROR)


def test_what_was_not_understood_is_shown_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert ended_by(None) == 5
    assert ended_by(KeyError("a bug")) == 1
    assert "Traceback" in caplog.text
    assert "KeyError: " in caplog.text


def test_who_is_told_to_stop_during_an_outage_has_not_failed() -> None:
    stop_requested.set()
    assert ended_by(OUTAGE) == ended_by(StorageUnreachable("no answer")) == INTERRUPTED
    assert ended_by(OperationError("it broke")) == FAILED


@pytest.fixture
def _levels() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("optuna_taylorglo", "lightning_modules")]
    before = [each.level for each in loggers]
    yield
    for each, level in zip(loggers, before, strict=True):
        each.setLevel(level)


@pytest.mark.usefixtures("_levels")
def test_how_much_is_said() -> None:
    for options, level in (
        ({}, logging.INFO),
        ({"verbose": True}, logging.DEBUG),
        ({"quiet": True}, logging.ERROR),
    ):
        configure_logging(**options)
        assert logging.getLogger("optuna_taylorglo.study.queue").getEffectiveLevel() == level
        assert logging.getLogger("lightning_modules.data").getEffectiveLevel() == level
        assert logging.getLogger("optuna").getEffectiveLevel() == logging.WARNING


STUBBORN = """
import logging, time
import optuna
from optuna_taylorglo.process import configure_logging, stop_on_signals
configure_logging()
for name in ("optuna_taylorglo.worker", "optuna"):
    logging.getLogger(name).warning("study %s", "\\x1b[31m")
stop = stop_on_signals()
print("ready", flush=True)
stop.wait(60)
print("asked", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_asks_and_the_second_ends(first: signal.Signals) -> None:
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-c", STUBBORN], stdout=pipe, stderr=pipe, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(first)
    assert process.stdout.readline() == "asked\n"
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, logged = process.communicate(timeout=30)
    assert process.returncode == INTERRUPTED
    assert logged.count(r"study \x1b[31m") == 2, "terminal escapes reach no log"
    assert "\x1b" not in logged
