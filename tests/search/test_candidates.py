from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
from searches import DIGITS

from optuna_taylorglo.errors import RecipeError
from optuna_taylorglo.losses.canonical import (
    collapse_ratio,
    first_gradient,
    trainability,
)
from optuna_taylorglo.losses.expansion import Expansion
from optuna_taylorglo.losses.files import load_loss
from optuna_taylorglo.recipes.load import load_recipe
from optuna_taylorglo.recipes.schema import Recipe, recipe_from_dict
from optuna_taylorglo.search.candidates import (
    candidate_loss,
    form_of,
    loss_conventions,
    make_pruner,
    make_sampler,
    parameter_names,
)
from optuna_taylorglo.search.pruners import EarlyAbortPruner, FallingBehindPruner

N_CLASSES = 10


def digits_recipe(**changes: Any) -> Recipe:
    """The digits recipe with some sections changed."""
    content = load_recipe(DIGITS).to_dict()
    for section, values in changes.items():
        content[section] = content[section] | values if section == "search" else values
    return recipe_from_dict(content)


def first_candidates(recipe: Recipe, number: int = 60) -> list[tuple[float, ...]]:
    sampler = make_sampler(recipe, N_CLASSES)
    study = optuna.create_study(sampler=sampler, direction="maximize")
    proposed = [sampler.suggest(study.ask()) for _ in range(number)]
    return [candidate_loss(recipe, parameters, N_CLASSES).theta for parameters in proposed]


def test_candidates_have_the_form_that_the_recipe_says() -> None:
    loss = {"order": 2, "variables": ["x", "y", "t"], "folded": True, "class_reduction": "sum"}
    recipe = digits_recipe(loss=loss, search={"filter": "none", "space": "theta", "scale": "free"})
    form = form_of(recipe)
    assert form == Expansion(2, ("x", "y", "t"), True)
    assert parameter_names(recipe) == form.parameter_names
    theta = tuple(float(i) for i in range(form.n_parameters))
    built = candidate_loss(recipe, theta, N_CLASSES)
    assert (built.form, built.theta, built.class_reduction) == (form, theta, "sum")
    assert built.n_classes == N_CLASSES


WEIGHTS = [0.5 + 0.25 * k for k in range(N_CLASSES)]


def test_candidates_weigh_smooth_and_ignore_as_the_recipe_says(tmp_path: Path) -> None:
    loss = {"class_weights": WEIGHTS, "label_smoothing": 0.1, "ignore_index": 2}
    search = {"filter": "none", "space": "theta", "scale": "free"}
    theta = (0.1, 0.2, 0.3, -2.0, 0.5, 2.0, 0.7, 0.1)
    built = candidate_loss(digits_recipe(loss=loss, search=search), theta, N_CLASSES)
    plain = candidate_loss(digits_recipe(loss={}, search=search), theta, N_CLASSES)
    logits = torch.randn(40, N_CLASSES, dtype=torch.float64, requires_grad=True)
    target, weight = torch.arange(40) % N_CLASSES, torch.tensor(WEIGHTS).double()
    # By hand: x is the smoothed target, a sample counts with the mean weight under it, and the
    # sum is divided by the weights of the targets.
    x = 0.9 * torch.nn.functional.one_hot(target, N_CLASSES).double() + 0.01
    plain.reduction = "none"
    counts = target != 2
    expected = (plain(logits, x) * (x @ weight) * counts).sum() / (weight[target] * counts).sum()
    found = built(logits, target)
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(loss, logits)[0] for loss in (found, expected)]
    torch.testing.assert_close(*gradients)
    # The file of the winner carries them.
    built.save(tmp_path / "loss.json")
    torch.testing.assert_close(load_loss(tmp_path / "loss.json")(logits, target), found)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_at_the_anchor_a_weighted_candidate_is_weighted_cross_entropy(smoothing: float) -> None:
    loss = {"base": "cross_entropy", "class_weights": WEIGHTS, "ignore_index": 2}
    recipe = digits_recipe(loss=loss, search={"filter": "none", "space": "theta", "scale": "free"})
    parameters = [0.0] * 9 + [smoothing]
    built = candidate_loss(recipe, parameters, N_CLASSES).double()
    logits = torch.randn(40, N_CLASSES, dtype=torch.float64, requires_grad=True)
    target = torch.arange(40) % N_CLASSES
    weight = torch.tensor(WEIGHTS).double()
    expected = torch.nn.CrossEntropyLoss(weight, ignore_index=2, label_smoothing=smoothing)
    both = [criterion(logits, target) for criterion in (built, expected)]
    torch.testing.assert_close(*both)
    torch.testing.assert_close(*(torch.autograd.grad(loss, logits)[0] for loss in both))


def test_a_recipe_without_conventions_leaves_them_at_cross_entropys() -> None:
    assert loss_conventions(digits_recipe()) == {}


def test_balanced_weights_wait_for_a_worker() -> None:
    with pytest.raises(RecipeError, match="balanced is not settled"):
        loss_conventions(digits_recipe(loss={"class_weights": "balanced"}))


def test_a_candidate_without_a_scale_is_a_value_error() -> None:
    recipe = digits_recipe(search={"filter": "trainable", "scale": "normalized", "space": "theta"})
    with pytest.raises(ValueError, match="cannot begin to learn"):
        candidate_loss(recipe, (0.0, 0.0, 0.0, 0.0, 0.0, -1.0, 0.0, 0.0), N_CLASSES)


def test_a_search_space_is_known_without_waiting_for_torch() -> None:
    code = "import sys, optuna_taylorglo.search.candidates; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("space", ["theta", "canonical"])
def test_filters_refuse_what_they_say(space: str) -> None:
    refused = {}
    for kind in ("none", "trainable", "steady"):
        recipe = digits_recipe(search={"filter": kind, "space": space, "popsize": 60})
        thetas = first_candidates(recipe)
        refused[kind] = (
            sum(trainability(theta, N_CLASSES) <= 0 for theta in thetas),
            sum(collapse_ratio(theta, N_CLASSES) >= 1 for theta in thetas),
        )
    assert refused["none"][0] > 10
    assert refused["trainable"][0] == 0
    assert refused["trainable"][1] > 5
    assert refused["steady"] == (0, 0)


def test_normalized_candidates_start_as_cross_entropy_does() -> None:
    recipe = digits_recipe(search={"filter": "steady", "scale": "normalized"})
    for theta in first_candidates(recipe, 10):
        scale = first_gradient(theta, N_CLASSES, class_reduction=recipe.loss.class_reduction)
        assert scale == pytest.approx(1.0)


def test_pruner_counts_in_optimizer_steps() -> None:
    recipe = digits_recipe(
        early_abort={"unit": "epochs", "at": 3, "threshold": 0.2, "attempts": 1},
        early_stop={"unit": "steps", "at": 20, "keep": 0.25},
        search={"popsize": 8},
    )
    pruner = make_pruner(recipe, lambda n, unit: n if unit == "steps" else 16 * n)
    assert isinstance(pruner.abort, EarlyAbortPruner)
    assert (pruner.abort.step, pruner.abort.threshold) == (48, 0.2)
    assert isinstance(pruner.stop, FallingBehindPruner)
    assert (pruner.stop.step, pruner.stop.keep, pruner.stop.popsize) == (20, 0.25, 8)
    assert pruner.stop.policy.overlap == 0


def test_overlap_reaches_sampler_and_pruner() -> None:
    recipe = digits_recipe(search={"popsize": 8, "overlap": 4})
    pruner = make_pruner(recipe, lambda n, unit: n)
    assert isinstance(pruner.stop, FallingBehindPruner)
    assert pruner.stop.policy.overlap == make_sampler(recipe, N_CLASSES).policy.overlap == 4


def test_recipe_without_rules_ends_nothing_early() -> None:
    pruner = make_pruner(digits_recipe(early_abort=None, early_stop=None), lambda n, unit: n)
    trial = optuna.create_study(pruner=pruner).ask()
    trial.report(0.0, 1)
    assert not trial.should_prune()


ANCHORED = {"base": "cross_entropy", "class_reduction": "sum"}


def test_anchored_search_begins_at_cross_entropy() -> None:
    recipe = digits_recipe(loss=ANCHORED, search={"filter": "none"})
    names = ("alpha", "beta", "gamma", "delta", "log_scale", "smoothing")
    assert parameter_names(recipe) == names
    loss = candidate_loss(recipe, (0.0,) * 6, N_CLASSES)
    assert loss.anchor == (0.0, 0.0)
    assert loss.theta == (0.0,) * 8
    found = candidate_loss(recipe, (1.0, 2.0, 3.0, 4.0, -0.5, 0.2), N_CLASSES)
    assert found.anchor == (-0.5, 0.2)
    assert found.class_reduction == "sum"
    assert first_gradient(found.theta, N_CLASSES, anchor=found.anchor, class_reduction="sum") > 0


def test_anchored_search_over_theta_and_progress() -> None:
    loss = ANCHORED | {"variables": ["x", "y", "t"], "order": 2}
    recipe = digits_recipe(loss=loss, search={"filter": "none", "space": "theta"})
    n = form_of(recipe).n_parameters
    assert parameter_names(recipe)[-3:] == (f"theta_{n - 1}", "log_scale", "smoothing")
    loss_ = candidate_loss(recipe, [0.1] * n + [1.0, 0.0], N_CLASSES)
    assert len(loss_.theta) == n
    assert loss_.anchor == (1.0, 0.0)


def test_normalized_anchored_search_leaves_the_scale_alone() -> None:
    recipe = digits_recipe(loss=ANCHORED, search={"filter": "trainable", "scale": "normalized"})
    assert parameter_names(recipe)[4:] == ("smoothing",)
    assert candidate_loss(recipe, (1.0, 0.0, 0.0, 0.0, 0.1), N_CLASSES).anchor == (0.0, 0.1)


def test_filtered_anchored_candidates_can_begin() -> None:
    shares = {}
    for kind in ("none", "trainable"):
        recipe = digits_recipe(loss=ANCHORED, search={"filter": kind, "sigma": 9.0})
        sampler = make_sampler(recipe, N_CLASSES)
        study = optuna.create_study(sampler=sampler, direction="maximize")
        losses = [
            candidate_loss(recipe, sampler.suggest(study.ask()), N_CLASSES) for _ in range(60)
        ]
        shares[kind] = sum(
            first_gradient(x.theta, N_CLASSES, anchor=x.anchor, class_reduction="sum") > 0
            for x in losses
        )
    assert shares["none"] < 58
    assert shares["trainable"] == 60
