"""The queue's contract, the same on every storage: no trial runs twice, no result is lost."""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from optuna.storages import BaseStorage, InMemoryStorage
from optuna.storages._grpc.server import make_server
from optuna.trial import Trial, TrialState
from schedulers import COMPLETE, FAIL, PRUNED, fail_running, place, read_anew, sampler, take

from optuna_taylorglo.attributes import NEWS, RELEASED, STALE, WITHDRAWN
from optuna_taylorglo.evolution.scheduler import GenerationScheduler
from optuna_taylorglo.study import queue as queue_module
from optuna_taylorglo.study.heartbeat import WorkerProcess
from optuna_taylorglo.study.open import open_storage
from optuna_taylorglo.study.optuna_private import storage_of, trial_id_of
from optuna_taylorglo.study.storages import RetryingStorage

WAITING, RUNNING = TrialState.WAITING, TrialState.RUNNING
KINDS = ["memory", "sqlite", "postgresql", "mariadb", "journal", "grpc"]

Crew = Callable[..., GenerationScheduler]


@pytest.fixture(scope="module", params=KINDS)
def storages(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[BaseStorage]]:
    """One storage, opened by three workers: Optuna's cache of a database is for one thread."""
    kind, directory = request.param, tmp_path_factory.mktemp("storages")
    if kind == "memory":
        yield [RetryingStorage(InMemoryStorage())] * 3  # type: ignore[abstract]
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


on_sqlite = pytest.mark.parametrize("storages", ["sqlite"], indirect=True)
"""Where the storage makes no difference."""


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    optuna.logging.enable_propagation()
    with caplog.at_level("INFO"):
        yield caplog
    optuna.logging.disable_propagation()


def states(queue: GenerationScheduler) -> list[TrialState]:
    return [trial.state for trial in queue.study.trials]


def test_a_trial_is_claimed_once_and_passed_over_afterwards(worker: Crew) -> None:
    first, second = worker(popsize=3), worker(popsize=3)
    ended = take(first)
    assert second._read()
    claimed = take(first)
    assert first.finish(claimed, 0.5)
    last = take(second)
    assert {place(trial) for trial in (ended, claimed, last)} == {(0, i, 0) for i in range(3)}
    assert (first.claim(), second.claim(), first.over) == (None, None, False)
    for trial in first.study.trials:
        assert WorkerProcess.of(trial) is not None, "the first heartbeat comes with the claim"


@pytest.mark.parametrize("storages", ["sqlite", "postgresql"], indirect=True)
def test_races_for_a_trial_have_one_winner(storages: list[BaseStorage]) -> None:
    """Each claim reads before it writes; in between, others must not claim."""
    studies = [
        optuna.create_study(study_name="races", storage=storage, load_if_exists=True)
        for storage in storages
    ]
    for _ in range(25):
        studies[0].enqueue_trial({})
    trial_ids = [trial_id_of(trial) for trial in studies[0].trials]
    barrier, winners = threading.Barrier(len(studies)), list[int]()

    def race(study: optuna.Study) -> None:
        for trial_id in trial_ids:
            barrier.wait(60)
            if storage_of(study).set_trial_state_values(trial_id, RUNNING):
                winners.append(trial_id)

    in_threads(race, studies)
    assert winners == trial_ids


def in_threads(target: Callable[[Any], None], arguments: list[Any]) -> None:
    with ThreadPoolExecutor(len(arguments)) as pool:
        list(pool.map(target, arguments))


@on_sqlite
def test_a_search_of_many_workers_has_every_result_once(worker: Crew) -> None:
    queues = [worker(n_generations=2, popsize=8) for _ in range(3)]

    def work(queue: GenerationScheduler) -> None:
        while (trial := queue.wait_for_trial()) is not None:
            assert queue.finish(trial, float(place(trial)[1]))

    in_threads(work, queues)
    done = [trial for trial in queues[0].study.trials if trial.state == COMPLETE]
    places = [place(trial) for trial in done]  # type: ignore[arg-type]
    assert sorted(places) == [(g, i, 0) for g in range(2) for i in range(8)]
    assert [trial.value for trial in done] == [index for _, index, _ in places]


def test_outcomes_are_stored_and_cannot_be_overwritten(worker: Crew) -> None:
    queue, other = worker(popsize=4), worker(popsize=4)
    complete, reported, diverged, silent = trials = [take(queue) for _ in range(4)]
    for step, value in enumerate((0.9, 0.3)):
        reported.report(value, step)
    diverged.report(0.7, 1)
    silent.report(float("nan"), 1)
    assert queue.finish(complete, 0.5)
    assert queue.finish(reported, state=PRUNED)
    assert queue.finish(diverged, float("nan"))
    assert queue.finish(silent)
    for trial in trials:
        same = Trial(other.study, trial_id_of(trial))
        assert not other.finish(same, state=FAIL)
        other.release(same)
    fail_running(other)
    stored = other.study.trials[:4]
    assert [t.state for t in stored] == [COMPLETE, PRUNED, PRUNED, PRUNED]
    assert [t.value for t in stored] == [0.5, 0.3, 0.7, None], "a pruned one has its last report"
    assert not {RELEASED, STALE} & stored[0].user_attrs.keys()


def test_a_stale_trial_is_added_again_as_it_was_and_its_late_result_dropped(
    worker: Crew, logged: pytest.LogCaptureFixture
) -> None:
    """Also the second attempt of a candidate, which has a seed of its own."""
    lost, alive = worker(), worker()
    lost.finish(take(lost), state=PRUNED)
    trial = take(lost)
    assert place(trial) == (0, 0, 1)
    fail_running(alive)
    assert not lost.finish(trial, 0.5)
    assert "ended after it had failed as stale; its result is dropped" in logged.text
    read_anew(alive)
    again = take(alive)
    assert (place(again), again.params) == (place(trial), trial.params)
    failed = alive.study.trials[trial.number]
    assert (failed.state, failed.value) == (FAIL, None)
    assert failed.user_attrs[STALE] == "its worker wrote no heartbeat"


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


def test_duplicates_are_withdrawn(worker: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers that start at once both add; the lower numbers count."""
    first, second = worker(), worker()
    add = GenerationScheduler._add

    def add_at_once(queue: GenerationScheduler, due: Any) -> list[int]:
        monkeypatch.setattr(GenerationScheduler, "_add", add)
        second.study.add_trials([make() for make in due])
        return add(queue, due)

    monkeypatch.setattr(GenerationScheduler, "_add", add_at_once)
    trials = [take(first), take(second)]
    assert {place(trial) for trial in trials} == {(0, 0, 0), (0, 1, 0)}
    assert [trial.number for trial in trials] == [0, 1]
    assert [t.state for t in first.study.trials if WITHDRAWN in t.user_attrs] == [FAIL]
    assert first.sampler.read(first.study).current_slots()[0].failures == 0


@on_sqlite
def test_who_adds(worker: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker with the last result, or one that starts while no other is active."""
    monkeypatch.setattr(queue_module, "TAKEOVER", (1e6, 1e6))
    early, late = worker(), worker()
    trials = [take(early), take(late)]
    early.finish(trials[0], 0.1)
    late.finish(trials[1], 0.2)
    assert early.claim() is None
    trials = [take(late), take(early)]
    assert [place(trial) for trial in trials] == [(1, 0, 0), (1, 1, 0)]
    early.release(trials[1])
    assert worker().claim() is None, "one that starts leaves it to the active"
    late.release(trials[0])
    assert place(take(worker())) == (1, 0, 0)


@on_sqlite
def test_another_worker_takes_over_after_a_while(
    worker: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_module, "TAKEOVER", (0.3, 0.3))
    monkeypatch.setattr(queue_module, "READ_INTERVAL", 0.2)
    dead, alive = worker(), worker()
    assert alive._read()
    for _ in range(2):
        dead.finish(take(dead), 0.1)
    assert alive.claim() is None
    trial = alive.wait_for_trial(deadline=time.monotonic() + 120)
    assert trial is not None
    assert place(trial) == (1, 0, 0)


@on_sqlite
def test_an_idle_worker_polls_one_attribute(worker: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    busy, idle = worker(), worker()
    trials = [take(busy), take(busy)]
    assert idle.claim() is None
    idle._has_news()
    names: list[str] = []
    call = RetryingStorage._call

    def count(storage: RetryingStorage, name: str, *args: Any, **kwargs: Any) -> Any:
        if storage is storage_of(idle.study):
            names.append(name)
        return call(storage, name, *args, **kwargs)

    monkeypatch.setattr(RetryingStorage, "_call", count)
    assert [idle._has_news() for _ in range(5)] == [False] * 5
    assert names == ["get_study_user_attrs"] * 5
    for trial in trials:
        busy.finish(trial, 0.5)
    assert not idle._has_news(), "a result alone is no work for others"
    assert place(take(busy)) == (1, 0, 0)
    names.clear()
    assert idle._has_news()
    assert place(take(idle)) == (1, 1, 0)
    assert "get_all_trials" not in names, "what was announced is claimed at once"


@on_sqlite
def test_a_poll_that_outlasts_an_outage_makes_no_long_wait(
    worker: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, waits = 1000.0, list[float]()

    def slow_poll(queue: GenerationScheduler) -> bool:
        nonlocal now
        now += 20.0 if len(waits) == 1 else 0.0
        return False

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0.0)
            return len(waits) == 3 and bool(self.set() or True)

    busy, idle = worker(), worker()
    take(busy), take(busy)
    monkeypatch.setattr(queue_module, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(GenerationScheduler, "_has_news", slow_poll)
    assert idle.wait_for_trial(Stop()) is None
    assert waits[0] < 1 < waits[1] <= queue_module.LONGEST_WAIT


@on_sqlite
def test_a_wait_ends_by_stop_deadline_and_end(worker: Crew) -> None:
    queue = worker(n_generations=1)
    trials = [take(queue), take(queue)]
    start = time.monotonic()
    assert queue.wait_for_trial(deadline=start + 0.3) is None
    assert 0.3 <= time.monotonic() - start < 60
    stop = threading.Event()
    threading.Timer(0.2, stop.set).start()
    assert queue.wait_for_trial(stop) is None
    assert not queue.over
    for trial in trials:
        queue.finish(trial, 0.5)
    assert queue.wait_for_trial() is None
    assert queue.over
    assert queue.study.user_attrs[NEWS] == [[], True]
