"""Learning curves: they are what validations say, and leave the training as it is."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from trainings import digits_training

from optuna_taylorglo.errors import StopRequested
from optuna_taylorglo.training import callbacks
from optuna_taylorglo.training.callbacks import POINTS, Curve
from optuna_taylorglo.training.training import Training

STEPS = 48
CE = nn.CrossEntropyLoss()
OWN_DIGITS = {"class_path": "own_nets.OwnDigits", "init_args": {}}


@pytest.fixture(autouse=True)
def _time_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callbacks, "SHARE", float("inf"))


def training_of(folder: Path, model: str | None, own_data: bool = True, **changes: Any) -> Training:
    data = {"data": OWN_DIGITS} if own_data else {}
    return digits_training(folder, model, batch_size=20, **data, **changes)


def trained(training: Training, *, curve: bool) -> tuple[float, list[Tensor], Curve]:
    """What a training comes to, its weights, and its curve."""
    weights: list[Tensor] = []
    found: Curve = []
    value = training.run(
        CE,
        seed=1,
        steps=STEPS,
        on_test_set=True,
        on_trained=lambda module: weights.extend(p.detach().clone() for p in module.parameters()),
        on_curve=found.extend if curve else None,
    )
    return value, weights, found


@pytest.mark.parametrize("own_data", [False, True])
@pytest.mark.parametrize("model", ["own_nets.Dropping", "own_nets.DroppingModule"])
def test_a_curve_holds_what_validations_say_and_leaves_the_training_as_it_is_to_the_last_bit(
    tmp_path: Path, model: str, own_data: bool
) -> None:
    training = training_of(tmp_path, model, own_data)
    without, weights, nothing = trained(training, curve=False)
    value, same, curve = trained(training, curve=True)
    assert nothing == []
    assert value == without
    assert all(torch.equal(a, b) for a, b in zip(weights, same, strict=True))
    steps = [step for step, _ in curve]
    if own_data:
        assert steps == list(range(4, STEPS + 1, STEPS // POINTS))
    assert 3 <= len(steps) <= POINTS
    assert steps == sorted(set(steps))
    assert steps[-1] == STEPS
    for step, value in (curve[0], curve[-1]):
        shorter = training.run(CE, seed=1, steps=step)
        assert value == pytest.approx(shorter, abs=1e-6), step


def test_callbacks_of_the_recipe_do_not_hear_of_it(tmp_path: Path) -> None:
    stopper = {"callbacks": [{"class_path": "own_nets.Stopper"}]}
    training = training_of(tmp_path, "own_nets.DroppingModule", trainer=stopper)
    _, _, curve = trained(training, curve=True)
    assert curve[-1][0] == STEPS
    assert len(curve) == POINTS


def test_a_rate_that_follows_validations_has_no_curve(tmp_path: Path) -> None:
    training = training_of(tmp_path, "own_nets.OnPlateau")
    without, weights, _ = trained(training, curve=False)
    value, same, curve = trained(training, curve=True)
    assert [step for step, _ in curve] == [STEPS]
    assert value == without
    assert all(torch.equal(a, b) for a, b in zip(weights, same, strict=True))


def test_validations_that_take_too_long_are_fewer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callbacks, "SHARE", 1e-9)
    _, _, curve = trained(training_of(tmp_path, "own_nets.DroppingModule"), curve=True)
    # One has to be tried, and the end costs nothing.
    assert [step for step, _ in curve] == [4, STEPS]


def test_a_validation_for_a_curve_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = threading.Event()
    training = training_of(tmp_path, "own_nets.DroppingModule")
    step = training._model_class.validation_step

    def stopping(*arguments: Any) -> None:
        assert not stop.is_set(), "a further batch was validated"
        stop.set()
        step(*arguments)

    monkeypatch.setattr(training._model_class, "validation_step", stopping)
    with pytest.raises(StopRequested):
        training.run(CE, seed=0, steps=STEPS, stop=stop, on_curve=lambda curve: None)


def test_a_training_that_a_callback_ends_is_validated_once_more(tmp_path: Path) -> None:
    stopper = {"callbacks": [{"class_path": "own_nets.Stopper"}]}
    training = training_of(tmp_path, "own_nets.DroppingModule", trainer=stopper)
    seen: list[int] = []
    training.run(
        CE, seed=1, steps=9, check_at=[2, 4, 6], on_validation=lambda step, _: seen.append(step)
    )
    assert seen == [2, 4, 4]
