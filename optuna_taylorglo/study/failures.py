"""Exceptions that ended trials, stored with them: the user may be on another machine."""

from __future__ import annotations

import contextlib
import os
import platform
import traceback
from dataclasses import asdict, dataclass

from optuna.exceptions import UpdateFinishedTrialError
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial

from optuna_taylorglo.attributes import ERROR
from optuna_taylorglo.errors import UsageError
from optuna_taylorglo.study.queue import counted_trials

_LINES = 20
_MAX_CHARACTERS = 4000


@dataclass(frozen=True)
class Failure:
    """An exception as plain values that a database can hold.

    Attributes:
        type: Name of its class.
        message: Its message.
        traceback: The last lines of its traceback, where the cause is; empty where the message
            says it all.
        is_usage: Whether the user can mend it by typing something else; then no second attempt has
            another end.
        worker: Process and machine on which it happened.
    """

    type: str
    message: str
    traceback: str = ""
    is_usage: bool = False
    worker: str = ""

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """The failure that an exception is, in this process."""
        is_usage = isinstance(error, UsageError)
        lines = [] if is_usage else "".join(traceback.format_exception(error)).splitlines()
        return cls(
            type(error).__name__,
            str(error)[:_MAX_CHARACTERS],
            "\n".join(lines[-_LINES:])[-_MAX_CHARACTERS:],
            is_usage,
            f"process {os.getpid()} on {platform.node()}",
        )

    @property
    def in_words(self) -> str:
        """The exception without its traceback."""
        return self.message if self.is_usage else f"{self.type}: {self.message}"

    def __str__(self) -> str:
        return self.traceback or self.in_words


def record_failure(trial: Trial, error: Exception) -> Failure:
    """Keep an exception with the trial that it ends, and return it as it is kept."""
    failure = Failure.of(error)
    with contextlib.suppress(UpdateFinishedTrialError):  # it has failed as stale
        trial.set_user_attr(ERROR, asdict(failure))
    return failure


def failure_of(trial: FrozenTrial) -> Failure | None:
    """What a trial ended with; None if nobody could say."""
    content = trial.user_attrs.get(ERROR)
    return Failure(**content) if isinstance(content, dict) else None


def last_exception(study: Study) -> Failure | None:
    """The newest exception that a trial of a study ended with, if there is one."""
    for trial in reversed(counted_trials(study)):
        failure = failure_of(trial)
        # Of a worker that was killed there is no traceback, and nothing to mend in the code.
        if failure is not None and (failure.traceback or failure.is_usage):
            return failure
    return None
