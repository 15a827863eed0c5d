"""Every error is either the user's to fix, or an operation's failure, or a signal of our own."""

from __future__ import annotations

import inspect
import pickle

import pytest

from optuna_taylorglo import errors
from optuna_taylorglo.errors import OperationError, RecipeError, RecipeMismatch, UsageError

ALL = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if kind.__module__ == errors.__name__
]
SIGNALS = {errors.Diverged, errors.StopRequested}


@pytest.mark.parametrize("kind", ALL)
def test_a_command_answers_an_error_in_one_way_only(kind: type[BaseException]) -> None:
    bases = [base for base in (UsageError, OperationError) if issubclass(kind, base)]
    assert len(bases) == (0 if kind in SIGNALS else 1)
    # Code that catches ValueError to explain a bad setting must let the signals through.
    assert not (kind in SIGNALS and issubclass(kind, ValueError))


def test_what_python_has_a_class_for_can_be_caught_as_that() -> None:
    for kind, base in (
        (UsageError, ValueError),
        (errors.MissingDataError, FileNotFoundError),
        (errors.StorageUnreachable, ConnectionError),
    ):
        assert issubclass(kind, base)
        assert str(kind("the reason")) == "the reason"


def test_a_recipe_error_says_source_field_and_problem() -> None:
    error = RecipeError("lr", "0 is not allowed", others=[("", "it is empty")])
    outer = error.from_source("my.yaml")
    assert str(outer) == "my.yaml: lr: 0 is not allowed\nmy.yaml: it is empty"
    # Errors come back from other processes by pickle.
    assert str(pickle.loads(pickle.dumps(outer))) == str(outer)


def test_a_mismatch_lists_every_difference_and_says_what_to_do() -> None:
    error = RecipeMismatch("digits", ["search.sigma: 1 and 2", "batch_size: 3 and 4"])
    lines = str(error).splitlines()
    assert lines[:3] == [
        "study 'digits' was started with another recipe:",
        "  search.sigma: 1 and 2",
        "  batch_size: 3 and 4",
    ]
    assert "another name" in lines[3]
