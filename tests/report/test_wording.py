"""A recipe in sentences: every setting that matters is said, and nothing that was not set."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from searches import DIGITS

from optuna_taylorglo.recipes.schema import recipe_from_dict
from optuna_taylorglo.report.wording import found_with, recipe_in_words


def words(**changes: dict[str, Any] | None) -> str:
    """The digits recipe in words, with some sections changed or left out."""
    content = yaml.safe_load(DIGITS.read_text())
    for section, values in changes.items():
        content[section] = content.get(section, {}) | values if values is not None else None
    return "\n".join(recipe_in_words(recipe_from_dict(content)))


PLAIN = {
    "early_abort": None,
    "early_stop": None,
    "loss": {"class_reduction": "sum"},
    "search": {"filter": "none", "space": "theta", "scale": "free", "seed_policy": "independent"},
    "optimizer": {"momentum": 0.0, "nesterov": False, "weight_decay": 0.0},
}


@pytest.mark.parametrize(
    ("section", "values", "said"),
    [
        ("loss", {"order": 2}, "Taylor polynomials of order 2 in x, the "),
        ("loss", {"class_reduction": "mean"}, "averaged over the classes"),
        ("search", {"space": "canonical"}, "varies the four numbers of its canonical form"),
        ("loss", {"base": "cross_entropy"}, "at 0 they are cross-entropy itself"),
        (
            "loss",
            {"base": "cross_entropy"},
            "8 parameters θ, the logarithm of that scale and the label smoothing of cross-entropy",
        ),
        ("search", {"sigma": 0.75}, "step size 0.75"),
        ("search", {"popsize": 9, "n_generations": 5}, "9 candidates per generation for 5 gen"),
        ("search", {"repeats": 3}, "averaged over 3 trainings"),
        ("search", {"filter": "trainable"}, "cannot begin to learn were drawn again"),
        ("search", {"filter": "steady"}, "or that draw all predictions to one class, were drawn"),
        ("search", {"scale": "normalized", "filter": "steady"}, "to cross-entropy's first gra"),
        ("search", {"seed_policy": "common"}, "were trained from the same seeds"),
        ("fitness", {"take": "best"}, "fitness is the best val_accuracy"),
        ("fitness", {"metric": "val_nll", "mode": "min"}, "steps, smaller being better; a full"),
        ("loss", {"class_weights": [1, 2.5]}, "compared with too, weigh the classes by 1, 2.5."),
        ("loss", {"class_weights": "balanced"}, "weigh classes by the inverse of their frequency."),
        (
            "loss",
            {"label_smoothing": 0.1, "ignore_index": 255},
            "compared with too, smooth the labels by 0.1 and leave out the label 255.",
        ),
        ("budget", {"evaluation": 60, "full": 600}, "60 steps; a full training has 600"),
        (
            "early_abort",
            {"unit": "steps", "at": 50, "threshold": 0.15, "attempts": 2},
            "A training below 0.15 after 50 steps was aborted; a candidate got up to 2 trainings",
        ),
        (
            "early_abort",
            {"unit": "steps", "at": 50, "threshold": 0.15, "attempts": 1},
            "A training below 0.15 after 50 steps was aborted.",
        ),
        (
            "early_stop",
            {"unit": "steps", "at": 50, "keep": 0.25},
            "after 50 steps was behind the best 25% of the generation before was stopped",
        ),
        ("optimizer", {"lr": 0.125}, "learning rate 0.125"),
        ("optimizer", {"momentum": 0.5, "nesterov": True}, "Nesterov momentum 0.5"),
        ("optimizer", {"weight_decay": 0.001}, "weight decay 0.001"),
        (
            "schedule",
            {"unit": "steps", "milestones": [10, 20], "gamma": 0.5},
            "learning rate multiplied by 0.5 after 10, 20 steps",
        ),
        ("model", {"init_args": {"width": 3}}, "DigitsCNN(width=3)"),
    ],
)
def test_a_setting_is_said_when_it_is_made(section, values, said):
    assert said not in words(**PLAIN)
    assert said in words(**(PLAIN | {section: (PLAIN.get(section) or {}) | values}))


def test_a_glo_search_is_told_with_both_of_its_stages():
    stage = {"popsize": 4, "n_generations": 2, "sigma": 0.25}
    glo = {"popsize": 9, "n_generations": 7, "elite": 2, "max_depth": 5, "coefficients": stage}
    content = yaml.safe_load(DIGITS.read_text())
    content |= {"loss": {"class_reduction": "sum"}, "selection": {}}
    content["search"] = {"method": "glo", "glo": glo}
    said = "\n".join(recipe_in_words(recipe_from_dict(content)))
    assert "trees of x, y, 1, -1, +, -, *, /, log, square, sqrt" in said
    assert "a depth of 5 at most, summed over the classes" in said
    assert "bred 9 trees per generation for 7 generations, of which the best 2 went on" in said
    assert "starting at 1 with step size 0.25, proposed 4 sets of coefficients" in said
    assert "mean of the final distribution" in said
    stage["n_generations"] = 0
    said = "\n".join(recipe_in_words(recipe_from_dict(content)))
    assert "coefficients" not in said
    assert "mean of the final distribution" not in said


def test_a_start_is_told():
    said = words(**(PLAIN | {"search": {"start": {"loss": "baikal"}}}))
    assert "CMA-ES, starting at the expansion of baikal with step size" in said
    said = words(**(PLAIN | {"search": {"start": {"theta": [0.0] * 8}}}))
    assert "CMA-ES, starting at given θ with step size" in said


def test_what_is_not_set_takes_no_paragraph():
    assert len(words().splitlines()) == 4
    assert len(words(**PLAIN).splitlines()) == 3


@pytest.mark.parametrize(
    ("section", "values", "said"),
    [
        ("schedule", {"kind": "cosine"}, "falling as a cosine to 0"),
        ("schedule", {"kind": "one_cycle"}, "learning rate of one cycle"),
        ("schedule", {"unit": "steps", "warmup": 7}, "after a warm-up of 7 steps"),
        ("trainer", {"gradient_clip_val": 0.5}, "clipped, their norm to 0.5"),
        ("trainer", {"accumulate_grad_batches": 3}, "3 batches made one optimizer step"),
        ("trainer", {"precision": "bf16-mixed"}, "precision was bf16-mixed"),
        ("trainer", {"callbacks": [{"class_path": "my.Callback"}]}, "Callbacks: my.Callback()"),
        ("checkpoint", {"path": "weights.pt"}, "starting from the weights in weights.pt"),
    ],
)
def test_how_training_differs_from_the_plainest_is_said(section, values, said):
    assert said not in words()
    assert said in words(**{section: values})


def test_no_optimizer_is_described_that_was_not_used():
    recipe = recipe_from_dict(yaml.safe_load(DIGITS.read_text()))
    own = "\n".join(recipe_in_words(recipe, "module"))
    assert "with its own optimizer and batches of" in own
    assert "sgd" not in own
    assert "learning rate" not in own
    assert found_with(recipe, "module") == f"the optimizer of {recipe.model.class_path}"
    # A study of an earlier version does not tell.
    assert "unless it brings its own optimizer" in "\n".join(recipe_in_words(recipe, None))
    without = recipe.changed(optimizer=None)
    assert "with its own optimizer" in "\n".join(recipe_in_words(without, "module"))
