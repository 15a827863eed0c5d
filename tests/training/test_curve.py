"""Learning curves: they are what validations say, and leave the training as it is."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from searches import small_recipe
from torch import Tensor, nn
from trainings import cpu

from optuna_taylorglo.errors import StopRequested
from optuna_taylorglo.recipes.load import load_recipe
from optuna_taylorglo.training import callbacks as curve_module
from optuna_taylorglo.training.callbacks import POINTS, Curve
from optuna_taylorglo.training.training import Training

STEPS = 48
HERE = "dropping_nets"


@pytest.fixture(autouse=True)
def _time_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curve_module, "SHARE", float("inf"))


def training_of(folder: Path, model: str, data: str | None = None, **changes: Any) -> Training:
    network = {"class_path": model, "init_args": {}}
    sections: dict[str, Any] = {"model": network, "batch_size": 20} | changes
    if data is not None:
        sections["data"] = {"class_path": data, "init_args": {}}
    recipe = load_recipe(small_recipe(folder / "recipe.yaml", **sections))
    return Training(recipe, cpu(folder, HERE, "own_nets"))


def trained(training: Training, *, curve: bool, seed: int = 1) -> tuple[float, list[Tensor], Curve]:
    """What a training comes to, its weights, and its curve."""
    weights: list[Tensor] = []
    found: Curve = []
    value = training.run(
        nn.CrossEntropyLoss(),
        seed=seed,
        steps=STEPS,
        on_test_set=True,
        on_trained=lambda module: weights.extend(p.detach().clone() for p in module.parameters()),
        on_curve=found.extend if curve else None,
    )
    return value, weights, found


CASES = [
    ("lightning_modules.nets.digits_cnn.DigitsCNN", None),
    (f"{HERE}.Dropping", None),
    (f"{HERE}.DroppingModule", None),
    (f"{HERE}.Dropping", f"{HERE}.OwnDigits"),
    (f"{HERE}.DroppingModule", f"{HERE}.OwnDigits"),
]


@pytest.mark.parametrize(("model", "data"), CASES)
def test_a_curve_leaves_the_training_as_it_is_to_the_last_bit(
    tmp_path: Path, model: str, data: str | None
) -> None:
    training = training_of(tmp_path, model, data)
    without, weights, nothing = trained(training, curve=False)
    value, same, curve = trained(training, curve=True)
    assert nothing == []
    assert len(curve) >= 3
    assert value == without
    assert all(torch.equal(a, b) for a, b in zip(weights, same, strict=True))
    steps = [step for step, _ in curve]
    assert steps == sorted(set(steps))
    assert steps[-1] == STEPS
    assert len(steps) <= POINTS


@pytest.mark.parametrize(("model", "data"), CASES)
def test_a_curve_holds_what_validations_say(tmp_path: Path, model: str, data: str | None) -> None:
    training = training_of(tmp_path, model, data)
    _, _, curve = trained(training, curve=True)
    for step, value in (curve[0], curve[-1]):
        # With a loader of one's own, a validation in between changes what follows: hence the end.
        shorter = training.run(nn.CrossEntropyLoss(), seed=1, steps=step)
        assert value == pytest.approx(shorter, abs=1e-6), step


def test_points_of_a_loader_without_chunks_are_evenly_apart(tmp_path: Path) -> None:
    training = training_of(tmp_path, f"{HERE}.Dropping", f"{HERE}.OwnDigits")
    _, _, curve = trained(training, curve=True)
    assert [step for step, _ in curve] == list(range(4, STEPS + 1, STEPS // POINTS))


def test_callbacks_of_the_recipe_do_not_hear_of_it(tmp_path: Path) -> None:
    training = training_of(
        tmp_path,
        f"{HERE}.DroppingModule",
        f"{HERE}.OwnDigits",
        trainer={"callbacks": [{"class_path": f"{HERE}.Stopper"}]},
    )
    _, _, curve = trained(training, curve=True)
    assert curve[-1][0] == STEPS
    assert len(curve) == POINTS


def test_a_rate_that_follows_validations_has_no_curve(tmp_path: Path) -> None:
    training = training_of(tmp_path, f"{HERE}.OnPlateau", f"{HERE}.OwnDigits")
    without, weights, _ = trained(training, curve=False)
    value, same, curve = trained(training, curve=True)
    assert [step for step, _ in curve] == [STEPS]
    assert value == without
    assert all(torch.equal(a, b) for a, b in zip(weights, same, strict=True))


@pytest.mark.parametrize("model", [f"{HERE}.Dropping", f"{HERE}.DroppingModule"])
def test_validations_that_are_too_dear_are_fewer(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curve_module, "SHARE", 1e-9)
    training = training_of(tmp_path, model, f"{HERE}.OwnDigits")
    _, _, curve = trained(training, curve=True)
    # One has to be tried, and the end costs nothing.
    assert [step for step, _ in curve] == [4, STEPS]


@pytest.mark.parametrize("model", [f"{HERE}.Dropping", f"{HERE}.DroppingModule"])
def test_a_validation_for_a_curve_is_not_waited_for(tmp_path: Path, model: str) -> None:
    stop = threading.Event()
    training = training_of(tmp_path, model, f"{HERE}.OwnDigits")
    build = training._build_data

    def build_and_watch(seed: int) -> Any:
        data = build(seed)
        val_dataloader = data.val_dataloader

        def stopping() -> Any:
            for batch in val_dataloader():
                assert not stop.is_set(), "a further batch was validated"
                stop.set()
                yield batch

        data.val_dataloader = lambda: _Loader(stopping)
        return data

    training._build_data = build_and_watch  # type: ignore[method-assign]
    with pytest.raises(StopRequested):
        training.run(
            nn.CrossEntropyLoss(), seed=0, steps=STEPS, stop=stop, on_curve=lambda curve: None
        )


class _Loader:
    """Batches as a generator makes them, again each time."""

    def __init__(self, make: Any) -> None:
        self._make = make

    def __iter__(self) -> Any:
        return self._make()

    def __len__(self) -> int:
        return 3
