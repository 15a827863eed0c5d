"""Searches that start at the expansion of a loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
from recipe_cases import minimal

from optuna_taylorglo.errors import RecipeError
from optuna_taylorglo.losses.canonical import to_canonical
from optuna_taylorglo.losses.taylor import TaylorLoss
from optuna_taylorglo.losses.tree import BAIKAL
from optuna_taylorglo.losses.tree_loss import TreeLoss
from optuna_taylorglo.recipes.schema import Recipe, recipe_from_dict
from optuna_taylorglo.search.candidates import candidate_loss, form_of, make_sampler, resolve_start
from optuna_taylorglo.search.history import attach_recipe


def recipe(start: dict[str, Any], loss: dict[str, Any] | None = None, **search: Any) -> Recipe:
    content = {**minimal(), "loss": {"class_reduction": "sum"} | (loss or {})}
    return recipe_from_dict(content | {"search": {"start": start, **search}})


def first_mean(of: Recipe) -> tuple[float, ...]:
    study = optuna.create_study(direction="maximize")
    return make_sampler(of, 10).search_state(study)[0].mean


def gradient(loss: torch.nn.Module, y: float) -> torch.Tensor:
    """At a prediction of y for the target, where two classes are as likely."""
    logits = torch.tensor([[y, 1 - y]], dtype=torch.float64).log().requires_grad_()
    (found,) = torch.autograd.grad(loss.double()(logits, torch.tensor([0])), logits)
    return found


@pytest.mark.parametrize("space", ["theta", "canonical"])
@pytest.mark.parametrize("folded", [False, True])
def test_the_search_starts_at_cross_entropy(space: str, folded: bool) -> None:
    of = recipe({"loss": "cross_entropy"}, {"folded": folded}, space=space)
    expected = TaylorLoss.from_cross_entropy(center=(0.0, 0.5), folded=folded).theta
    if space == "canonical":
        expected = to_canonical(expected, form_of(of))
    assert first_mean(of) == pytest.approx(expected)


def test_the_start_has_the_gradient_of_its_loss_at_the_point_of_expansion() -> None:
    """With two classes both outputs are 1/2 there."""
    of = recipe({"loss": "baikal"})
    start = candidate_loss(of, first_mean(of), 2)
    baikal = TreeLoss(BAIKAL, class_reduction="sum")
    # x = 1 is off the point of expansion, but Baikal is linear in x.
    torch.testing.assert_close(gradient(start, 0.5), gradient(baikal, 0.5))
    assert not torch.allclose(gradient(start, 0.9), gradient(baikal, 0.9))


def test_the_point_of_expansion_is_the_recipe_s() -> None:
    assert first_mean(recipe({"loss": "baikal", "at": [0.25, 0.75]}))[:2] == (0.25, 0.75)


def test_a_study_keeps_the_start_and_not_the_file(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    TreeLoss(BAIKAL, [1, 2, 1, 1, 1, 1]).save(path)
    of = recipe({"loss": str(path)})
    study = optuna.create_study(direction="maximize")
    attach_recipe(study, of)
    path.unlink()
    held = attach_recipe(study, None)
    assert held.search.start is not None
    assert held.search.start.theta == first_mean(held)
    assert first_mean(held) != first_mean(recipe({"loss": "baikal"}))


def test_a_taylor_loss_of_the_same_form_is_a_start_as_it_is(tmp_path: Path) -> None:
    theta = tuple(0.1 * i for i in range(8))
    TaylorLoss(theta).save(tmp_path / "taylor.json")
    assert first_mean(recipe({"loss": str(tmp_path / "taylor.json")})) == theta
    assert first_mean(recipe({"theta": list(theta)})) == theta
    with pytest.raises(RecipeError, match="has a loss of another form"):
        resolve_start(recipe({"loss": str(tmp_path / "taylor.json")}, {"order": 2}))


@pytest.mark.parametrize(
    ("start", "field", "said"),
    [
        ({"loss": "bailak"}, "loss", "is none of cross_entropy, baikal, baikal_cma, and no loss"),
        ({"loss": "baikal", "at": [0, 0]}, "at", "not finite"),
        ({"theta": [1.0, 2.0]}, "theta", "has 2 numbers, must have 8"),
    ],
)
def test_starts_that_are_none_are_named(start: dict[str, Any], field: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said) as caught:
        resolve_start(recipe(start))
    assert caught.value.field == f"search.start.{field}"
