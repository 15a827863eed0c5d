"""The exceptions that ended trials, kept with them: a failure is to be understood, not counted."""

from __future__ import annotations

import traceback
from dataclasses import asdict, dataclass
from typing import Any

from optuna.study import Study

from optuna_taylorglo.attributes import ERROR
from optuna_taylorglo.queue.counted import counted_trials

_LINES = 20
_MAX_CHARACTERS = 4000


@dataclass(frozen=True)
class Failure:
    """An exception as plain values that a database can hold.

    Attributes:
        type: Name of its class.
        message: Its message.
        traceback: The last lines of its traceback, where the cause is; empty if there is none.
    """

    type: str
    message: str
    traceback: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """The failure that an exception is."""
        lines = "".join(traceback.format_exception(error)).rstrip().splitlines()
        end = "\n".join(lines[-_LINES:])
        message = str(error)[:_MAX_CHARACTERS]
        return cls(type(error).__name__, message, end[-_MAX_CHARACTERS:])

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        return self.traceback or f"{self.type}: {self.message}"


def last_exception(study: Study) -> Failure | None:
    """The newest exception that a trial of a study ended with, if there is one."""
    for trial in reversed(counted_trials(study)):
        content = trial.user_attrs.get(ERROR)
        # Of a worker that was killed there is no traceback, and nothing to mend in the code.
        if isinstance(content, dict) and content.get("traceback"):
            return Failure(
                **{key: str(content.get(key)) for key in ("type", "message", "traceback")}
            )
    return None
