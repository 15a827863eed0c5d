"""Every error is either the user's to mend, or an operation's failure, or a signal of our own."""

from __future__ import annotations

import inspect
import pickle

import pytest

from optuna_taylorglo import errors
from optuna_taylorglo.errors import (
    MissingDataError,
    OperationError,
    RecipeError,
    RecipeMismatch,
    StorageUnreachable,
    UsageError,
)

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


def test_what_python_has_a_class_for_can_be_caught_as_that() -> None:
    assert issubclass(UsageError, ValueError)
    assert issubclass(MissingDataError, FileNotFoundError)
    assert issubclass(StorageUnreachable, ConnectionError)
    assert str(MissingDataError("put it there")) == "put it there"
    assert str(StorageUnreachable("nobody listens")) == "nobody listens"


def test_stop_and_divergence_are_not_taken_for_wrong_values() -> None:
    """Whoever catches ValueError to explain a bad setting must let these through."""
    for kind in SIGNALS:
        assert not issubclass(kind, ValueError)


def test_a_recipe_error_says_source_field_and_problem() -> None:
    inner = RecipeError("lr", "0 is not allowed, must be above 0")
    outer = inner.within("optimizer").from_source("my.yaml")
    assert str(outer) == "my.yaml: optimizer.lr: 0 is not allowed, must be above 0"
    assert str(RecipeError("", "is empty").within("search")) == "search: is empty"
    # Errors come back from other processes by pickle.
    copy = pickle.loads(pickle.dumps(outer))
    assert (copy.field, copy.problem, copy.source) == (outer.field, outer.problem, outer.source)


def test_a_mismatch_lists_every_difference_and_says_what_to_do() -> None:
    error = RecipeMismatch("digits", ["search.sigma: 1 and 2", "batch_size: 3 and 4"])
    lines = str(error).splitlines()
    assert lines[:3] == [
        "study 'digits' was started with another recipe:",
        "  search.sigma: 1 and 2",
        "  batch_size: 3 and 4",
    ]
    assert "another name" in lines[3]
