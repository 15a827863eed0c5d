"""Many workers, crashes, kills and outages give the candidates of a serial run."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest
from databases import GrpcProxy as Proxy
from databases import PostgreSQL
from optuna.trial import Trial
from schedulers import COMPLETE, FAIL, PRUNED, new_scheduler, place, sampler

from optuna_taylorglo.attributes import WITHDRAWN
from optuna_taylorglo.search.generations import GenerationLog, Slot
from optuna_taylorglo.search.sampler import THETA_NAMES, TaylorGLOSampler
from optuna_taylorglo.search.scheduler import GenerationScheduler
from optuna_taylorglo.seeds import training_seed
from optuna_taylorglo.study.heartbeat import heartbeats
from optuna_taylorglo.study.open import open_storage

fork = multiprocessing.get_context("fork")

POPSIZE, GENERATIONS = 8, 6


def many_workers_sampler() -> TaylorGLOSampler:
    return sampler(popsize=POPSIZE, attempts=3, max_failures=50)


def evaluate(scheduler: GenerationScheduler, trial: Trial) -> float | None:
    """A noisy objective whose noise, like a training's, comes from the training seed only.

    Returns:
        The value, or None for an abort.
    """
    theta = scheduler.sampler.suggest(trial)
    dice = random.Random(training_seed(0, *place(trial)))
    trial.report(dice.random(), 1)
    if dice.random() < 0.15:
        return None
    return -sum((x - 1) ** 2 for x in theta) + dice.gauss(0, 0.1)


def conclude(scheduler: GenerationScheduler, trial: Trial, value: float | None) -> None:
    if value is None:
        scheduler.finish(trial, state=PRUNED)
    else:
        scheduler.finish(trial, value)


def work(url: str, log: Path, n_generations: int, chaos: bool) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        study_name="a",
        storage=open_storage(url),
        sampler=many_workers_sampler(),
        direction="maximize",
        load_if_exists=True,
    )
    scheduler = GenerationScheduler(
        study, n_generations=n_generations, heartbeat_interval=1, grace_period=3
    )
    (log.parent / f"started-{os.getpid()}").touch()
    dice = random.Random()
    while (trial := scheduler.wait_for_trial()) is not None:
        with heartbeats(trial, scheduler.heartbeat_interval):
            # One evaluation fails at least.
            fate = 1.0 if not chaos else 0.05 if trial.number == 1 else dice.random()
            value = evaluate(scheduler, trial)
            time.sleep(0.005)
            if fate < 0.04:
                os.kill(os.getpid(), signal.SIGKILL)
        if fate < 0.1:
            scheduler.finish(trial, state=FAIL)
            continue
        with log.open("a") as file:
            file.write(json.dumps([trial.number, value]) + "\n")
        conclude(scheduler, trial, value)


class Crew:
    """Worker processes that are started again when they die."""

    def __init__(self, n_workers: int, *args: Any) -> None:
        self._args = args
        self.deaths = 0
        self.processes = [self._start() for _ in range(n_workers)]

    def _start(self) -> Any:
        process = fork.Process(target=work, args=self._args)
        process.start()
        return process

    def kill_all(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()

    def replace_the_dead(self) -> bool:
        """Start dead workers again; False when all have come to their end."""
        for i, process in enumerate(self.processes):
            if process.exitcode not in (None, 0):
                self.deaths += 1
                self.processes[i] = self._start()
        return any(process.exitcode != 0 for process in self.processes)

    def see_it_through(self) -> None:
        while self.replace_the_dead():
            time.sleep(0.05)


def serial_run(n_generations: int) -> GenerationLog:
    study = optuna.create_study(sampler=many_workers_sampler(), direction="maximize")
    scheduler = GenerationScheduler(study, n_generations=n_generations)
    while (trial := scheduler.claim()) is not None:
        conclude(scheduler, trial, evaluate(scheduler, trial))
    return scheduler.sampler.read(study)


def thetas(slots: Sequence[Slot]) -> list[set[tuple[float, ...]]]:
    """Every slot's candidates as evaluated; one and only one is right."""
    return [
        {
            tuple(t.params[name] for name in THETA_NAMES)
            for t in slot.trials
            if WITHDRAWN not in t.user_attrs
        }
        for slot in slots
    ]


def assert_like_serial(url: str, n_generations: int) -> optuna.Study:
    study = optuna.load_study(
        study_name="a", storage=open_storage(url), sampler=many_workers_sampler()
    )
    serial = serial_run(n_generations)
    log = many_workers_sampler().read(study)
    assert len(log.finished) == len(serial.finished) == n_generations
    for ours, theirs in zip(log.finished, serial.finished, strict=True):
        assert thetas(ours) == thetas(theirs)
        assert [s.result and s.result.value for s in ours] == [
            s.result and s.result.value for s in theirs
        ]
        assert [s.next_attempt for s in ours] == [s.next_attempt for s in theirs]
    used = {slot.result.number for slots in log.finished for slot in slots if slot.result}
    assert used == {trial.number for trial in study.trials if trial.state == COMPLETE}
    return study


def test_crashes_and_kills_change_nothing(database_url: str, tmp_path: Path) -> None:
    crew = Crew(8, database_url, tmp_path / "log", GENERATIONS, True)
    watcher = None
    while crew.replace_the_dead():
        time.sleep(0.05)
        if watcher is None and (tmp_path / "log").exists():
            watcher = new_scheduler(open_storage(database_url), popsize=POPSIZE)
        if watcher is not None and watcher.sampler.read(watcher.study).generation >= 3:
            break
    crew.kill_all()
    survivors = Crew(8, database_url, tmp_path / "log", GENERATIONS, True)
    survivors.see_it_through()
    study = assert_like_serial(database_url, GENERATIONS)
    assert any(trial.state == FAIL for trial in study.trials)
    assert any(trial.state == PRUNED for trial in study.trials)


def test_mariadb_runs_a_search(mariadb_url: str, tmp_path: Path) -> None:
    Crew(4, mariadb_url, tmp_path / "log", 3, False).see_it_through()
    study = assert_like_serial(mariadb_url, 3)
    assert all(WITHDRAWN in t.user_attrs for t in study.trials if t.state == FAIL)


def test_journal_file_runs_a_search(journal_path: str, tmp_path: Path) -> None:
    Crew(4, journal_path, tmp_path / "log", 3, False).see_it_through()
    assert_like_serial(journal_path, 3)


def test_grpc_proxy_runs_a_search_and_is_killed_twice(sqlite_url: str, tmp_path: Path) -> None:
    proxy, log = Proxy(sqlite_url), tmp_path / "log"
    crew = Crew(4, proxy.url, log, 3, False)
    for n_results in (4, 12):
        while not log.exists() or len(log.read_text().splitlines()) < n_results:
            crew.replace_the_dead()
            time.sleep(0.02)
        proxy.kill()
        time.sleep(0.5)
        proxy.start()
    crew.see_it_through()
    proxy.kill()
    # This process never speaks to the proxy: its library does not like to be forked.
    assert_like_serial(sqlite_url, 3)


def test_database_server_goes_and_comes_back(own_postgresql: PostgreSQL, tmp_path: Path) -> None:
    url, log = own_postgresql.new_database(), tmp_path / "log"
    crew = Crew(8, url, log, GENERATIONS, False)
    while len(list(tmp_path.glob("started-*"))) < 8:
        time.sleep(0.02)
    for n_results in (8, 20):
        while not log.exists() or len(log.read_text().splitlines()) < n_results:
            time.sleep(0.02)
        own_postgresql.stop()
        time.sleep(1.5)
        own_postgresql.start()
    crew.see_it_through()
    assert crew.deaths == 0
    study = assert_like_serial(url, GENERATIONS)
    # Whatever a worker had finished when the server went is there.
    finished = [json.loads(line) for line in log.read_text().splitlines()]
    stored = {trial.value for trial in study.trials if trial.state == COMPLETE}
    assert {value for _, value in finished if value is not None} == stored


def test_eight_workers_on_an_empty_study_draw_the_first_generation(
    database_url: str, tmp_path: Path
) -> None:
    """From the very first trial, candidates are the pure function that tests/test_sampler.py
    shows to have mean 0 and deviation 1.2."""
    Crew(8, database_url, tmp_path / "log", 1, False).see_it_through()
    study = optuna.load_study(study_name="a", storage=open_storage(database_url))
    policy = many_workers_sampler().policy
    first = [t for t in study.trials if WITHDRAWN not in t.user_attrs]
    expected = [many_workers_sampler().candidate(Slot(0, k, policy)) for k in range(POPSIZE)]
    assert [[t.params[name] for name in THETA_NAMES] for t in first] == expected
    # Others may have added a duplicate or two before they saw the first worker's trials.
    assert len(study.trials) <= POPSIZE + 2 * 8


def _take_enqueued(url: str, log: Path) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    scheduler = new_scheduler(open_storage(url), n_generations=5, popsize=8)
    while (trial := scheduler.wait_for_trial()) is not None:
        with log.open("a") as file:
            file.write(f"{trial.number}\n")
        scheduler.finish(trial, scheduler.sampler.suggest(trial)[0])


def test_waiting_trials_are_taken_once(sqlite_url: str, tmp_path: Path) -> None:
    """Plain Optuna hands the same waiting trial to two processes on SQLite now and then."""
    scheduler = new_scheduler(open_storage(sqlite_url), popsize=8)
    for number in range(40):
        scheduler.study.enqueue_trial(dict.fromkeys(THETA_NAMES, float(number)))
    processes = [
        fork.Process(target=_take_enqueued, args=(sqlite_url, tmp_path / "log")) for _ in range(8)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    taken = sorted(int(line) for line in (tmp_path / "log").read_text().split())
    assert taken == list(range(40))
    assert [trial.value for trial in scheduler.study.trials] == [float(n) for n in range(40)]


def _draw(url: str) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    scheduler = new_scheduler(open_storage(url), n_generations=1, popsize=2000)
    while (trial := scheduler.wait_for_trial()) is not None:
        scheduler.finish(trial, 0.0)


@pytest.mark.slow
def test_first_generation_of_two_thousand_by_eight_workers(postgresql_url: str) -> None:
    processes = [fork.Process(target=_draw, args=(postgresql_url,)) for _ in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    scheduler = new_scheduler(open_storage(postgresql_url), popsize=2000)
    complete = [t for t in scheduler.study.trials if t.state == COMPLETE]
    drawn = [[t.params[name] for name in THETA_NAMES] for t in complete]
    assert len(drawn) == 2000
    for coordinate in zip(*drawn, strict=True):
        mean = sum(coordinate) / 2000
        deviation = math.sqrt(sum((x - mean) ** 2 for x in coordinate) / 2000)
        assert abs(mean) < 0.1
        assert abs(deviation - 1.2) < 0.05


@pytest.mark.slow
def test_twelve_workers_and_a_long_stormy_search(database_url: str, tmp_path: Path) -> None:
    Crew(12, database_url, tmp_path / "log", 20, True).see_it_through()
    assert_like_serial(database_url, 20)
