"""Tasks: known by what they train, done once, lost never."""

import json
import time

import optuna
import pytest
from optuna.trial import TrialState, create_trial
from schedulers import fail_running, read_anew

from optuna_taylorglo.attributes import RELEASED, TASK
from optuna_taylorglo.errors import RecipeError, TrainingFailed, UsageError
from optuna_taylorglo.study.open import open_storage
from optuna_taylorglo.study.queue import record_failure
from optuna_taylorglo.verdict import runner
from optuna_taylorglo.verdict.runner import MAX_FAILURES, TaskQueue
from optuna_taylorglo.verdict.statistics import Role
from optuna_taylorglo.verdict.tasks import ComparedLoss, Task


def task(seed, **changes):
    fields = {"length": 5, "unit": "steps", "on_test_set": True}
    loss = ComparedLoss("ce", "cross-entropy", "cross-entropy", Role.REFERENCE)
    return Task(loss, seed, **(fields | changes))


def new_queue(storage=None, **heartbeat):
    study = optuna.create_study(
        study_name="s-verdict", storage=storage, direction="maximize", load_if_exists=True
    )
    return TaskQueue(study, **heartbeat)


def take(queue):
    trial = queue.claim()
    assert trial is not None
    return trial


def test_a_task_is_known_by_what_it_trains_not_by_its_name():
    renamed = Task(ComparedLoss("x", "other", "cross-entropy"), 1, 5, "steps", True)
    assert renamed.key == task(1).key
    assert (
        len({task(1).key, task(2).key, task(1, length=6).key, task(1, on_test_set=False).key}) == 4
    )
    with pytest.raises(ValueError, match="kind must be one of"):
        ComparedLoss("evil", "evil", "os.system")


def test_keys_are_those_of_studies_made_before():
    """Changing them would train everything again that such a study has trained."""
    assert task(1).key == "7cc10df1ba5ce05bb003bec64e079851"
    scaled = ComparedLoss(
        "w", "l", "taylor", Role.EVOLVED, {"theta": [0.5, 1.0]}, scale=2.5, learning_rate=0.1
    )
    other = Task(scaled, 7, 9, "epochs", False, {"fraction": 0.5}, save_network=True)
    assert other.key == "c5c591d057e26e266037ddc6617b3e6c"


def test_tasks_survive_the_database_and_come_from_earlier_versions_too():
    queue = new_queue()
    queue.enqueue([task(1)])
    (stored,) = queue.study.trials
    assert Task.of(stored) == task(1)
    content = json.loads(json.dumps(stored.user_attrs[TASK]))
    content["finalist"] = content.pop("loss")
    del content["finalist"]["role"]
    stored.user_attrs[TASK] = content
    assert Task.of(stored).key == task(1).key
    stored.user_attrs[TASK] = content | {"seed": "many"}
    with pytest.raises(ValueError, match="seed"):
        Task.of(stored)


def test_the_queue_does_nothing_twice_and_gives_up_after_some_crashes():
    queue = new_queue()
    tasks = [task(1), task(2), task(3)]
    queue.enqueue(tasks)
    queue.enqueue(tasks)
    assert len(queue.study.trials) == 3
    assert queue.results(tasks) is None
    trial = take(queue)
    assert Task.of(trial) == task(1)
    queue.finish(trial, 0.5)
    queue.finish(take(queue), state=TrialState.PRUNED)
    assert queue.results(tasks[:2]) == [0.5, None]
    released = take(queue)
    queue.release(released)
    for _ in range(MAX_FAILURES):
        assert queue.results(tasks) is None
        crash(queue, task(3))
    assert queue.claim() is None
    assert queue.count_done(tasks) == 3
    assert queue.study.trials[released.number].user_attrs[RELEASED]
    with pytest.raises(TrainingFailed, match="cross-entropy with seed 3 failed 3 times") as raised:
        queue.results(tasks)
    assert "KeyError: 'a bug of mine'" in str(raised.value)
    assert "in crash" in str(raised.value)  # the end of the traceback


def crash(queue, expected=None):
    """Let a training end with an exception, as in a worker."""
    trial = take(queue)
    assert expected is None or Task.of(trial) == expected
    try:
        raise KeyError("a bug of mine")
    except KeyError as error:
        record_failure(trial, error)
    queue.finish(trial, state=TrialState.FAIL)


def test_a_crash_is_repeated_before_other_tasks_so_that_a_bug_shows_soon():
    queue = new_queue()
    queue.enqueue([task(seed) for seed in range(9)])
    for _ in range(MAX_FAILURES):
        crash(queue, task(0))
    with pytest.raises(TrainingFailed, match="a bug of mine"):
        queue.results([task(seed) for seed in range(9)])


@pytest.mark.parametrize("told", [True, False])
def test_what_was_given_up_before_is_no_result_and_is_trained_again(told):
    """Also where an earlier version failed, which kept no reason."""
    earlier = new_queue()
    earlier.enqueue([task(1)])
    for _ in range(MAX_FAILURES):
        if told:
            crash(earlier)
        else:
            earlier.finish(take(earlier), state=TrialState.FAIL)
    with pytest.raises(TrainingFailed, match="a bug of mine" if told else "crashed 3 workers"):
        earlier.results([task(1)])
    # The same command after the mistake was mended.
    queue = TaskQueue(earlier.study)
    assert queue.results([task(1)]) is None
    queue.enqueue([task(1)])
    queue.enqueue([task(1)])
    assert len(queue.study.get_trials(states=(TrialState.WAITING,))) == 1
    queue.finish(take(queue), 0.75)
    assert queue.results([task(1)]) == [0.75]
    # And if it was not mended, it has its three attempts and says so again.
    earlier.enqueue([task(2)])
    for _ in range(MAX_FAILURES):
        crash(earlier)
    queue.enqueue([task(2)])
    for _ in range(MAX_FAILURES):
        assert queue.results([task(2)]) is None
        crash(queue, task(2))
    with pytest.raises(TrainingFailed, match="failed 3 times"):
        queue.results([task(2)])


def test_wrong_usage_needs_no_second_attempt():
    queue = new_queue()
    queue.enqueue([task(1), task(2)])
    trial = take(queue)
    record_failure(trial, RecipeError("data.class_path", "'my.Data' needs --allow my"))
    queue.finish(trial, state=TrialState.FAIL)
    with pytest.raises(UsageError, match=r"data\.class_path: 'my\.Data' needs --allow my"):
        queue.results([task(1), task(2)])


def test_a_queue_is_over_when_nothing_came_for_a_while(monkeypatch):
    queue = new_queue()
    queue.enqueue([task(1)])
    trial = take(queue)
    monkeypatch.setattr(runner, "IDLE_SECONDS", -1.0)
    assert (queue.claim(), queue.over) == (None, False), "one is in hand"
    monkeypatch.setattr(runner, "IDLE_SECONDS", 1000.0)
    queue.finish(trial, 0.5)
    assert (queue.claim(), queue.over) == (None, False)
    monkeypatch.setattr(runner, "IDLE_SECONDS", -1.0)
    other = new_queue(queue._storage)
    assert (other.claim(), other.over) == (None, True)


def test_a_result_that_comes_after_its_trial_failed_as_stale_is_dropped(sqlite_url):
    slow, quick = new_queue(open_storage(sqlite_url)), new_queue(open_storage(sqlite_url))
    slow.enqueue([task(1)])
    late = take(slow)
    fail_running(quick)
    read_anew(quick)
    again = take(quick)
    assert Task.of(again) == task(1)
    assert not slow.finish(late, 0.25)
    assert quick.results([task(1)]) is None
    assert quick.finish(again, 0.25)
    assert quick.results([task(1)]) == [0.25]


def test_releasing_a_trial_that_failed_as_stale_is_no_error(sqlite_url):
    queue = new_queue(open_storage(sqlite_url))
    queue.enqueue([task(1)])
    trial = take(queue)
    fail_running(queue)
    read_anew(queue)
    take(queue)
    queue.release(trial)


def test_a_malformed_task_is_left_out_with_a_word(caplog):
    """It must not end one worker after the other."""
    queue = new_queue()
    queue.study.add_trial(create_trial(state=TrialState.WAITING, user_attrs={TASK: {"seed": 1}}))
    queue.study.enqueue_trial({"x": 1.0})
    queue.enqueue([task(1)])
    trial = take(queue)
    assert Task.of(trial) == task(1)
    queue.finish(trial, 0.5)
    optuna.logging.enable_propagation()
    assert queue.claim() is None
    optuna.logging.disable_propagation()
    assert "Trial 0 of study" in caplog.text
    assert "Trial 1 of study" in caplog.text
    assert [t.state for t in queue.study.trials[:2]] == [TrialState.FAIL] * 2


def test_deaths_of_workers_are_not_charged_to_a_training(sqlite_url, monkeypatch):
    monkeypatch.setattr(runner, "MAX_STALE", 6)
    queue = new_queue(open_storage(sqlite_url))
    queue.enqueue([task(1)])
    for _ in range(6):
        take(queue)
        fail_running(queue)
        read_anew(queue)
        assert queue.results([task(1)]) is None
    take(queue)
    fail_running(queue)
    with pytest.raises(TrainingFailed, match="seed 1 crashed 7 workers"):
        queue.results([task(1)])


def test_a_trial_that_nobody_watches_does_not_hold_a_verdict_up(sqlite_url):
    """Such as one that another tool has set running."""
    queue = new_queue(open_storage(sqlite_url), heartbeat_interval=1, grace_period=2)
    queue.enqueue([task(1)])
    (waiting,) = queue.study.trials
    queue._storage.set_trial_state_values(waiting._trial_id, TrialState.RUNNING)
    begin = time.monotonic()
    trial = queue.wait_for_trial(deadline=begin + 20)
    assert trial is not None
    assert time.monotonic() - begin >= 2
    assert Task.of(trial) == task(1)


def test_who_watched_a_long_training_stays_for_a_while_after_it(sqlite_url):
    busy, idle = new_queue(open_storage(sqlite_url)), new_queue(open_storage(sqlite_url))
    idle._idle_seconds = 1.0
    busy.enqueue([task(1)])
    trial = take(busy)
    assert (idle.claim(), idle.over) == (None, False)
    time.sleep(1.1)
    busy.finish(trial, 0.5)
    assert (idle.claim(), idle.over) == (None, False), "another verdict may follow"
    deadline = time.monotonic() + 20
    while not idle.over and time.monotonic() < deadline:
        assert idle.claim() is None
        time.sleep(0.1)
    assert idle.over
