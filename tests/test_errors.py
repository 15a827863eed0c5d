"""Every error is either the user's to fix, or an operation's failure, or a signal of our own."""

from __future__ import annotations

import pickle

import pytest

from optuna_taylorglo import errors
from optuna_taylorglo.errors import OperationError, RecipeError, RecipeMismatch, UsageError

SIGNALS = {errors.Diverged, errors.StopRequested}


def test_a_command_answers_an_error_in_one_way_only() -> None:
    kinds = [each for each in vars(errors).values() if isinstance(each, type)]
    for kind in (each for each in kinds if issubclass(each, BaseException)):
        bases = [base for base in (UsageError, OperationError) if issubclass(kind, base)]
        assert len(bases) == (0 if kind in SIGNALS else 1), kind
        # Code that catches ValueError to explain a bad setting must let the signals through.
        assert not (kind in SIGNALS and issubclass(kind, ValueError))


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        (UsageError, ValueError),
        (errors.MissingDataError, FileNotFoundError),
        (errors.StorageUnreachable, ConnectionError),
    ],
)
def test_what_python_has_a_class_for_can_be_caught_as_that(
    kind: type[Exception], base: type[Exception]
) -> None:
    assert issubclass(kind, base)
    assert str(kind("the reason")) == "the reason"


def test_errors_of_recipes_have_a_line_for_each_problem() -> None:
    error = RecipeError("lr", "0 is not allowed", others=[("", "it is empty")])
    outer = error.from_source("my.yaml")
    assert str(outer) == "my.yaml: lr: 0 is not allowed\nmy.yaml: it is empty"
    # Errors come back from other processes by pickle.
    assert str(pickle.loads(pickle.dumps(outer))) == str(outer)
    mismatch = RecipeMismatch("digits", ["search.sigma: 1 and 2", "batch_size: 3 and 4"], "Do so.")
    assert str(mismatch) == (
        "study 'digits' was started with another recipe:\n  search.sigma: 1 and 2\n"
        "  batch_size: 3 and 4\nDo so."
    )
