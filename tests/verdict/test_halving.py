"""Successive halving: who gets how many trainings, who wins, and that only results decide."""

import pytest
from verdicts import Recorder

from optuna_taylorglo.seeds import Stage
from optuna_taylorglo.verdict.selection import Round, halve, next_round
from optuna_taylorglo.verdict.tasks import cross_entropy


def losses(n):
    return [cross_entropy(str(i), f"loss {i}", scale=1.0 + i) for i in range(n)]


def by_loss(values):
    """Does tasks: the loss's own value, a little different for each seed."""
    return Recorder(lambda task: values[int(task.loss.name)] + task.seed % 7 * 1e-4)


@pytest.mark.parametrize(
    ("n", "trainings"),
    [(1, [2]), (2, [8, 8]), (4, [8, 8, 2, 2]), (11, [8] * 3 + [4] * 3 + [2] * 5)],
)
def test_the_better_half_gets_more_seeds(recipe, n, trainings):
    do = by_loss([i / 100 for i in range(n)])
    ranking = halve(losses(n), recipe, do, Stage.SELECTION)
    assert [len(placed.values) for placed in ranking] == trainings
    assert [placed.index for placed in ranking] == list(range(n))[::-1]
    assert {(task.length, task.on_test_set) for task in do.tasks} == {(recipe.budget.full, False)}
    assert len({task.key for task in do.tasks}) == len(do.tasks) == sum(trainings)
    # All losses start from the same weights.
    assert len({task.seed for task in do.tasks}) == trainings[0]


def test_luck_in_the_first_round_does_not_last(recipe):
    lucky_seeds = {task.seed for task in first_round(losses(4), recipe)}

    def value(task):
        if task.loss.name == "0":
            return 0.9 if task.seed in lucky_seeds else 0.5
        return 0.8 if task.loss.name == "1" else 0.1

    best, second, *_ = halve(losses(4), recipe, Recorder(value), Stage.SELECTION)
    assert (best.index, second.index) == (1, 0)
    assert second.mean == pytest.approx((2 * 0.9 + 6 * 0.5) / 8)


def first_round(compared, recipe):
    step = next_round(compared, recipe, Stage.SELECTION, lambda tasks: None)
    assert isinstance(step, Round)
    assert step.number == 1
    return step.tasks


@pytest.mark.parametrize("finished", [0.3, -5.0])
def test_a_failed_training_is_as_bad_as_the_worst(recipe, finished):
    """Whatever the metric: below an accuracy, and not above a negative number."""
    do = Recorder(lambda task: None if task.loss.name == "0" else finished)
    best, worst = halve(losses(2), recipe, do, Stage.SELECTION)
    assert worst.mean == min(0.0, finished)
    assert worst.mean < best.mean or best.index == 0 or finished < 0
    assert set(worst.values if worst.index == 0 else best.values) == {None}


def test_of_equal_losses_the_first_wins(recipe):
    ranking = halve(losses(5), recipe, Recorder(lambda task: 0.5), Stage.SELECTION)
    assert [placed.index for placed in ranking] == list(range(5))


def test_the_next_round_follows_from_results_alone(recipe):
    """As workers do it: each looks at what is known, whoever trained it."""
    known = {}
    do = by_loss([0.3, 0.9, 0.1, 0.5, 0.8])

    def results(tasks):
        return [known[t.key] for t in tasks] if all(t.key in known for t in tasks) else None

    numbers = []
    while isinstance(step := next_round(losses(5), recipe, Stage.SELECTION, results), Round):
        numbers.append(step.number)
        again = next_round(losses(5), recipe, Stage.SELECTION, results)
        assert again == step
        # Half of the round is done, and somebody else looks.
        half = step.tasks[: len(step.tasks) // 2]
        known |= zip([t.key for t in half], do(half), strict=True)
        assert next_round(losses(5), recipe, Stage.SELECTION, results) == step
        known |= zip([t.key for t in step.tasks], do(step.tasks), strict=True)
    assert numbers == [1, 2, 3]
    assert step == halve(losses(5), recipe, do, Stage.SELECTION)


def test_where_smaller_is_better_the_smallest_wins_and_what_diverged_is_the_largest(recipe):
    recipe = recipe.changed(fitness=recipe.fitness.changed(metric="val_loss", mode="min"))
    values = {"0": 0.9, "1": 0.2, "2": None}
    do = Recorder(lambda task: values[task.loss.name] and values[task.loss.name] + task.seed % 7e-3)
    ranking = halve(losses(3), recipe, do, Stage.SELECTION)
    assert ranking[0].index == 1
    assert ranking[0].mean == pytest.approx(0.2, abs=0.01)
    diverged = next(placed for placed in ranking if placed.index == 2)
    assert diverged.mean == pytest.approx(0.9, abs=0.01)
    favored = next_round(losses(3), recipe, Stage.SELECTION, do, favorite=0)
    assert favored[0].index == 1  # clearly better, so the favorite does not win
