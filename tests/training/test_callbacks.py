"""What follows a training from outside: stops, divergence, progress, curves, learning rates."""

import threading
from pathlib import Path
from typing import Any

import own_optimizers
import pytest
import torch
from torch import Tensor, nn
from trainings import NotingLoss, Validations, digits_training, trained, weights

from optuna_taylorglo.errors import Diverged, StopRequested
from optuna_taylorglo.training import callbacks
from optuna_taylorglo.training.callbacks import CHECK_INTERVAL, POINTS, CannotScale, Curve
from optuna_taylorglo.training.training import Training

STEPS = 48
CE = nn.CrossEntropyLoss()


@pytest.fixture(autouse=True)
def _time_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callbacks, "SHARE", float("inf"))


@pytest.fixture(params=[None, "own_nets.OwnModule"])
def training(request: pytest.FixtureRequest, tmp_path: Path) -> Training:
    """A net that is trained by our module, and a module that trains itself."""
    return digits_training(tmp_path, request.param)


def fail(step: int, value: float) -> None:
    pytest.fail(f"validated at step {step}")


def test_a_request_to_stop_ends_the_training_soon(training: Training) -> None:
    stop, criterion = threading.Event(), NotingLoss()
    with pytest.raises(StopRequested):
        training.run(
            criterion,
            seed=0,
            steps=10**6,
            check_at=[10],
            on_validation=lambda step, value: stop.set(),
            stop=stop,
        )
    assert 10 < len(criterion.told) <= 20


@pytest.mark.parametrize("options", [{"steps": 2}, {"steps": STEPS, "on_curve": print}])
def test_a_validation_is_not_waited_for_either(training: Training, options: Any) -> None:
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
        training.run(NotingLoss(), seed=0, on_validation=fail, stop=stop, **options)


def test_divergence_ends_the_training_within_a_few_steps_and_unvalidated(
    training: Training,
) -> None:
    criterion = NotingLoss(nan_from=5)
    with pytest.raises(Diverged, match="the loss is not finite at step"):
        training.run(criterion, seed=0, steps=1000, on_validation=fail)
    # Our own module takes up to 20 steps on one batch.
    assert len(criterion.told) <= 20 + CHECK_INTERVAL
    with pytest.raises(Diverged, match="not finite at step 3"):
        training.run(NotingLoss(nan_from=2), seed=0, steps=6, check_at=[3], on_validation=fail)


@pytest.mark.parametrize("n_batches", [1, 2])
@pytest.mark.parametrize("model", [None, "own_optimizers.Scheduled"])
def test_the_criterion_is_told_the_share_of_optimizer_steps(
    tmp_path: Path, model: str | None, n_batches: int
) -> None:
    criterion, options = NotingLoss(), {"accumulate_grad_batches": n_batches}
    training = digits_training(tmp_path, model, trainer=options)
    training.run(criterion, seed=0, steps=8, check_at=[3, 20])
    expected = [step / 8 for step in range(8) for _ in range(n_batches)]
    assert criterion.told == pytest.approx(expected)


def training_of(folder: Path, model: str, own_data: bool = True, **changes: Any) -> Training:
    if own_data:
        changes["data"] = {"class_path": "own_nets.OwnDigits", "init_args": {}}
    return digits_training(folder, f"own_nets.{model}", batch_size=20, **changes)


def with_curve(training: Training) -> tuple[float, Tensor, Curve]:
    """What a training comes to on the test set, its weights, and its curve."""
    modules: list[Any] = []
    curve: Curve = []
    options: Any = {"on_test_set": True, "on_trained": modules.append, "on_curve": curve.extend}
    return training.run(CE, seed=1, steps=STEPS, **options), weights(modules[0]), curve


@pytest.mark.parametrize(
    ("model", "own_data"),
    [
        ("Dropping", False),
        ("Dropping", True),
        ("DroppingModule", False),
        ("DroppingModule", True),
        ("OnPlateau", True),
    ],
)
def test_a_curve_holds_what_validations_say_and_leaves_the_training_as_it_is_to_the_last_bit(
    tmp_path: Path, model: str, own_data: bool
) -> None:
    training = training_of(tmp_path, model, own_data)
    value, found, curve = with_curve(training)
    assert value == training.run(CE, seed=1, steps=STEPS, on_test_set=True)
    assert torch.equal(found, weights(trained(training, STEPS)))
    steps = [step for step, _ in curve]
    if model == "OnPlateau":  # its rate follows validations
        assert steps == [STEPS]
        return
    if own_data:
        assert steps == list(range(4, STEPS + 1, STEPS // POINTS))
    assert 3 <= len(steps) <= POINTS
    assert steps == sorted(set(steps))
    assert steps[-1] == STEPS
    for step, value in (curve[0], curve[-1]):
        shorter = training.run(CE, seed=1, steps=step)
        assert value == pytest.approx(shorter, abs=1e-6), step


def test_callbacks_of_the_recipe_see_validations_and_not_the_curve(tmp_path: Path) -> None:
    stopper = {"callbacks": [{"class_path": "own_nets.Stopper"}]}
    training = training_of(tmp_path, "DroppingModule", trainer=stopper)
    _, _, curve = with_curve(training)
    assert (curve[-1][0], len(curve)) == (STEPS, POINTS)
    seen = Validations()
    training.run(CE, seed=1, steps=9, check_at=[2, 4, 6], on_validation=seen)
    # A training that a callback ends is validated once more.
    assert seen.steps == [2, 4, 4]


def test_validations_that_take_too_long_are_fewer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callbacks, "SHARE", 1e-9)
    _, _, curve = with_curve(training_of(tmp_path, "DroppingModule"))
    # One has to be tried, and the end costs nothing.
    assert [step for step, _ in curve] == [4, STEPS]


def with_own_rate(folder: Path, name: str = "Scheduled", **arguments: Any) -> Training:
    return digits_training(folder, f"own_optimizers.{name}", arguments, optimizer=None)


KINDS = ["constant", "two_groups", "plateau", *own_optimizers.SCHEDULES]


@pytest.mark.parametrize(
    ("name", "arguments"), [*(("Scheduled", {"kind": kind}) for kind in KINDS), ("ByHand", {})]
)
def test_a_scaled_rate_is_the_same_as_a_module_with_that_rate_written_in(
    tmp_path: Path, name: str, arguments: Any
) -> None:
    training = with_own_rate(tmp_path, name, lr=0.01, **arguments)
    written = with_own_rate(tmp_path, name, lr=0.03, **arguments)
    scaled, same, own = (
        weights(trained(each, 24, check_at=range(2, 24, 2)))
        for each in (training.at_learning_rate_factor(3), written, training)
    )
    assert torch.equal(scaled, same)
    assert not torch.equal(scaled, own)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("SetsRateInsideAStep", "it sets the learning rate in the middle of an optimizer's step"),
        ("WithoutRate", "its optimizer RatelessOptimizer has no learning rate"),
    ],
)
def test_a_rate_that_cannot_be_scaled_says_why(tmp_path: Path, name: str, reason: str) -> None:
    assert with_own_rate(tmp_path, "ByHand").learning_rate_obstacle() is None
    training = with_own_rate(tmp_path, name)
    said = f"that of own_optimizers.{name} cannot be multiplied: {reason}"
    assert training.learning_rate_obstacle() == said
    with pytest.raises(CannotScale, match=reason):
        training.at_learning_rate_factor(2).run(CE, seed=0, steps=2)
    # As it is, it trains.
    assert training.run(CE, seed=0, steps=2) > 0
