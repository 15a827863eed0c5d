"""Stages of a verdict in words."""

from __future__ import annotations

import pytest

from optuna_taylorglo.verdict.families import FAMILIES, LearningRates
from optuna_taylorglo.verdict.tasks import (
    Task,
    cross_entropy,
    stage_in_hand,
    stage_of,
    standard_loss,
)


def task(loss, *, on_test_set=False, seed=0, **data_args):
    return Task(loss, seed, 10, "steps", on_test_set, data_args)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (task(cross_entropy(), on_test_set=True), "testing cross-entropy"),
        (
            task(cross_entropy(), on_test_set=True, fraction=0.1),
            "testing cross-entropy at fraction 0.1",
        ),
        (task(cross_entropy("ce-tuned")), "tuning cross-entropy's learning rate"),
        (
            task(
                standard_loss(
                    "label-smoothing", FAMILIES["label-smoothing"], 0.1, LearningRates(0.05), 0.05
                )
            ),
            "tuning label smoothing",
        ),
        (task(cross_entropy("finalist")), "choosing the winner"),
        (task(cross_entropy("mine", "my loss")), "training my loss"),
    ],
)
def test_stages_are_named(made, words):
    assert stage_of(made) == words


def test_the_first_stage_that_is_not_over_is_shown():
    one, other = (
        [task(cross_entropy(label=label), on_test_set=True, seed=s) for s in range(3)]
        for label in ("a", "b")
    )
    tasks = [*one, *other]
    assert stage_in_hand(tasks, [True, False, True, False, False, False]) == ("testing a", 2, 3)
    assert stage_in_hand(tasks, [True] * 4 + [False] * 2) == ("testing b", 1, 3)
    assert stage_in_hand(tasks, [True] * 6) == ("testing b", 3, 3)
