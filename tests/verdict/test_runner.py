"""Tasks: known by what they train, done once, lost never, trained as they ask."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState
from schedulers import fail_running, read_anew
from torch import nn
from trainings import RecordedTraining, cpu, digits_training

from optuna_taylorglo.attributes import RELEASED, TASK
from optuna_taylorglo.errors import RecipeError, StopRequested, TrainingFailed, UsageError
from optuna_taylorglo.study.open import open_storage
from optuna_taylorglo.study.queue import record_failure
from optuna_taylorglo.verdict import runner
from optuna_taylorglo.verdict.runner import MAX_FAILURES, TaskQueue, TaskTrainer
from optuna_taylorglo.verdict.statistics import Role
from optuna_taylorglo.verdict.tasks import ComparedLoss, Task, cross_entropy


def task(seed: int = 1, loss: ComparedLoss | None = None, **changes: Any) -> Task:
    fields: dict[str, Any] = {"length": 5, "unit": "steps", "on_test_set": True}
    return Task(loss or cross_entropy(role=Role.REFERENCE), seed, **(fields | changes))


def new_queue(storage: Any = None, **heartbeat: float) -> TaskQueue:
    study = optuna.create_study(
        study_name="s-verdict", storage=storage, direction="maximize", load_if_exists=True
    )
    return TaskQueue(study, **heartbeat)


def take(queue: TaskQueue, expected: Task | None = None) -> Any:
    trial = queue.claim()
    assert trial is not None
    assert expected is None or Task.of(trial) == expected
    return trial


def crash(queue: TaskQueue, expected: Task | None = None) -> None:
    """Let a training end with an exception, as in a worker."""
    trial = take(queue, expected)
    try:
        raise KeyError("a bug of mine")
    except KeyError as error:
        record_failure(trial, error)
    queue.finish(trial, state=TrialState.FAIL)


def test_a_task_is_known_by_what_it_trains_not_by_its_name() -> None:
    renamed = task(loss=cross_entropy("x", "other"), save_network=True)
    assert renamed.key == task().key
    # With other keys, studies would train everything again.
    assert task().key == "e0b2e2d001b951b14fd3679a4f24e9b5"
    others = [task(2), task(length=6), task(on_test_set=False), task(data_args={"fraction": 0.5})]
    factors = [cross_entropy(learning_rate_factor=factor) for factor in (0.3, 3.0)]
    others += [task(loss=loss) for loss in factors]
    assert len({one.key for one in (task(), *others)}) == 7


def test_a_task_survives_the_database() -> None:
    queue = new_queue()
    queue.enqueue([task()])
    (stored,) = queue.study.trials
    assert Task.of(stored) == task()
    stored.user_attrs[TASK] |= {"seed": "many"}
    with pytest.raises(ValueError, match="seed"):
        Task.of(stored)


def test_the_queue_does_nothing_twice_and_gives_up_after_some_crashes() -> None:
    queue = new_queue()
    tasks = [task(1), task(2), task(3)]
    queue.enqueue(tasks)
    queue.enqueue(tasks)
    assert len(queue.study.trials) == 3
    assert queue.results(tasks) is None
    queue.finish(take(queue, task(1)), 0.5)
    queue.finish(take(queue), state=TrialState.PRUNED)
    assert queue.results(tasks[:2]) == [0.5, None]
    released = take(queue)
    queue.release(released)
    for _ in range(MAX_FAILURES):
        assert queue.results(tasks) is None
        crash(queue, task(3))
    assert queue.claim() is None
    assert queue.which_done(tasks) == [True] * 3
    assert queue.study.trials[released.number].user_attrs[RELEASED]
    with pytest.raises(TrainingFailed, match="cross-entropy with seed 3 failed 3 times") as raised:
        queue.results(tasks)
    assert "KeyError: 'a bug of mine'" in str(raised.value)
    assert "in crash" in str(raised.value)  # the end of the traceback


def test_failed_trainings_are_no_results_and_are_trained_again_by_the_next_command() -> None:
    earlier = new_queue()
    earlier.enqueue([task(1), task(2)])
    for seed in (1, 2):  # a crash is repeated before other tasks: a bug shows soon
        for _ in range(MAX_FAILURES):
            crash(earlier, task(seed))
    with pytest.raises(TrainingFailed, match="a bug of mine"):
        earlier.results([task(1)])
    # The same command after the cause was fixed.
    queue = TaskQueue(earlier.study)
    assert queue.results([task(1)]) is None
    queue.enqueue([task(1)])
    queue.enqueue([task(1)])
    assert len(queue.study.get_trials(states=(TrialState.WAITING,))) == 1
    queue.finish(take(queue), 0.75)
    assert queue.results([task(1)]) == [0.75]
    # If it was not fixed, there are three attempts more; so it is in a worker that selects.
    queue.wanted = [task(2)]
    for _ in range(MAX_FAILURES):
        assert queue.results([task(2)]) is None
        read_anew(queue)
        crash(queue, task(2))
    with pytest.raises(TrainingFailed, match="failed 3 times"):
        queue.results([task(2)])


def test_a_usage_error_needs_no_second_attempt() -> None:
    queue = new_queue()
    queue.enqueue([task(1), task(2)])
    trial = take(queue)
    record_failure(trial, RecipeError("data.class_path", "'my.Data' needs --allow my"))
    queue.finish(trial, state=TrialState.FAIL)
    with pytest.raises(UsageError, match=r"data\.class_path: 'my\.Data' needs --allow my"):
        queue.results([task(1), task(2)])


def test_a_queue_is_over_when_no_training_came_for_a_while() -> None:
    busy = new_queue()
    busy.study.enqueue_trial({"x": 1.0})  # is no training
    busy.enqueue([task()])
    trial = take(busy, task())
    idle = TaskQueue(busy.study, idle_seconds=0.5)
    assert (idle.claim(), idle.over) == (None, False), "one is in hand"
    time.sleep(0.6)
    busy.finish(trial, 0.5)
    assert (idle.claim(), idle.over) == (None, False), "another verdict may follow"
    time.sleep(0.6)
    assert (idle.claim(), idle.over) == (None, True)


def test_a_result_that_comes_after_its_trial_failed_as_stale_is_dropped(sqlite_url: str) -> None:
    slow, quick = new_queue(open_storage(sqlite_url)), new_queue(open_storage(sqlite_url))
    slow.enqueue([task()])
    late = take(slow)
    fail_running(quick)
    read_anew(quick)
    again = take(quick, task())
    assert not slow.finish(late, 0.25)
    slow.release(late)  # which is no error either
    assert quick.results([task()]) is None
    assert quick.finish(again, 0.25)
    assert quick.results([task()]) == [0.25]


def test_a_training_that_kills_its_workers_is_given_up(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "MAX_STALE", 2)
    queue = new_queue(open_storage(sqlite_url))
    queue.enqueue([task()])
    for _ in range(3):
        assert queue.results([task()]) is None
        take(queue)
        fail_running(queue)
        read_anew(queue)
    with pytest.raises(TrainingFailed, match="seed 1 crashed 3 workers"):
        queue.results([task()])


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (task(), "testing cross-entropy"),
        (task(data_args={"fraction": 0.1}), "testing cross-entropy at fraction 0.1"),
        *(
            (task(loss=cross_entropy(name, "my loss"), on_test_set=False), words)
            for name, words in {
                "ce-tuned": "tuning cross-entropy's learning rate",
                "label-smoothing": "tuning label smoothing",
                "finalist": "selecting the winner",
            }.items()
        ),
    ],
)
def test_stages_are_named(made: Task, words: str) -> None:
    assert made.stage == words


def short(loss: ComparedLoss | None = None, **changes: Any) -> Task:
    return task(loss=loss, **({"length": 3, "on_test_set": False} | changes))


def test_learning_rate_and_data_of_a_task_reach_its_training(tmp_path: Path) -> None:
    data = {"init_args": {"fraction": 0.9, "flip": True}}
    train = TaskTrainer(digits_training(tmp_path, data=data).recipe, cpu(tmp_path))

    def rate_and_fraction(**changes: Any) -> tuple[float, float]:
        modules: list[Any] = []
        train(short(**changes), modules.append)
        trainer = modules[0].trainer
        assert trainer.datamodule.augmentation.flip
        return trainer.optimizers[0].param_groups[0]["lr"], trainer.datamodule.fraction

    tuned, half = cross_entropy(learning_rate=0.15), {"fraction": 0.5}
    assert rate_and_fraction() == (0.05, 0.9)
    assert rate_and_fraction(loss=tuned) == (0.15, 0.9)
    assert rate_and_fraction(data_args=half) == (0.05, 0.5)
    assert rate_and_fraction(loss=tuned, data_args=half) == (0.15, 0.5)
    # What one task changes is not there for the next.
    assert rate_and_fraction() == (0.05, 0.9)


def test_tasks_share_trainings_and_return_the_metric_that_judges(
    tmp_path: Path, recipe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[RecordedTraining] = []

    def build(*arguments: Any) -> RecordedTraining:
        built.append(RecordedTraining(*arguments))
        return built[-1]

    monkeypatch.setattr(runner, "Training", build)
    train = TaskTrainer(recipe, cpu(tmp_path))
    epoch = {"length": 1, "unit": "epochs"}
    values = [train(short(on_test_set=test, **epoch)) for test in (False, True)]
    for one in (short(seed=2), short(length=2), short(cross_entropy(scale=2.0))):
        train(one)
    (training,) = built
    steps = training.steps_per_pass
    assert training.seeds == [1, 1, 2, 1, 1]
    assert [options["steps"] for options in training.options] == [steps, steps, 3, 2, 3]
    assert values == [
        training.run(nn.CrossEntropyLoss(), seed=1, steps=steps, on_test_set=test)
        for test in (False, True)
    ]
    assert values[0] != values[1]
    train(short(cross_entropy(learning_rate=0.1)))
    train(short(cross_entropy(learning_rate_factor=1.0)))
    assert len(built) == 1
    for data_args in ({"fraction": 0.5, "label_noise": 0.1}, {"label_noise": 0.1, "fraction": 0.5}):
        train(short(data_args=data_args))
    assert len(built) == 2


def test_a_task_ends_when_told(tmp_path: Path, recipe: Any) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(StopRequested):
        TaskTrainer(recipe, cpu(tmp_path), stop)(short())
