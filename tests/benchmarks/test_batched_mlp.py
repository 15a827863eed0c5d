"""Trainings that the benchmarks batch are those of a worker."""

import sys

import pytest
import torch
from searches import ROOT

from optuna_taylorglo.recipes.load import load_recipe
from optuna_taylorglo.search.candidates import candidate_loss
from optuna_taylorglo.training.runtime import RuntimeConfig
from optuna_taylorglo.training.training import Training
from optuna_taylorglo.verdict.statistics import Role
from optuna_taylorglo.verdict.tasks import ComparedLoss, Task, compared_evolved_loss

sys.path.insert(0, str(ROOT / "benchmarks"))
STEPS = 40


@pytest.mark.parametrize("on_test_set", [False, True])
def test_a_batched_training_is_a_worker_s(tmp_path, on_test_set):
    from batched_mlp import BatchedMLP

    recipe = load_recipe(ROOT / "studies" / "digits_mlp_wrong_labels.yaml")
    recipe = recipe.changed(budget=recipe.budget.changed(evaluation=STEPS, full=STEPS))
    anchored = candidate_loss(recipe, (3.0, 1.0, 2.0, 0.5, -0.5, 0.3), 10)
    losses = [
        compared_evolved_loss("winner", "anchored", Role.EVOLVED, anchored),
        ComparedLoss("gce", "gce", "gce", settings={"q": 0.5}, learning_rate=0.02),
        ComparedLoss("ce", "cross-entropy", "cross-entropy", scale=0.5),
    ]
    tasks = [Task(loss, seed, STEPS, "steps", on_test_set) for loss in losses for seed in (5, 6)]
    training = Training(recipe, RuntimeConfig(tmp_path, device="cpu", precision="32-true"))
    expected = [
        (training.at_learning_rate(task.loss.learning_rate or 0.05)).run(
            task.loss.criterion(), seed=task.seed, steps=STEPS, on_test_set=on_test_set
        )
        for task in tasks
    ]
    batched = BatchedMLP(recipe, tmp_path, tmp_path / "results.jsonl")
    values = batched.do(tasks)
    # Rounding may move an image or two across a boundary.
    torch.testing.assert_close(values, expected, atol=0.006, rtol=0)
    assert len(set(expected)) > 3
    assert BatchedMLP(recipe, tmp_path, tmp_path / "results.jsonl").do(tasks) == values
