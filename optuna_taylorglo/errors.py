"""Every error class of the package.

`UsageError` is the one base of all that the user can mend by typing something else: commands
answer it with one line and exit code 2. `OperationError` is the base of what went wrong around us
and was understood: one line and exit code 1. Any other exception is a bug, in here or in the
user's own code, and is shown with its traceback.
"""

from __future__ import annotations

from collections.abc import Sequence


class UsageError(ValueError):
    """Something was asked for that cannot be done; the message says what to change."""


class OperationError(RuntimeError):
    """Something that was rightly asked for failed; the message says what, and what to do."""


class RecipeError(UsageError):
    """A recipe that cannot be used: names the source, the field, the value and what is allowed.

    Attributes:
        field: Dotted path of the field, empty when the whole recipe is meant.
        problem: What is wrong with it, value included.
        source: Where the recipe came from, usually the file's name.
        others: Fields and problems besides the first.
    """

    def __init__(
        self, field: str, problem: str, source: str = "", others: Sequence[tuple[str, str]] = ()
    ) -> None:
        super().__init__(field, problem, source, others)
        self.field = field
        self.problem = problem
        self.source = source
        self.others = others

    def __str__(self) -> str:
        problems = [(self.field, self.problem), *self.others]
        return "\n".join(": ".join(filter(None, (self.source, *each))) for each in problems)

    def within(self, section: str) -> RecipeError:
        """The same error, seen from the section's parent."""
        first, *others = [
            (".".join(filter(None, (section, field))), problem)
            for field, problem in [(self.field, self.problem), *self.others]
        ]
        return RecipeError(*first, self.source, others)

    def from_source(self, source: str) -> RecipeError:
        """The same error, with the place the recipe came from."""
        return RecipeError(self.field, self.problem, source, self.others)


class RecipeMismatch(UsageError):
    """The study was started with another recipe.

    Attributes:
        differences: One line for each field that differs.
    """

    def __init__(
        self,
        study_name: str,
        differences: list[str],
        advice: str = "Go on with the study's own by leaving the recipe out, or give the new "
        "recipe a study of its own under another name.",
    ) -> None:
        self.differences = differences
        lines = "\n".join(f"  {line}" for line in differences)
        super().__init__(
            f"study {study_name!r} was started with another recipe:\n{lines}\n{advice}"
        )


class StudyError(UsageError):
    """A study that cannot be worked on; the message says what to type instead."""


class StorageURLError(UsageError):
    """A storage URL that cannot be used; the message shows it without its password."""


class StorageUnreachable(OperationError, ConnectionError):
    """A database that cannot be reached or refuses us; the message says which and why."""


class StudyDeleted(OperationError):
    """The study was deleted by somebody while it was worked on.

    Args:
        name: Its name, if known.
    """

    def __init__(self, name: str | None = None) -> None:
        which = "the study" if name is None else f"study {name!r}"
        super().__init__(
            f"{which} was deleted while this command worked on it; its trials are gone too."
        )

    @staticmethod
    def tells(error: BaseException) -> bool:
        """Whether an error is how Optuna's storages tell of a study or trial that is gone."""
        return isinstance(error, KeyError) and error.args == ("Record does not exist.",)


class UserCodeError(UsageError):
    """The user's own code raised; the message has the part of the traceback that is theirs."""


class LossFileError(UsageError):
    """A loss file that cannot be read; the message names the file and the field."""


class MissingDataError(UsageError, FileNotFoundError):
    """A data set is neither on this machine nor to be fetched from the network."""


class WorkersFailed(OperationError):
    """No worker is left that could go on; the message has the last words of one."""


class EvaluationsFail(OperationError):
    """Every evaluation ends with the same exception; the message has its traceback."""


class TrainingFailed(OperationError):
    """A training ended with an exception again and again; the message has its last words."""


class Diverged(ArithmeticError):
    """Training produced a loss or a metric that is not finite."""


class StopRequested(Exception):
    """A signal asked this process to stop; what it holds is released for others."""
