"""Tasks: what one asks for reaches its training, and what several share is built once."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from torch import nn
from trainings import RecordedTraining, cpu, digits_training

from optuna_taylorglo.errors import StopRequested
from optuna_taylorglo.verdict import runner
from optuna_taylorglo.verdict.runner import TaskRunner
from optuna_taylorglo.verdict.tasks import ComparedLoss, ScaledLoss, Task, cross_entropy


class Built(list[RecordedTraining]):
    """Trainings in the order in which they were built."""

    def __call__(self, *arguments: Any) -> RecordedTraining:
        self.append(RecordedTraining(*arguments))
        return self[-1]


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Built:
    trainings = Built()
    monkeypatch.setattr(runner, "Training", trainings)
    return trainings


def task(loss: ComparedLoss | None = None, **changes: Any) -> Task:
    fields = {"seed": 1, "length": 3, "unit": "steps", "on_test_set": False} | changes
    return Task(loss or cross_entropy(), **fields)


def rate_and_fraction(runner: TaskRunner, task: Task) -> tuple[float, float]:
    """Learning rate and share of the data that a task was trained with."""
    seen: list[tuple[float, float]] = []

    def look(module: Any) -> None:
        rate = module.trainer.optimizers[0].param_groups[0]["lr"]
        seen.append((rate, module.trainer.datamodule.fraction))

    runner(task, look)
    return seen[0]


def test_learning_rate_and_data_of_a_task_reach_its_training(tmp_path: Path, recipe: Any) -> None:
    runner = TaskRunner(recipe, cpu(tmp_path))
    tuned = cross_entropy(learning_rate=0.15)
    assert rate_and_fraction(runner, task()) == (0.05, 1.0)
    assert rate_and_fraction(runner, task(tuned)) == (0.15, 1.0)
    assert rate_and_fraction(runner, task(data_args={"fraction": 0.5})) == (0.05, 0.5)
    assert rate_and_fraction(runner, task(tuned, data_args={"fraction": 0.5})) == (0.15, 0.5)
    # What one task changes is not there for the next.
    assert rate_and_fraction(runner, task()) == (0.05, 1.0)


def test_data_arguments_come_on_top_of_the_recipes(tmp_path: Path) -> None:
    recipe = digits_training(tmp_path, data={"init_args": {"fraction": 0.5, "flip": True}}).recipe
    kept: list[Any] = []
    TaskRunner(recipe, cpu(tmp_path))(task(data_args={"label_noise": 0.1}), kept.append)
    data = kept[0].trainer.datamodule
    assert (data.fraction, data.label_noise, data.augmentation.flip) == (0.5, 0.1, True)


def test_tasks_that_differ_in_loss_rate_seed_or_length_share_one_training(
    tmp_path: Path, recipe: Any, built: Built
) -> None:
    runner = TaskRunner(recipe, cpu(tmp_path))
    scaled = cross_entropy(scale=2.0)
    for one in (task(), task(seed=2), task(length=2), task(scaled), task(on_test_set=True)):
        runner(one)
    (training,) = built
    assert training.seeds == [1, 2, 1, 1, 1]
    assert isinstance(training.criteria[3], ScaledLoss)
    for rate in (0.1, 0.2, 0.3):
        runner(task(cross_entropy(learning_rate=rate)))
    assert len(built) == 1
    for _ in range(2):
        runner(task(data_args={"fraction": 0.5, "label_noise": 0.1}))
        runner(task(data_args={"label_noise": 0.1, "fraction": 0.5}))
    assert len(built) == 2


def test_a_task_returns_what_its_training_does(tmp_path: Path, recipe: Any, built: Built) -> None:
    runner = TaskRunner(recipe, cpu(tmp_path))
    values = [
        runner(task(length=1, unit="epochs", on_test_set=on_test_set))
        for on_test_set in (False, True)
    ]
    training = built[0]
    assert [options["steps"] for options in training.options] == [training.steps_per_pass] * 2
    assert values == [
        training.run(
            nn.CrossEntropyLoss(), seed=1, steps=training.steps_per_pass, on_test_set=on_test_set
        )
        for on_test_set in (False, True)
    ]
    assert values[0] != values[1]


def test_a_task_ends_when_told(tmp_path: Path, recipe: Any) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(StopRequested):
        TaskRunner(recipe, cpu(tmp_path), stop)(task())
