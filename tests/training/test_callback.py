"""Ends a training from outside: on request, on divergence, or by what hears its validations."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from trainings import digits_training

from optuna_taylorglo.errors import Diverged, StopRequested
from optuna_taylorglo.training.callbacks import CHECK_INTERVAL
from optuna_taylorglo.training.training import Training


class Counting(nn.Module):
    """Cross-entropy that counts its steps, notes its progress, and is NaN from one step on."""

    progress: Tensor

    def __init__(self, nan_from: float = float("inf")) -> None:
        super().__init__()
        self.register_buffer("progress", torch.zeros(()))
        self.nan_from = nan_from
        self.told: list[float] = []

    @property
    def steps(self) -> int:
        return len(self.told)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        if logits.requires_grad:
            self.told.append(self.progress.item())
        loss = nn.functional.cross_entropy(logits, labels)
        return loss * float("nan") if self.steps >= self.nan_from else loss


@pytest.fixture(params=[None, "own_nets.OwnModule"])
def training(request: pytest.FixtureRequest, tmp_path: Path) -> Training:
    """A net that is trained by our module, and a module that trains itself."""
    return digits_training(tmp_path, request.param)


def fail(step: int, value: float) -> None:
    pytest.fail(f"validated at step {step}")


def test_a_request_to_stop_ends_the_training_soon(training: Training) -> None:
    stop, criterion = threading.Event(), Counting()
    with pytest.raises(StopRequested):
        training.run(
            criterion,
            seed=0,
            steps=10**6,
            check_at=[10],
            on_validation=lambda step, value: stop.set(),
            stop=stop,
        )
    assert 10 < criterion.steps <= 20


def test_a_validation_is_not_waited_for_either(training: Training) -> None:
    """On a large data set it takes longer than a worker has that was told to stop."""
    stop, build = threading.Event(), training._build_module

    def build_and_watch(criterion: nn.Module) -> Any:
        module = build(criterion)
        step = module.validation_step

        def validation_step(*arguments: Any) -> Any:
            assert not stop.is_set(), "a further batch was validated"
            stop.set()
            return step(*arguments)

        module.validation_step = validation_step  # type: ignore[method-assign]
        return module

    training._build_module = build_and_watch  # type: ignore[method-assign]
    with pytest.raises(StopRequested):
        training.run(Counting(), seed=0, steps=2, on_validation=fail, stop=stop)


def test_divergence_ends_the_training_within_a_few_steps(training: Training) -> None:
    criterion = Counting(nan_from=5)
    with pytest.raises(Diverged, match="the loss is not finite at step"):
        training.run(criterion, seed=0, steps=1000, on_validation=fail)
    # Our own module takes up to 20 steps on one batch.
    assert criterion.steps <= 20 + CHECK_INTERVAL


def test_a_network_that_diverged_is_not_validated(training: Training) -> None:
    with pytest.raises(Diverged, match="not finite at step 3"):
        training.run(Counting(nan_from=2), seed=0, steps=6, check_at=[3], on_validation=fail)


def test_the_criterion_is_told_how_far_training_is(training: Training) -> None:
    criterion = Counting()
    training.run(criterion, seed=0, steps=8, check_at=[3, 20])
    assert criterion.told == pytest.approx([step / 8 for step in range(8)])


def test_progress_counts_optimizer_steps(tmp_path: Path) -> None:
    for model in (None, "own_optimizers.Scheduled"):
        criterion, options = Counting(), {"accumulate_grad_batches": 2}
        digits_training(tmp_path, model, trainer=options).run(criterion, seed=0, steps=4)
        assert criterion.told == pytest.approx([0, 0, 0.25, 0.25, 0.5, 0.5, 0.75, 0.75])
