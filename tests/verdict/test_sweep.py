"""Sweeps: which trainings they ask for, and what they make of the results."""

import math

import optuna
import pytest
from optuna.trial import create_trial
from verdicts import Recorder

from optuna_taylorglo.losses.taylor import TaylorLoss
from optuna_taylorglo.verdict.sweep import (
    SavedSweep,
    load_sweeps,
    rank_agreement,
    save_sweep,
    sweep_data,
)


def test_a_sweep_trains_the_winner_and_cross_entropy_at_each_value(recipe):
    def value(task):
        if task.data_args["fraction"] == 0.1 and task.loss.kind == "cross-entropy":
            return None
        return task.data_args["fraction"]

    run = Recorder(value)
    loss = TaylorLoss((0, 0, 0, -2, 0, 2, 0, 0), class_reduction="sum")
    swept = sweep_data(loss, recipe, "fraction", [0.1, 0.5, 1.0], 2, run)
    expected = {0.1: [0.1, 0.1], 0.5: [0.5, 0.5], 1.0: [1.0, 1.0]}
    assert swept.accuracies == {"evolved loss": expected, "cross-entropy": expected}
    # Diverged trainings count as the worst.
    assert swept.divergence == 0.1
    assert swept.diverged["cross-entropy"] == {0.1: 2, 0.5: 0, 1.0: 0}
    assert not any(swept.diverged["evolved loss"].values())
    assert len(run.tasks) == 12
    assert all(task.on_test_set and task.length == recipe.budget.full for task in run.tasks)
    evaluation_study, saved = optuna.create_study(), SavedSweep("fraction", "test_accuracy", swept)
    save_sweep(evaluation_study, saved)
    assert load_sweeps(evaluation_study) == [saved]


def test_a_rank_agreement_is_spearmans_over_candidates_of_all_ranks(study, recipe):
    template = study.trials[0]
    for number in range(20):
        params = template.params | {"theta_2": 100.0 + number}
        space = template.distributions
        study.add_trial(create_trial(value=0.1 + number / 100, params=params, distributions=space))
    orders = {2: (3, 1, 2, 0), 5: (1, 3, 2, 0), 9: (1, 3, 2, 0), 1: (0, 0, 0, 0)}

    def value(task):
        place = int(task.loss.label.removeprefix("trial "))
        return orders[task.length][places.setdefault(place, len(places))] / 10

    places, run = {}, Recorder(value)
    constant, short, middle = rank_agreement(study, recipe, [9, 2, 5, 1], 4, run)
    thetas = [task.loss.settings["theta"][2] for task in run.tasks[:4]]
    assert (thetas[0], thetas[-1]) == (1.0, 100.0)  # the best and the worst
    assert (short.length, short.longest, short.n_candidates) == (2, 9, 4)
    # d² = 4 + 4 over n = 4: 1 - 6 · 8 / (4 · 15)
    assert short.spearman == pytest.approx(1 - 6 * 8 / 60)
    assert (middle.length, middle.spearman) == (5, pytest.approx(1))
    assert not any(task.on_test_set for task in run.tasks)
    # Without any order there is no correlation, which can be stored as well.
    evaluation_study = optuna.create_study()
    save_sweep(evaluation_study, SavedSweep("length", "steps", agreements=(constant, short)))
    ((without, stored),) = (sweep.agreements for sweep in load_sweeps(evaluation_study))
    assert stored == short
    assert math.isnan(without.spearman)


@pytest.mark.parametrize(
    ("lengths", "n", "message"),
    [([5, 5], 4, "two or more different"), ([1, 5], 2, "needs 3 candidates")],
)
def test_senseless_questions_are_refused(study, recipe, lengths, n, message):
    with pytest.raises(ValueError, match=message):
        rank_agreement(study, recipe, lengths, n, Recorder(lambda task: 0.5))
