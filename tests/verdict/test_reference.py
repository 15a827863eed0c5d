"""Cross-entropy at the candidates' budget: from the weights of the first candidates, once each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest
from torch import nn
from trainings import RecordedTraining, digits_training

from optuna_taylorglo.attributes import CROSS_ENTROPY
from optuna_taylorglo.errors import Diverged, StopRequested
from optuna_taylorglo.seeds import SeedPolicy, training_seed
from optuna_taylorglo.verdict.baselines import evaluate_cross_entropy


def places(policy: SeedPolicy, n: int) -> list[tuple[int, int]]:
    """Generation and index of the candidates whose seeds are lent."""
    return [(0, i) for i in range(n)] if policy == "independent" else [(i, 0) for i in range(n)]


@pytest.mark.parametrize("policy", ["independent", "common"])
def test_seeds_are_those_of_the_first_candidates(tmp_path: Path, policy: SeedPolicy) -> None:
    training = digits_training(tmp_path, search={"seed": 5, "seed_policy": policy})
    study = optuna.create_study(direction="maximize")
    values = evaluate_cross_entropy(study, training, 3)
    seeds = [training_seed(5, *place, 0, policy=policy) for place in places(policy, 3)]
    assert len(set(seeds)) == 3
    assert training.seeds == seeds
    assert study.user_attrs[CROSS_ENTROPY] == {
        str(seed): value for seed, value in zip(seeds, values, strict=True)
    }


def test_it_is_trained_as_a_candidate_is(tmp_path: Path) -> None:
    training = digits_training(tmp_path, budget={"unit": "epochs", "evaluation": 1, "full": 3})
    (value,) = evaluate_cross_entropy(optuna.create_study(direction="maximize"), training, 1)
    (options,), (criterion,) = training.options, training.criteria
    assert options["steps"] == training.steps_per_pass
    assert isinstance(criterion, nn.CrossEntropyLoss)
    assert value == training.run(nn.CrossEntropyLoss(), seed=options["seed"], steps=16)


class Interrupted(RecordedTraining):
    """Is told to stop during its second training."""

    def run(self, criterion: nn.Module, **options: Any) -> float:
        if len(self.options) == 1:
            raise StopRequested
        return super().run(criterion, **options)


def test_nothing_is_trained_twice_and_results_are_kept_after_each(tmp_path: Path) -> None:
    training = digits_training(tmp_path)
    study = optuna.create_study(direction="maximize")
    interrupted = Interrupted(training.recipe, training.runtime)
    with pytest.raises(StopRequested):
        evaluate_cross_entropy(study, interrupted, 3)
    assert list(study.user_attrs[CROSS_ENTROPY]) == [str(seed) for seed in interrupted.seeds]
    values = evaluate_cross_entropy(study, training, 3)
    assert len(training.seeds) == 2
    assert interrupted.seeds[0] not in training.seeds
    assert evaluate_cross_entropy(study, training, 2) == values[:2]
    assert len(training.seeds) == 2
    assert len(study.user_attrs[CROSS_ENTROPY]) == 3


def test_it_is_looked_at_as_often_as_a_candidate_is(tmp_path: Path) -> None:
    """With `take: best` each validation is a chance, so both must have the same ones."""
    training = digits_training(tmp_path, fitness={"take": "best"})
    evaluate_cross_entropy(optuna.create_study(direction="maximize"), training, 1)
    abort, stop = training.recipe.early_abort, training.recipe.early_stop
    assert abort is not None
    assert stop is not None
    assert training.options[0]["check_at"] == [abort.at, stop.at]


class DivergesOnce(RecordedTraining):
    """Diverges with its first seed."""

    def run(self, criterion: nn.Module, **options: Any) -> float:
        value = super().run(criterion, **options)
        if len(self.options) == 1:
            raise Diverged("the loss is nan at step 3")
        return value


def test_a_training_that_diverges_is_told_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    training = digits_training(tmp_path)
    study = optuna.create_study(direction="maximize")
    first, second = evaluate_cross_entropy(
        study, DivergesOnce(training.recipe, training.runtime), 2
    )
    assert first is None
    assert list(study.user_attrs[CROSS_ENTROPY].values()) == [second]
    assert "cross-entropy diverged with seed" in caplog.text
