"""Sweeps: which trainings they ask for, and what they make of the results."""

import json

import pytest
from optuna.trial import create_trial
from verdicts import Recorder

from optuna_taylorglo.losses.taylor import TaylorLoss
from optuna_taylorglo.verdict.sweep import rank_agreement, sweep_data

LOSS = TaylorLoss((0, 0, 0, -2, 0, 2, 0, 0), class_reduction="sum")


def test_data_sweep_trains_winner_and_cross_entropy_at_each_value(recipe):
    def value(task):
        if task.data_args["fraction"] == 0.1 and task.loss.kind == "cross-entropy":
            return None
        return task.data_args["fraction"]

    run = Recorder(value)
    swept = sweep_data(LOSS, recipe, "fraction", [0.1, 0.5, 1.0], 2, run)
    expected = {0.1: [0.1, 0.1], 0.5: [0.5, 0.5], 1.0: [1.0, 1.0]}
    assert swept.accuracies == {"evolved loss": expected, "cross-entropy": expected}
    # Diverged trainings count as the worst.
    assert swept.divergence == 0.1
    assert swept.diverged["cross-entropy"] == {0.1: 2, 0.5: 0, 1.0: 0}
    assert not any(swept.diverged["evolved loss"].values())
    assert len(run.tasks) == 12
    assert all(task.on_test_set and task.length == recipe.budget.full for task in run.tasks)
    assert json.loads(json.dumps(swept.accuracies))["cross-entropy"]["0.5"] == [0.5, 0.5]
    with pytest.raises(ValueError, match="field must be one of fraction, label_noise"):
        sweep_data(LOSS, recipe, "learning_rate", [1], 2, run)


def test_rank_agreement_is_spearmans(study, recipe):
    orders = {
        2: {0.0: 3, 1.0: 1, 2.0: 2, 3.0: 0},  # nearly the opposite
        5: {0.0: 1, 1.0: 3, 2.0: 2, 3.0: 0},
        9: {0.0: 1, 1.0: 3, 2.0: 2, 3.0: 0},
    }
    run = Recorder(lambda task: orders[task.length][task.loss.settings["theta"][2]] / 10)
    short, middle = rank_agreement(study, recipe, [9, 2, 5], 4, run)
    assert (short.length, short.longest, short.n_candidates) == (2, 9, 4)
    # d² = 4 + 4 over n = 4: 1 - 6 · 8 / (4 · 15)
    assert short.spearman == pytest.approx(1 - 6 * 8 / 60)
    assert (middle.length, middle.spearman) == (5, pytest.approx(1))
    assert not any(task.on_test_set for task in run.tasks)


def test_candidates_are_spread_over_the_ranks(study, recipe):
    template = study.trials[0]
    for number in range(20):
        params = template.params | {"theta_2": 100.0 + number}
        study.add_trial(
            create_trial(
                value=0.1 + number / 100, params=params, distributions=template.distributions
            )
        )
    run = Recorder(lambda task: task.loss.settings["theta"][2])
    rank_agreement(study, recipe, [1, 2], 3, run)
    chosen = [task.loss.settings["theta"][2] for task in run.tasks[:3]]
    assert (chosen[0], chosen[-1]) == (1.0, 100.0)


@pytest.mark.parametrize(
    ("lengths", "n", "message"),
    [([5, 5], 4, "two or more different"), ([1, 5], 2, "needs 3 candidates")],
)
def test_senseless_questions_are_refused(study, recipe, lengths, n, message):
    with pytest.raises(ValueError, match=message):
        rank_agreement(study, recipe, lengths, n, Recorder(lambda task: 0.5))
