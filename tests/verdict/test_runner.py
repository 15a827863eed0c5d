"""Tasks: known by what they train, done once, lost never, trained as they ask."""

import threading
import time

import optuna
import pytest
from optuna.trial import TrialState
from schedulers import fail_running, read_anew
from torch import nn
from trainings import RecordedTraining, cpu, digits_training

from optuna_taylorglo.attributes import RELEASED
from optuna_taylorglo.errors import RecipeError, StopRequested, TrainingFailed, UsageError
from optuna_taylorglo.study.open import open_storage
from optuna_taylorglo.study.queue import record_failure
from optuna_taylorglo.verdict import runner
from optuna_taylorglo.verdict.runner import MAX_FAILURES, TaskQueue, TaskTrainer
from optuna_taylorglo.verdict.statistics import Role
from optuna_taylorglo.verdict.tasks import Task, cross_entropy


def task(seed=1, loss=None, **changes):
    fields = {"length": 5, "unit": "steps", "on_test_set": True}
    return Task(loss or cross_entropy(role=Role.REFERENCE), seed, **(fields | changes))


def new_queue(storage=None):
    return TaskQueue(optuna.create_study(storage=storage, direction="maximize"))


def take(queue, expected=None):
    trial = queue.claim()
    assert trial is not None
    assert expected is None or Task.of(trial) == expected
    return trial


def crash(queue, expected=None):
    """Let a training end with an exception, as in a worker."""
    trial = take(queue, expected)
    try:
        raise KeyError("a bug of mine")
    except KeyError as error:
        record_failure(trial, error)
    queue.finish(trial, state=TrialState.FAIL)


def test_a_task_is_known_by_what_it_trains_not_by_its_name():
    renamed = task(loss=cross_entropy("x", "other"), save_network=True)
    assert renamed.key == task().key
    # With other keys, studies would train everything again.
    assert task().key == "e0b2e2d001b951b14fd3679a4f24e9b5"
    others = [task(2), task(length=6), task(on_test_set=False), task(data_args={"fraction": 0.5})]
    factors = [cross_entropy(learning_rate_factor=factor) for factor in (0.3, 3.0)]
    others += [task(loss=loss) for loss in factors]
    assert len({one.key for one in (task(), *others)}) == 7
    # How it is called in the progress.
    assert task(data_args={"fraction": 0.1}).stage == "testing cross-entropy at fraction 0.1"
    for name, words in {
        "ce-tuned": "tuning cross-entropy's learning rate",
        "label-smoothing": "tuning label smoothing",
        "finalist": "selecting the winner",
    }.items():
        assert task(loss=cross_entropy(name, "my loss"), on_test_set=False).stage == words


def test_the_queue_does_nothing_twice_and_gives_up_after_some_crashes():
    queue = new_queue()
    tasks = [task(1), task(2), task(3)]
    queue.enqueue(tasks)
    queue.enqueue(tasks)
    assert [Task.of(trial) for trial in queue.study.trials] == tasks
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


def test_failed_trainings_are_no_results_and_are_trained_again_by_the_next_command():
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


def test_a_usage_error_needs_no_second_attempt():
    queue = new_queue()
    queue.enqueue([task(1), task(2)])
    trial = take(queue)
    record_failure(trial, RecipeError("data.class_path", "'my.Data' needs --allow my"))
    queue.finish(trial, state=TrialState.FAIL)
    with pytest.raises(UsageError, match=r"data\.class_path: 'my\.Data' needs --allow my"):
        queue.results([task(1), task(2)])


def test_a_queue_is_over_when_no_training_came_for_a_while():
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


def test_a_training_that_kills_its_workers_is_given_up(sqlite_url, monkeypatch):
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


def short(loss=None, **changes):
    return task(loss=loss, **({"length": 3, "on_test_set": False} | changes))


def test_learning_rate_and_data_of_a_task_reach_its_training(tmp_path):
    data = {"init_args": {"fraction": 0.9, "flip": True}}
    train = TaskTrainer(digits_training(tmp_path, data=data).recipe, cpu(tmp_path))

    def rate_and_fraction(**changes):
        modules = []
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
    train.stop = threading.Event()
    train.stop.set()
    with pytest.raises(StopRequested):
        train(short())


def test_tasks_share_trainings_and_return_the_metric_that_judges(tmp_path, recipe, monkeypatch):
    built = []

    def build(*arguments):
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
    once = {"seed": 1, "steps": steps}
    again = [training.run(nn.CrossEntropyLoss(), on_test_set=t, **once) for t in (False, True)]
    assert values == again != again[::-1]
    train(short(cross_entropy(learning_rate=0.1)))
    train(short(cross_entropy(learning_rate_factor=1.0)))
    assert len(built) == 1
    for data_args in ({"fraction": 0.5, "label_noise": 0.1}, {"label_noise": 0.1, "fraction": 0.5}):
        train(short(data_args=data_args))
    assert len(built) == 2
