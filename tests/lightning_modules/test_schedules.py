import math
from typing import Any

import pytest
import torch
from torch import nn

from lightning_modules.classifier import build_optimizer, build_schedule
from optuna_taylorglo.recipes.settings import OptimizerSettings, ScheduleSettings


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"name": "sgd", "momentum": 0.8, "nesterov": True}, torch.optim.SGD),
        ({"name": "sgd"}, torch.optim.SGD),
        ({"name": "adam", "weight_decay": 0.1}, torch.optim.Adam),
        ({"name": "adamw", "weight_decay": 0.1}, torch.optim.AdamW),
    ],
)
def test_settings_reach_the_optimizer(settings: dict[str, Any], kind: type) -> None:
    checked = OptimizerSettings(lr=0.3, **settings)
    optimizer = build_optimizer(checked, nn.Linear(2, 2).parameters())
    assert type(optimizer) is kind
    group = optimizer.param_groups[0]
    assert (group["lr"], group["fused"]) == (0.3, True)
    assert group["weight_decay"] == settings.get("weight_decay", 0.0)
    if kind is torch.optim.SGD:
        expected = (settings.get("momentum", 0.0), settings.get("nesterov", False))
        assert (group["momentum"], group["nesterov"]) == expected


def rates_of(length: int, steps: int, **schedule: Any) -> list[float]:
    """The learning rate of each step, in units of the recipe's."""
    optimizer = build_optimizer(OptimizerSettings(name="sgd", lr=1.0), nn.Linear(2, 2).parameters())
    built = build_schedule(ScheduleSettings(**schedule), optimizer, length)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        built.step()
    return rates


def test_a_warm_up_rises_linearly_and_leaves_milestones_where_they_were() -> None:
    rates = rates_of(10, 8, warmup=4, milestones=(6,), gamma=0.5)
    assert rates == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1, 0.5, 0.5])
    assert rates_of(10, 3, warmup=1) == [1, 1, 1]
    assert rates_of(5, 4, milestones=(1, 3), gamma=0.5) == [1.0, 0.5, 0.5, 0.25]


def test_a_cosine_ends_at_zero_with_a_full_training() -> None:
    rates = rates_of(8, 9, kind="cosine")
    expected = [(1 + math.cos(math.pi * step / 8)) / 2 for step in range(9)]
    assert rates == pytest.approx(expected)
    warmed = rates_of(8, 9, kind="cosine", warmup=4)
    assert warmed[:5] == pytest.approx([0.25, 0.5, 0.75, 1, 1])
    assert warmed[4:] == pytest.approx([(1 + math.cos(math.pi * s / 4)) / 2 for s in range(5)])


def test_one_cycle_peaks_at_the_recipes_rate() -> None:
    rates = rates_of(20, 20, kind="one_cycle")
    assert max(rates) == pytest.approx(1)
    assert rates.index(max(rates)) == 5  # 30 % of the way
    assert rates[0] == pytest.approx(1 / 25)
    assert rates[-1] == pytest.approx(1 / 25 / 1e4)
