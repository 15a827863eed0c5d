"""The queue's contract, the same on every storage: no trial runs twice, no result is lost."""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import optuna
import pytest
import sqlalchemy
from optuna.storages import BaseStorage, InMemoryStorage
from optuna.storages._grpc.server import make_server
from optuna.trial import Trial, TrialState
from schedulers import COMPLETE, FAIL, PRUNED, fail_running, place, read_anew, sampler, take

from optuna_taylorglo.attributes import NEWS, RELEASED, STALE, WITHDRAWN, WORKER
from optuna_taylorglo.search.scheduler import GenerationScheduler
from optuna_taylorglo.study import queue as queue_module
from optuna_taylorglo.study.heartbeat import WorkerProcess
from optuna_taylorglo.study.open import open_storage
from optuna_taylorglo.study.optuna_private import storage_of, trial_id_of
from optuna_taylorglo.study.storages import RetryingStorage

WAITING, RUNNING = TrialState.WAITING, TrialState.RUNNING

Crew = Callable[..., GenerationScheduler]


@pytest.fixture(
    scope="module", params=["memory", "sqlite", "postgresql", "mariadb", "journal", "grpc"]
)
def storages(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[BaseStorage]]:
    """One storage, opened by three workers.

    Optuna's cache of a database is for one thread: it can lose what another does to a new trial.
    """
    kind, directory = request.param, tmp_path_factory.mktemp("storages")
    if kind == "memory":
        yield [RetryingStorage(InMemoryStorage(), "memory")] * 3  # type: ignore[abstract]
        return
    url = f"sqlite:///{directory}/study.db"
    if kind == "journal":
        url = str(directory / "study.log")
    elif kind in ("postgresql", "mariadb"):
        url = request.getfixturevalue(kind).new_database()
    elif kind == "grpc":
        server = make_server(open_storage(url), "127.0.0.1", 0)
        url = f"grpc://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
    yield [open_storage(url) for _ in range(3)]
    if kind == "grpc":
        server.stop(None)


@pytest.fixture
def worker(storages: list[BaseStorage]) -> Crew:
    """What makes the queue of one more worker, in a study of the test's own."""
    return crew(storages)


@pytest.fixture(scope="module")
def sqlite_storages(tmp_path_factory: pytest.TempPathFactory) -> list[BaseStorage]:
    url = f"sqlite:///{tmp_path_factory.mktemp('sqlite')}/study.db"
    return [open_storage(url), open_storage(url)]


@pytest.fixture
def sqlite_worker(sqlite_storages: list[BaseStorage]) -> Crew:
    """The same where the storage makes no difference."""
    return crew(sqlite_storages)


def crew(storages: list[BaseStorage]) -> Crew:
    name, next_storage = uuid.uuid4().hex, itertools.cycle(storages)

    def new_queue(n_generations: int | None = None, **rules: int) -> GenerationScheduler:
        study = optuna.create_study(
            study_name=name,
            storage=next(next_storage),
            sampler=sampler(**rules),
            direction="maximize",
            load_if_exists=True,
        )
        return GenerationScheduler(study, n_generations=n_generations)

    return new_queue


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody takes over what another worker should add."""
    monkeypatch.setattr(queue_module, "TAKEOVER", (1e6, 1e6))


def states(queue: GenerationScheduler) -> list[TrialState]:
    return [trial.state for trial in queue.study.trials]


def test_a_trial_is_claimed_once(worker: Crew) -> None:
    first, second = worker(popsize=3), worker(popsize=3)
    trials = [take(first), take(second), take(first)]
    assert {place(trial) for trial in trials} == {(0, 0, 0), (0, 1, 0), (0, 2, 0)}
    assert (first.claim(), second.claim()) == (None, None)
    assert not first.over
    for trial in first.study.trials:
        assert WorkerProcess.of(trial) is not None, "the first heartbeat comes with the claim"


def test_a_trial_that_another_worker_has_claimed_or_ended_is_passed_over(worker: Crew) -> None:
    first, second = worker(popsize=3), worker(popsize=3)
    ended = take(first)
    assert second._read()
    claimed = take(first)
    assert first.finish(claimed, 0.5)
    trial = take(second)
    assert trial.number not in (ended.number, claimed.number)
    assert states(first).count(RUNNING) == 2


def test_races_for_a_trial_have_one_winner(sqlite_url: str) -> None:
    """Each claim reads before it writes; in between, others must not claim."""
    n_races, n_workers = 25, 4
    studies = [
        optuna.create_study(study_name="a", storage=open_storage(sqlite_url), load_if_exists=True)
        for _ in range(n_workers)
    ]
    for _ in range(n_races):
        studies[0].enqueue_trial({})
    trial_ids = [trial_id_of(trial) for trial in studies[0].trials]
    barrier = threading.Barrier(n_workers)
    winners: list[int] = []

    def race(study: optuna.Study) -> None:
        for trial_id in trial_ids:
            barrier.wait(60)
            if storage_of(study).set_trial_state_values(trial_id, RUNNING):
                winners.append(trial_id)

    threads = [threading.Thread(target=race, args=(study,)) for study in studies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert winners == trial_ids


def test_a_search_of_many_workers_has_every_result_once(worker: Crew) -> None:
    n_workers, n_generations, popsize = 3, 2, 4
    errors: list[BaseException] = []
    queues = [worker(n_generations=n_generations, popsize=popsize) for _ in range(n_workers)]

    def work(queue: GenerationScheduler) -> None:
        try:
            while (trial := queue.wait_for_trial(longest_wait=0.1)) is not None:
                assert queue.finish(trial, float(place(trial)[1]))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(queue,)) for queue in queues]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    done = [trial for trial in queues[0].study.trials if trial.state == COMPLETE]
    places = sorted(place(trial)[:2] for trial in done)  # type: ignore[arg-type]
    assert places == [(g, i) for g in range(n_generations) for i in range(popsize)]
    assert all(trial.value == place(trial)[1] for trial in done)  # type: ignore[arg-type]


def test_a_result_is_stored_and_cannot_be_overwritten(worker: Crew) -> None:
    queue, other = worker(), worker()
    trial = take(queue)
    trial.report(0.25, 1)
    assert queue.finish(trial, 0.5)
    same = Trial(other.study, trial_id_of(trial))
    assert not other.finish(same, state=PRUNED)
    other.release(same)
    fail_running(other)
    stored = other.study.trials[trial.number]
    assert (stored.state, stored.value, stored.intermediate_values) == (COMPLETE, 0.5, {1: 0.25})
    assert not {RELEASED, STALE} & stored.user_attrs.keys()


def test_a_pruned_trial_has_its_last_report_as_value(worker: Crew) -> None:
    queue = worker(popsize=3)
    reported, diverged, silent = (take(queue) for _ in range(3))
    for step, value in enumerate((0.9, 0.3)):
        reported.report(value, step)
    assert queue.finish(reported, state=PRUNED)
    diverged.report(0.7, 1)
    assert queue.finish(diverged, float("nan"))
    silent.report(float("nan"), 1)
    assert queue.finish(silent, state=PRUNED)
    trials = queue.study.trials[:3]
    assert [(t.state, t.value) for t in trials] == [(PRUNED, 0.3), (PRUNED, 0.7), (PRUNED, None)]


def test_a_stale_trial_is_added_again_as_it_was(worker: Crew) -> None:
    """Also the second attempt of a candidate, which has a seed of its own."""
    lost, alive = worker(), worker()
    first = take(lost)
    lost.finish(first, state=PRUNED)
    trial = take(lost)
    assert place(trial) == (0, 0, 1)
    fail_running(alive)
    assert not lost.finish(trial, 0.5)
    read_anew(alive)
    again = take(alive)
    assert (place(again), again.params) == (place(trial), trial.params)
    failed = alive.study.trials[trial.number]
    assert failed.value is None
    assert (failed.state, failed.user_attrs[STALE]) == (FAIL, "its worker wrote no heartbeat")


@pytest.mark.parametrize(("value", "state"), [(0.5, None), (None, PRUNED), (None, FAIL)])
def test_the_outcome_of_a_trial_that_failed_as_stale_is_dropped(
    sqlite_worker: Crew,
    value: float | None,
    state: TrialState | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    slow, quick = sqlite_worker(), sqlite_worker()
    trial = take(slow)
    fail_running(quick)
    optuna.logging.enable_propagation()
    stored = slow.finish(trial, value, state=state)
    optuna.logging.disable_propagation()
    assert not stored
    assert "Trial 0 ended after it had failed as stale; its result is dropped" in caplog.text
    failed = quick.study.trials[0]
    assert (failed.state, failed.value) == (FAIL, None)


def test_a_release_is_not_a_failure(worker: Crew) -> None:
    queue = worker(max_failures=0)
    trial = take(queue)
    queue.release(trial)
    again = take(queue)
    assert (place(again), again.params) == (place(trial), trial.params)
    released = queue.study.trials[trial.number]
    assert (released.state, released.user_attrs[RELEASED]) == (FAIL, True)
    assert queue.sampler.read(queue.study).current_slots()[0].failures == 0
    queue.finish(again, state=FAIL)
    assert place(take(queue)) == (0, 1, 0), "a failure closes the slot"


def test_a_trial_that_cannot_be_released_is_no_error(
    sqlite_worker: Crew, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queue = sqlite_worker()
    trial = take(queue)
    monkeypatch.setattr(queue_module, "fail_trial", lambda *args: 1 / 0)
    optuna.logging.enable_propagation()
    queue.release(trial)
    optuna.logging.disable_propagation()
    assert "Trial 0 could not be released: division by zero" in caplog.text


def test_duplicates_are_withdrawn(worker: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers that start at once both add; the lower numbers count."""
    first, second = worker(), worker()
    add = GenerationScheduler._add

    def add_at_once(queue: GenerationScheduler, due: Any) -> bool:
        monkeypatch.setattr(GenerationScheduler, "_add", add)
        second.study.add_trials([make() for make in due])
        return add(queue, due)

    monkeypatch.setattr(GenerationScheduler, "_add", add_at_once)
    trials = [take(first), take(second)]
    assert {place(trial) for trial in trials} == {(0, 0, 0), (0, 1, 0)}
    assert [trial.number for trial in trials] == [0, 1]
    withdrawn = [t for t in first.study.trials if WITHDRAWN in t.user_attrs]
    assert [t.state for t in withdrawn] == [FAIL]
    assert first.sampler.read(first.study).current_slots()[0].failures == 0


@pytest.mark.parametrize("n_calls", [1, 2])
def test_a_worker_killed_while_it_withdraws_leaves_nothing_running(
    sqlite_worker: Crew, monkeypatch: pytest.MonkeyPatch, n_calls: int
) -> None:
    """Killed after the mark, or after the claim that precedes the failure."""
    queue, other = sqlite_worker(popsize=2), sqlite_worker(popsize=2)
    duplicate = queue.plan([]).due[0]()
    trials = [take(queue), take(queue)]
    queue.study.add_trial(duplicate)
    duplicate = queue.study.trials[2]
    calls, call = itertools.count(1), storage_of(queue.study)._call

    def killed(name: str, *args: Any, **kwargs: Any) -> Any:
        if next(calls) > n_calls:
            raise KeyboardInterrupt
        return call(name, *args, **kwargs)

    with monkeypatch.context() as kill:
        kill.setattr(storage_of(queue.study), "_call", killed)
        with pytest.raises(KeyboardInterrupt):
            queue._withdraw(duplicate)
    assert other.study.trials[2].state == (WAITING, RUNNING)[n_calls - 1]
    for trial in trials:
        queue.finish(trial, 0.5)
    read_anew(queue)
    assert place(take(queue)) == (1, 0, 0)
    assert other.study.trials[2].state == FAIL


@pytest.mark.usefixtures("patient")
def test_the_worker_with_the_last_result_adds_the_next_generation(sqlite_worker: Crew) -> None:
    early, late = sqlite_worker(), sqlite_worker()
    trials = [take(early), take(late)]
    early.finish(trials[0], 0.1)
    late.finish(trials[1], 0.2)
    assert early.claim() is None
    assert place(take(late)) == (1, 0, 0)
    assert place(take(early)) == (1, 1, 0)


def test_another_worker_takes_over_after_a_while(
    sqlite_worker: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_module, "TAKEOVER", (0.3, 0.3))
    monkeypatch.setattr(queue_module, "READ_INTERVAL", 300.0)
    dead, alive = sqlite_worker(), sqlite_worker()
    assert alive._read()
    for _ in range(2):
        dead.finish(take(dead), 0.1)
    start = time.monotonic()
    # A machine that stalls for a minute fails no test; READ_INTERVAL is five.
    trial = alive.wait_for_trial(deadline=start + 120)
    assert trial is not None, "READ_INTERVAL was waited for"
    assert place(trial) == (1, 0, 0)
    assert time.monotonic() - start >= 0.3


@pytest.mark.usefixtures("patient")
def test_a_worker_that_starts_adds_at_once_if_nobody_is_active(sqlite_worker: Crew) -> None:
    ended = sqlite_worker(popsize=2)
    trials = [take(ended), take(ended)]
    ended.finish(trials[0], 0.1)
    ended.release(trials[1])
    assert place(take(sqlite_worker(popsize=2))) == (0, 1, 0)
    # Another that starts now leaves what is due to the one that is active.
    running = trial_id_of(ended.study.trials[-1])
    assert ended.study.trials[-1].state == RUNNING
    assert sqlite_worker(popsize=2).claim() is None
    storage_of(ended.study).set_trial_state_values(running, FAIL)
    assert place(take(sqlite_worker(popsize=2))) == (0, 1, 0)


class Calls:
    """Counts the calls of a storage."""

    def __init__(self, queue: GenerationScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        call = RetryingStorage._call

        def count(storage: RetryingStorage, name: str, *args: Any, **kwargs: Any) -> Any:
            if storage is storage_of(queue.study):
                self.names.append(name)
            return call(storage, name, *args, **kwargs)

        monkeypatch.setattr(RetryingStorage, "_call", count)


@pytest.fixture
def idle(sqlite_worker: Crew) -> tuple[GenerationScheduler, GenerationScheduler, list[Trial]]:
    """A worker without work, another one, and all trials, which that one holds."""
    busy, idle = sqlite_worker(), sqlite_worker()
    trials = [take(busy), take(busy)]
    assert idle.claim() is None
    idle._has_news()
    return idle, busy, trials


def test_an_idle_worker_polls_one_attribute(
    idle: tuple[GenerationScheduler, GenerationScheduler, list[Trial]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue, busy, trials = idle
    calls = Calls(queue, monkeypatch)
    assert [queue._has_news() for _ in range(5)] == [False] * 5
    assert calls.names == ["get_study_user_attrs"] * 5
    for trial in trials:
        busy.finish(trial, 0.5)
    assert not queue._has_news(), "a result alone gives nobody work"
    assert place(take(busy)) == (1, 0, 0)
    calls.names.clear()
    assert queue._has_news()
    assert place(take(queue)) == (1, 1, 0)
    assert "get_all_trials" not in calls.names, "what was announced is claimed at once"


def test_a_worker_gives_back_what_was_announced_beyond_its_limit(sqlite_worker: Crew) -> None:
    long, short = sqlite_worker(), sqlite_worker(n_generations=1)
    trials = [take(long), take(long)]
    assert short.claim() is None
    short._has_news()
    for trial in trials:
        long.finish(trial, 0.5)
    first = take(long)
    assert short._has_news()
    assert (short.claim(), short.over) == (None, True)
    assert [RELEASED in trial.user_attrs for trial in long.study.trials[2:]] == [False, True]
    read_anew(long)
    second = take(long)
    assert (place(first), place(second)) == ((1, 0, 0), (1, 1, 0))


def test_an_idle_worker_reads_all_trials_at_times(
    sqlite_worker: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_module, "READ_INTERVAL", 1.0)
    monkeypatch.setattr(queue_module, "POLL_SHARE", 1.0)
    busy, idle = sqlite_worker(), sqlite_worker()
    for _ in range(2):
        take(busy)
    calls = Calls(idle, monkeypatch)
    assert idle.wait_for_trial(longest_wait=0.02, deadline=time.monotonic() + 2.5) is None
    n_reads = calls.names.count("get_all_trials")
    # At the start, at the announcement of before, and each second; fewer where the machine stalls.
    assert 3 <= n_reads <= 4
    assert calls.names.count("get_study_user_attrs") > 3 * n_reads
    assert NEWS in idle.study.user_attrs


def test_a_worker_that_crashes_others_is_found_by_the_idle(
    sqlite_worker: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stale trials are looked for at every read, and the one who fails them adds them again."""
    monkeypatch.setattr(queue_module, "READ_INTERVAL", 0.2)
    busy, idle = sqlite_worker(), sqlite_worker()
    lost, kept = take(busy), take(busy)
    dead = {"host": "here", "pid": 2**22 + 1, "system": WorkerProcess.current().system}
    storage_of(busy.study).set_trial_user_attr(trial_id_of(lost), WORKER, dead)
    trial = idle.wait_for_trial(deadline=time.monotonic() + 30)
    assert trial is not None
    assert (place(trial), trial.params) == (place(lost), lost.params)
    assert busy.study.trials[kept.number].state == RUNNING


def test_a_wait_ends_by_stop_deadline_and_end(sqlite_worker: Crew) -> None:
    queue = sqlite_worker(n_generations=1)
    trials = [take(queue), take(queue)]
    start = time.monotonic()
    assert queue.wait_for_trial(deadline=start + 0.2) is None
    assert 0.2 <= time.monotonic() - start < 5
    stop = threading.Event()
    threading.Timer(0.2, stop.set).start()
    start = time.monotonic()
    assert queue.wait_for_trial(stop, longest_wait=60.0) is None
    assert 0.1 <= time.monotonic() - start < 5
    assert not queue.over
    for trial in trials:
        queue.finish(trial, 0.5)
    assert queue.wait_for_trial() is None
    assert queue.over
    assert queue.study.user_attrs[NEWS] == [[], True]


def test_an_idle_worker_says_that_it_waits(
    sqlite_worker: Crew, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(queue_module, "_FIRST_MESSAGE", 0.0)
    queue = sqlite_worker(popsize=2)
    for _ in range(2):
        take(queue)
    optuna.logging.enable_propagation()
    with caplog.at_level("INFO"):
        queue.wait_for_trial(deadline=time.monotonic() + 0.3)
    optuna.logging.disable_propagation()
    assert caplog.text.count("waiting for trials that other workers evaluate") == 1


def lose_answer(
    queue: GenerationScheduler, state: TrialState, monkeypatch: pytest.MonkeyPatch
) -> list[TrialState]:
    """Let the next call that sets a state succeed, and its answer be lost."""
    inner = storage_of(queue.study)._inner
    call, lost = inner.set_trial_state_values, []

    def set_state(trial_id: int, state_: TrialState, values: Any = None) -> bool:
        answer: bool = call(trial_id, state_, values)
        if state_ == state and not lost:
            lost.append(state)
            raise sqlalchemy.exc.OperationalError("COMMIT", None, Exception("gone"))
        return answer

    monkeypatch.setattr(inner, "set_trial_state_values", set_state)
    return lost


def test_a_lost_answer_to_a_claim_costs_no_candidate(
    worker: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows who has claimed the trial, so it fails as stale soon and is added again."""
    queue, other = worker(popsize=2), worker(popsize=2)
    lost = lose_answer(queue, RUNNING, monkeypatch)
    trial = take(queue)
    assert lost == [RUNNING]
    assert place(trial) == (0, 1, 0)
    orphan = other.study.trials[0]
    assert (orphan.state, orphan.user_attrs[WORKER]) == (RUNNING, None)
    queue.finish(trial, 0.5)
    fail_running(other)
    read_anew(other)
    again = take(other)
    assert (place(again), again.params) == ((0, 0, 0), orphan.params)


def test_a_lost_answer_to_a_result_is_harmless(
    worker: Crew, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queue = worker(popsize=3)
    outcomes = [(COMPLETE, 0.5), (PRUNED, None), (FAIL, None)]
    trials = [take(queue) for _ in outcomes]
    optuna.logging.enable_propagation()
    for trial, (state, value) in zip(trials, outcomes, strict=True):
        lost = lose_answer(queue, state, monkeypatch)
        assert queue.finish(trial, value, state=None if state == COMPLETE else state)
        assert lost == [state]
    optuna.logging.disable_propagation()
    assert "dropped" not in caplog.text
    assert [(t.state, t.value) for t in queue.study.trials[:3]] == outcomes


def test_a_result_outlasts_an_outage(sqlite_worker: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = sqlite_worker()
    trial = take(queue)
    inner = storage_of(queue.study)._inner
    call, left = inner.set_trial_state_values, [1, 2, 3]

    def set_state(*args: Any) -> bool:
        if left:
            left.pop()
            raise sqlalchemy.exc.OperationalError("BEGIN", None, Exception("gone"))
        return bool(call(*args))

    monkeypatch.setattr(inner, "set_trial_state_values", set_state)
    assert queue.finish(trial, 0.5)
    assert queue.study.trials[trial.number].value == 0.5


@pytest.mark.parametrize(
    ("value", "state"), [(None, None), (0.5, PRUNED), (None, COMPLETE), (None, WAITING)]
)
def test_outcomes_that_make_no_sense(
    sqlite_worker: Crew, value: float | None, state: TrialState | None
) -> None:
    queue = sqlite_worker()
    with pytest.raises(ValueError, match="must be"):
        queue.finish(take(queue), value, state=state)
    assert states(queue)[0] == RUNNING
