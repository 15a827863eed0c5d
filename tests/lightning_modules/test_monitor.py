"""The monitor: a loss that is not finite is noticed soon, and progress runs from 0 to 1."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from lightning_modules.monitor import STEPS_BETWEEN_CHECKS, TrainingMonitor
from optuna_taylorglo.errors import Diverged


class InTime(nn.Module):
    """A criterion that wants to know how far training is."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("progress", torch.zeros(()))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("at", range(STEPS_BETWEEN_CHECKS))
def test_divergence_is_noticed_within_some_steps(bad: float, at: int) -> None:
    monitor = TrainingMonitor(100)
    losses = [torch.tensor(bad if step == at else 1.0) for step in range(STEPS_BETWEEN_CHECKS)]
    for step, loss in enumerate(losses[:-1], start=1):
        monitor.observe([loss], step)
    with pytest.raises(Diverged, match=f"not finite at step {STEPS_BETWEEN_CHECKS}"):
        monitor.observe(losses[-1:], STEPS_BETWEEN_CHECKS)


def test_losses_of_many_steps_are_looked_at_together() -> None:
    monitor = TrainingMonitor(100)
    chunk = [torch.tensor(1.0)] * (STEPS_BETWEEN_CHECKS - 1)
    monitor.observe([*chunk, torch.tensor(2.0)], 10)
    with pytest.raises(Diverged):
        monitor.observe([*chunk, torch.tensor(math.nan)], 20)


def test_a_check_looks_at_what_is_left_and_names_the_step() -> None:
    monitor = TrainingMonitor(100)
    monitor.check(0)
    monitor.observe([torch.tensor(math.nan)], 1)
    with pytest.raises(Diverged, match="at step 7"):
        monitor.check(7)


def test_what_was_looked_at_is_forgotten() -> None:
    """A long training must not pile up its losses."""
    monitor = TrainingMonitor(100)
    for step in range(5 * STEPS_BETWEEN_CHECKS + 1):
        monitor.observe([torch.tensor(1.0)], step)
    assert len(monitor._unchecked) == 1


def test_progress_is_the_share_of_steps_and_never_beyond_one() -> None:
    criterion, monitor = InTime(), TrainingMonitor(8)
    told = []
    for step in (0, 2, 8, 9):
        monitor.tell_progress(criterion, step)
        told.append(criterion.progress.item())
    assert told == [0.0, 0.25, 1.0, 1.0]
    TrainingMonitor(math.inf).tell_progress(criterion, 5)
    assert criterion.progress.item() == 0.0


def test_the_tensor_stays_the_same_one() -> None:
    """It may be captured in a compiled graph, or live on another device."""
    criterion = InTime()
    before = criterion.progress
    TrainingMonitor(2).tell_progress(criterion, 1)
    assert criterion.progress is before


def test_a_criterion_without_progress_is_left_alone() -> None:
    class Plain:
        progress = 0.5

    for criterion in (nn.CrossEntropyLoss(), nn.functional.cross_entropy, Plain):
        TrainingMonitor(2).tell_progress(criterion, 1)
    assert Plain.progress == 0.5
    assert not hasattr(nn.functional.cross_entropy, "progress")
