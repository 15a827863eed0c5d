"""Why a trial failed, kept with the trial: whoever waits for it may be on another machine."""

from __future__ import annotations

import os
import platform
import traceback
from dataclasses import asdict, dataclass

from optuna.trial import FrozenTrial, Trial

from optuna_taylorglo.attributes import FAILURE
from optuna_taylorglo.errors import UsageError
from optuna_taylorglo.queue.late_words import annotate

TRACEBACK_LINES = 16
"""Lines of a traceback that are kept: its end is where the user has to look."""

_LONGEST = 2000


@dataclass(frozen=True)
class Failure:
    """What a training ended with.

    Attributes:
        message: The exception, in words.
        is_usage: Whether the user can mend it by typing something else; then no second attempt
            has another end.
        traceback: The end of its traceback; empty where the message says it all.
        worker: Process and machine on which it happened.
    """

    message: str
    is_usage: bool = False
    traceback: str = ""
    worker: str = ""


def record_failure(trial: Trial, error: Exception) -> None:
    """Keep an exception with the trial that it ends."""
    is_usage = isinstance(error, UsageError)
    message = str(error) if is_usage else traceback.format_exception_only(error)[-1].strip()
    lines = "" if is_usage else "".join(traceback.format_exception(error))
    end = "\n".join(lines.splitlines()[-TRACEBACK_LINES:])
    worker = f"process {os.getpid()} on {platform.node()}"
    failure = Failure(message[:_LONGEST], is_usage, end[-2 * _LONGEST :], worker)
    annotate(trial, FAILURE, asdict(failure))


def failure_of(trial: FrozenTrial) -> Failure | None:
    """What a trial ended with; None if nobody could say, as of a worker that was killed."""
    content = trial.user_attrs.get(FAILURE)
    return None if content is None else Failure(**content)
