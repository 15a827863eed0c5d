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

_MAX_LINES, _MAX_CHARACTERS = 20, 4000


@dataclass(frozen=True)
class Failure:
    """An exception as plain values that a database can hold.

    A usage error, which only the user can fix, has no traceback: its message says it all.
    """

    type: str
    message: str
    traceback: str = ""
    is_usage: bool = False
    worker: str = ""

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """An exception of this process."""
        is_usage = isinstance(error, UsageError)
        lines = [] if is_usage else "".join(traceback.format_exception(error)).splitlines()
        return cls(
            type(error).__name__,
            str(error)[:_MAX_CHARACTERS],
            "\n".join(lines[-_MAX_LINES:])[-_MAX_CHARACTERS:],
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
    """Store an exception with the trial that it ends."""
    failure = Failure.of(error)
    with contextlib.suppress(UpdateFinishedTrialError):  # it has failed as stale
        trial.set_user_attr(ERROR, asdict(failure))
    return failure


def failure_of(trial: FrozenTrial) -> Failure | None:
    """The exception that a trial ended with; None if its worker was killed."""
    content = trial.user_attrs.get(ERROR)
    return None if content is None else Failure(**content)


def last_exception(study: Study) -> Failure | None:
    """The newest exception that a trial of a study ended with, if there is one."""
    failures = map(failure_of, reversed(counted_trials(study)))
    return next(filter(None, failures), None)
