"""A worker with balanced classes: weighs once, and everybody after it alike."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from searches import load, small_recipe

from optuna_taylorglo import worker
from optuna_taylorglo.attributes import CLASS_WEIGHTS
from optuna_taylorglo.errors import RecipeError
from optuna_taylorglo.process import DONE
from optuna_taylorglo.search.study import attach_recipe
from optuna_taylorglo.study.open import create_study
from optuna_taylorglo.verdict.winner import selected_loss


def test_balanced_weights_are_kept_with_the_study_and_in_the_winner(
    tmp_path: Path, sqlite_url: str
) -> None:
    recipe = small_recipe(
        tmp_path / "recipe.yaml",
        data={"init_args": {"imbalance": 10}},
        loss={"class_weights": "balanced"},
        search={"n_generations": 1},
    )
    study = create_study("s", sqlite_url)
    words = ["--study-name", "s", "--storage", sqlite_url, "--data-dir", str(tmp_path)]
    assert worker.main([*words, "--recipe", str(recipe)]) == DONE
    weights = load(sqlite_url, "s").user_attrs[CLASS_WEIGHTS]
    assert len(weights) == 10
    assert max(weights) > 5 * min(weights)
    assert attach_recipe(study, None).loss.class_weights == tuple(weights)
    # Frozen is what was written: the same file is welcome again.
    assert worker.main([*words, "--recipe", str(recipe)]) == DONE
    winner = selected_loss(load(sqlite_url, "s")).loss
    assert winner.weight is not None
    torch.testing.assert_close(winner.weight, torch.tensor(weights))


def test_before_a_worker_has_counted_there_is_no_loss(tmp_path: Path, sqlite_url: str) -> None:
    recipe = small_recipe(tmp_path / "recipe.yaml", loss={"class_weights": "balanced"})
    from optuna_taylorglo.recipes.load import load_recipe
    from optuna_taylorglo.search.candidates import candidate_loss

    attached = attach_recipe(create_study("s", sqlite_url), load_recipe(recipe))
    with pytest.raises(RecipeError, match="no worker has begun"):
        candidate_loss(attached, [0.0] * 8, 10)
