from typing import Any

import pytest
import torch
from torch import nn

from lightning_modules.optim import OptimiserSettings, ScheduleSettings


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        (OptimiserSettings("sgd", lr=0.3, momentum=0.8, nesterov=True), torch.optim.SGD),
        (OptimiserSettings("adam", lr=0.3, weight_decay=0.1), torch.optim.Adam),
        (OptimiserSettings("adamw", lr=0.3, weight_decay=0.1), torch.optim.AdamW),
    ],
)
def test_settings_reach_the_optimiser(settings: OptimiserSettings, kind: type) -> None:
    optimiser = settings.build(nn.Linear(2, 2).parameters())
    assert type(optimiser) is kind
    group = optimiser.param_groups[0]
    assert group["lr"] == 0.3
    assert group["weight_decay"] == settings.weight_decay
    if kind is torch.optim.SGD:
        assert (group["momentum"], group["nesterov"]) == (0.8, True)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "lion"),
        ("lr", 0.0),
        ("momentum", 1.0),
        ("weight_decay", -1e-4),
    ],
)
def test_bad_optimiser_settings_are_named(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{field}.*{value}"):
        OptimiserSettings(**{field: value})


def test_nesterov_needs_momentum() -> None:
    with pytest.raises(ValueError, match="nesterov"):
        OptimiserSettings(momentum=0.0, nesterov=True)


@pytest.mark.parametrize(
    ("field", "value"),
    [("unit", "hours"), ("milestones", (5, 3)), ("milestones", (0, 3)), ("gamma", 0.0)],
)
def test_bad_schedule_settings_are_named(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        ScheduleSettings(**{field: value})
