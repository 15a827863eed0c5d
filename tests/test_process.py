"""How a process of ours ends: its exit code, what it says, and what signals do to it."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import sqlalchemy

from optuna_taylorglo.errors import (
    MissingDataError,
    OperationError,
    RecipeError,
    StopRequested,
    StorageUnreachable,
    UsageError,
)
from optuna_taylorglo.process import (
    DONE,
    FAILED,
    INTERRUPTED,
    USAGE,
    configure_logging,
    exit_code,
    stop_on_signals,
)
from optuna_taylorglo.study.outages import stop_requested

logger = logging.getLogger("optuna_taylorglo.test")


def ended_by(error: BaseException | None) -> int:
    def act() -> int:
        if error is not None:
            raise error
        return 5

    return exit_code(act, logger)


def test_exit_codes_are_what_the_documentation_says() -> None:
    assert (DONE, FAILED, USAGE, INTERRUPTED) == (0, 1, 2, 130)
    assert ended_by(None) == 5


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("take another"), 2),
        (RecipeError("search.sigma", "0 is not allowed", "my.yaml"), 2),
        (MissingDataError("put it there"), 2),
        (OperationError("it broke"), 1),
        (StorageUnreachable("nobody listens"), 1),
    ],
)
def test_what_was_understood_is_said_in_one_line(
    error: Exception, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert ended_by(error) == code
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.ERROR, str(error))
    assert not record.exc_info


@pytest.mark.parametrize("error", [ValueError("a bug"), KeyError("a bug"), OSError("a bug")])
def test_what_was_not_understood_is_shown_with_its_traceback(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    assert ended_by(error) == 1
    assert "Traceback" in caplog.text
    assert f"{type(error).__name__}: " in caplog.text


def test_a_database_that_does_not_come_back_is_no_bug(caplog: pytest.LogCaptureFixture) -> None:
    outage = sqlalchemy.exc.OperationalError("SELECT 1", None, Exception("server\n  closed"))
    assert ended_by(outage) == 1
    (record,) = caplog.records
    assert record.getMessage() == "the database did not come back: server closed"
    assert not record.exc_info


def test_who_was_told_to_stop_has_not_failed(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger=logger.name):
        assert ended_by(StopRequested()) == 130
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert "goes on where it was" in record.getMessage()


@pytest.fixture
def _levels() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("optuna_taylorglo", "lightning_modules")]
    before = [each.level for each in loggers]
    yield
    for each, level in zip(loggers, before, strict=True):
        each.setLevel(level)


@pytest.mark.usefixtures("_levels")
@pytest.mark.parametrize(
    ("options", "level"),
    [({}, logging.INFO), ({"verbose": True}, logging.DEBUG), ({"quiet": True}, logging.ERROR)],
)
def test_how_much_is_said(options: dict[str, bool], level: int) -> None:
    configure_logging(**options)
    assert logging.getLogger("optuna_taylorglo.study.queue").getEffectiveLevel() == level
    assert logging.getLogger("lightning_modules.data").getEffectiveLevel() == level
    assert logging.getLogger("optuna").getEffectiveLevel() == logging.WARNING


ESCAPES = """
import logging
import optuna
from optuna_taylorglo.process import configure_logging
configure_logging()
for name in ("optuna_taylorglo.worker", "optuna"):
    logging.getLogger(name).warning("study %s", "\\x1b[31m")
"""


def test_terminal_escapes_reach_no_log() -> None:
    ended = subprocess.run([sys.executable, "-c", ESCAPES], capture_output=True, text=True)
    assert ended.stderr.count(r"study \x1b[31m") == 2
    assert "\x1b" not in ended.stderr


def test_who_is_told_to_stop_during_an_outage_has_not_failed() -> None:
    outages = [
        sqlalchemy.exc.OperationalError("SELECT 1", None, Exception("closed")),
        StorageUnreachable("nobody listens"),
    ]
    assert [ended_by(outage) for outage in outages] == [FAILED, FAILED]
    stop_requested.set()
    assert [ended_by(outage) for outage in outages] == [INTERRUPTED, INTERRUPTED]
    assert ended_by(OperationError("it broke")) == FAILED


STUBBORN = """
import time
from optuna_taylorglo.process import stop_on_signals
stop = stop_on_signals()
print("ready", flush=True)
stop.wait(60)
print("asked", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_first_signal_asks_and_the_second_ends(first: signal.Signals) -> None:
    process = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(first)
    assert process.stdout.readline() == "asked\n"
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == INTERRUPTED


def test_outside_the_main_thread_signals_are_left_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    answers: list[threading.Event] = []
    thread = threading.Thread(target=lambda: answers.append(stop_on_signals()))
    thread.start()
    thread.join()
    assert not answers[0].is_set()
    assert signal.getsignal(signal.SIGTERM) is before
