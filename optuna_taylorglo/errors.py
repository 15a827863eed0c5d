"""Every error class of the package.

Commands report a `UsageError`, which the user can fix by typing something else, in one line and
with exit code 2, an `OperationError` in one line and with exit code 1, and anything else, a bug in
the package or in the user's own code, with its traceback.
"""

from __future__ import annotations

from collections.abc import Sequence


class UsageError(ValueError):
    """A request that cannot be met; the message says what to change."""


class OperationError(RuntimeError):
    """A valid request that failed; the message says what failed, and what to do."""


class RecipeError(UsageError):
    """A recipe that cannot be used, with one line for each problem.

    Attributes:
        field: Dotted path of the field, empty when the whole recipe is meant.
        problem: What is wrong with it, including its value.
        source: Where the recipe came from, usually the file's name.
        others: Fields and problems after the first.
    """

    def __init__(
        self, field: str, problem: str, source: str = "", others: Sequence[tuple[str, str]] = ()
    ) -> None:
        super().__init__(field, problem, source, others)
        self.field, self.problem, self.source, self.others = field, problem, source, others

    def __str__(self) -> str:
        problems = [(self.field, self.problem), *self.others]
        return "\n".join(": ".join(filter(None, (self.source, *each))) for each in problems)

    def from_source(self, source: str) -> RecipeError:
        """The same error, with the place the recipe came from."""
        return RecipeError(self.field, self.problem, source, self.others)


class RecipeMismatch(UsageError):
    """The study was started with another recipe; the message has a line for each difference."""

    def __init__(self, study_name: str, differences: Sequence[str], advice: str) -> None:
        lines = "\n".join(f"  {line}" for line in differences)
        super().__init__(
            f"study {study_name!r} was started with another recipe:\n{lines}\n{advice}"
        )


class StudyError(UsageError):
    """A study that cannot be worked on; the message says what to type instead."""


class StorageURLError(UsageError):
    """A storage URL that cannot be used; the message shows it without its password."""


class StorageUnreachable(OperationError, ConnectionError):
    """A database that cannot be reached or refuses the connection; the message says why."""


class StudyDeleted(OperationError):
    """The study was deleted by another process while a command worked on it."""

    def __init__(self, name: str | None = None) -> None:
        which = "the study" if name is None else f"study {name!r}"
        super().__init__(
            f"{which} was deleted while this command worked on it; its trials are gone too."
        )

    @staticmethod
    def tells(error: BaseException) -> bool:
        """Whether an error is that of Optuna's storages for a deleted study or trial."""
        return isinstance(error, KeyError) and error.args == ("Record does not exist.",)


class UserCodeError(UsageError):
    """The user's own code raised; the message has the part of the traceback that is theirs."""


class LossFileError(UsageError):
    """A loss file that cannot be read; the message names the file and the field."""


class MissingDataError(UsageError, FileNotFoundError):
    """A data set that is not on this machine and cannot be downloaded."""


class WorkersFailed(OperationError):
    """All workers failed; the message has the last output of one."""


class EvaluationsFail(OperationError):
    """Every evaluation ends with the same exception; the message has its traceback."""


class TrainingFailed(OperationError):
    """A training failed in every attempt; the message has the last exception."""


class Diverged(ArithmeticError):
    """Training produced a loss or a metric that is not finite."""


class StopRequested(Exception):
    """A signal asked this process to stop; its trial is requeued."""
