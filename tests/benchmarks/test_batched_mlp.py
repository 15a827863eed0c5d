"""Trainings that the benchmarks batch are those of a worker."""

import sys

import pytest
import torch
from searches import ROOT

from optuna_taylorglo import TaylorLoss, TreeLoss
from optuna_taylorglo.evolution.candidates import candidate_loss
from optuna_taylorglo.losses.canonical import from_canonical
from optuna_taylorglo.losses.tree import BAIKAL, BAIKAL_CMA_COEFFICIENTS
from optuna_taylorglo.recipes.load import load_recipe
from optuna_taylorglo.training.runtime import RuntimeConfig
from optuna_taylorglo.training.training import Training
from optuna_taylorglo.verdict.baselines import FAMILIES
from optuna_taylorglo.verdict.statistics import Role
from optuna_taylorglo.verdict.tasks import ComparedLoss, Task, compared_evolved_loss

sys.path.insert(0, str(ROOT / "benchmarks"))
STEPS = 40
THETA = from_canonical((2.0, -1.0, 1.5, 0.7))
ANCHOR = {"base": "cross_entropy", "log_scale": -0.4, "smoothing": 0.2}
TREES = ["- square - y x log + y x", "/ sqrt + y 1 - -1 * y x", "+ log / y + 1 x sqrt x"]
EVOLVED = [
    TaylorLoss(THETA, class_reduction="sum", **ANCHOR),
    TaylorLoss(THETA, class_reduction="sum"),
    TreeLoss(BAIKAL, BAIKAL_CMA_COEFFICIENTS, class_reduction="sum"),
    *(TreeLoss(tree.split(), class_reduction="sum") for tree in TREES),
]
STANDARD = {
    "cross-entropy": {"label_smoothing": 0.1},
    "focal": {"gamma": 1.5},
    "gce": {"q": 0.6},
    "poly": {"epsilon": 4.0},
    "sce": {"alpha": 0.2, "beta": 0.7},
    "taylor-ce": {"order": 3},
    "nce-rce": {"alpha": 5.0, "beta": 0.3},
    "nce-agce": {"alpha": 1.0, "beta": 4.0, "a": 2.0, "q": 1.5},
    "anl-ce": {"alpha": 5.0, "beta": 2.0},
    "eps-softmax": {"m": 2.0, "alpha": 1.0, "beta": 0.5},
    "jal-ce": {"alpha": 1.0, "beta": 2.0, "a": 3.0},
    "ldr-kl": {"temperature": 0.5, "margin": 0.4},
    "logit-clip": {"tau": 2.5},
    "label-smoothing": {"label_smoothing": -0.6},
}
COMPARED = [
    *(compared_evolved_loss("evolved", "evolved", Role.EVOLVED, loss) for loss in EVOLVED),
    *(ComparedLoss(kind, kind, kind, settings=settings) for kind, settings in STANDARD.items()),
]


def test_all_standard_losses_are_known_with_all_their_parameters():
    assert {*FAMILIES, "cross-entropy"} == set(STANDARD)
    for name, family in FAMILIES.items():
        assert set(family.ranges) == set(STANDARD[name])


@pytest.mark.parametrize("loss", COMPARED, ids=lambda loss: loss.kind)
def test_gradients_are_those_of_the_losses_that_a_worker_trains_with(loss):
    from batched_mlp import Job, _groups, kind_of, logit_gradients, parameters_of

    logits = torch.randn(64, 10, generator=torch.Generator().manual_seed(0)).requires_grad_()
    labels = torch.arange(64).remainder(10)
    (expected,) = torch.autograd.grad(loss.criterion()(logits, labels), logits)
    # Two networks, so that parameters are columns of them and not of samples.
    groups = _groups([Job(kind_of(loss), parameters_of(loss), 0, 1.0)] * 2)
    for found in logit_gradients(logits.expand(2, -1, -1), labels.expand(2, -1), groups) / 64:
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_a_batched_training_is_a_worker_s(tmp_path):
    from batched_mlp import BatchedMLP

    recipe = load_recipe(ROOT / "studies" / "digits_mlp_wrong_labels.yaml")
    recipe = recipe.changed(budget=recipe.budget.changed(evaluation=STEPS, full=STEPS))
    anchored = candidate_loss(recipe, (3.0, 1.0, 2.0, 0.5, -0.5, 0.3), 10)
    losses = [
        compared_evolved_loss("winner", "anchored", Role.EVOLVED, anchored),
        ComparedLoss("gce", "gce", "gce", settings={"q": 0.5}, learning_rate=0.02),
        ComparedLoss("ce", "cross-entropy", "cross-entropy", scale=0.5),
    ]
    tasks = [Task(loss, 5, STEPS, "steps", on_test) for loss in losses for on_test in (False, True)]
    training = Training(recipe, RuntimeConfig(tmp_path, device="cpu", precision="32-true"))
    expected = [
        training.at_learning_rate(task.loss.learning_rate or 0.05).run(
            task.loss.criterion(), seed=task.seed, steps=STEPS, on_test_set=task.on_test_set
        )
        for task in tasks
    ]
    values = BatchedMLP(recipe, tmp_path, tmp_path / "results.jsonl").do(tasks)
    # Rounding may move an image or two across a boundary.
    torch.testing.assert_close(values, expected, atol=0.006, rtol=0)
    assert len(set(expected)) > 3
    assert BatchedMLP(recipe, tmp_path, tmp_path / "results.jsonl").do(tasks) == values
