"""The best standard loss: same budget, same selection, the same whoever trains and whenever."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from verdicts import Recorder

from optuna_taylorglo.errors import StopRequested
from optuna_taylorglo.verdict.baselines import FINALISTS, best_standard_loss
from optuna_taylorglo.verdict.families import FAMILIES
from optuna_taylorglo.verdict.tasks import Task

RIGHT_RATE = 0.04
"""Best learning rate of the made-up problem, in terms of the recipe's."""


@pytest.fixture
def recipe(recipe: Any) -> Any:
    """A search of 96 trainings, short and long ones of different lengths."""
    search = recipe.search.changed(popsize=8, n_generations=6, repeats=2)
    return recipe.changed(search=search, budget=recipe.budget.changed(evaluation=5, full=6))


def fitness(recipe: Any) -> Any:
    """A problem that PolyLoss with ε = 17 at a small learning rate solves, and others less."""

    def value(task: Task) -> float | None:
        loss = task.loss
        assert loss.learning_rate is not None
        off = math.log10(loss.learning_rate / recipe.optimizer.lr / RIGHT_RATE)
        if loss.learning_rate > 5 * recipe.optimizer.lr:
            return None
        if loss.kind == "poly":
            return 0.95 - ((loss.settings["epsilon"] - 17) / 100) ** 2 - 0.05 * off**2
        return 0.9 - 0.05 * off**2

    return value


def test_it_spends_what_the_search_spent_and_chooses_by_full_trainings(recipe: Any) -> None:
    do = Recorder(fitness(recipe))
    found = best_standard_loss("best-standard", recipe, do)
    short = [task for task in do.tasks if task.length == recipe.budget.evaluation]
    full = [task for task in do.tasks if task.length == recipe.budget.full]
    assert len(short) == 96
    assert len({task.seed for task in short}) == 96
    assert not {task.seed for task in short} & {task.seed for task in full}
    assert not any(task.on_test_set for task in do.tasks)
    # Ten losses with two seeds, five with two more, three with four more.
    trainings = Counter(task.loss.label for task in full)
    assert sorted(trainings.values()) == [2] * 5 + [4] * 2 + [8] * 3
    assert len(trainings) == FINALISTS
    assert len({task.seed for task in full}) == 8
    assert (found.name, found.kind) == ("best-standard", "poly")
    assert found.settings["epsilon"] == pytest.approx(17, abs=8)
    assert found.label.startswith("best standard loss, same budget: PolyLoss-1 (epsilon 1")
    assert f" at learning rate {found.learning_rate:.3g}" in found.label


def test_it_begins_with_cross_entropy_and_tries_every_kind(recipe: Any) -> None:
    do = Recorder(fitness(recipe))
    best_standard_loss("best-standard", recipe, do)
    first = do.tasks[0].loss
    assert (first.kind, first.settings) == ("cross-entropy", {"label_smoothing": 0.0})
    assert first.learning_rate == recipe.optimizer.lr
    kinds = {task.loss.kind for task in do.tasks}
    assert kinds == {family.kind for family in FAMILIES.values()}


def test_what_is_proposed_follows_from_seed_and_results_only(recipe: Any) -> None:
    one, same, other = (Recorder(fitness(recipe)) for _ in range(3))
    best_standard_loss("best-standard", recipe, one)
    best_standard_loss("best-standard", recipe, same)
    assert [task.key for task in one.tasks] == [task.key for task in same.tasks]
    reseeded = recipe.changed(search=recipe.search.changed(seed=1))
    best_standard_loss("best-standard", reseeded, other)
    assert len({task.key for task in one.tasks} & {task.key for task in other.tasks}) == 0


def test_an_interrupted_one_goes_on_where_it_was(recipe: Any) -> None:
    whole = Recorder(fitness(recipe))
    expected = best_standard_loss("best-standard", recipe, whole)
    known: dict[str, float | None] = {}
    trained: list[str] = []

    def do(tasks: Sequence[Task]) -> list[float | None]:
        for task in tasks:
            if task.key not in known:
                if len(trained) == 43:  # in the middle of a batch
                    trained.append("")
                    raise StopRequested
                trained.append(task.key)
                known[task.key] = whole.value(task)
        return [known[task.key] for task in tasks]

    with pytest.raises(StopRequested):
        best_standard_loss("best-standard", recipe, do)
    assert best_standard_loss("best-standard", recipe, do) == expected
    trained.remove("")
    assert trained == [task.key for task in whole.tasks]


def test_where_nothing_trains_there_is_still_an_opponent(recipe: Any) -> None:
    found = best_standard_loss("best-standard", recipe, Recorder(lambda task: None))
    assert (found.kind, found.settings) == ("cross-entropy", {"label_smoothing": 0.0})
