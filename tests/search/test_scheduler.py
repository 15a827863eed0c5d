from __future__ import annotations

import json
import math
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest
import sqlalchemy
from databases import PostgreSQL
from optuna.trial import Trial, TrialState
from optuna_taylorglo.storage.database import PatientRDBStorage

from optuna_taylorglo.attributes import ATTEMPT, GENERATION, INDEX, RETRY_OF
from optuna_taylorglo.search.generations import GenerationLog, Slot
from optuna_taylorglo.search.sampler import THETA_NAMES, TaylorGLOSampler
from optuna_taylorglo.search.scheduler import GenerationScheduler, Heartbeat, report
from optuna_taylorglo.seeds import training_seed
from optuna_taylorglo.storage.open_storage import open_storage

fork = multiprocessing.get_context("fork")

COMPLETE, PRUNED, FAIL = TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL


def sampler(popsize: int = 2, attempts: int = 3, max_failures: int = 3) -> TaylorGLOSampler:
    return TaylorGLOSampler(popsize=popsize, attempts=attempts, max_failures=max_failures)


def new_gate(
    storage: Any = None, n_generations: int | None = None, **rules: int
) -> GenerationScheduler:
    study = optuna.create_study(
        study_name="a",
        storage=storage,
        sampler=sampler(**rules),
        direction="maximize",
        load_if_exists=True,
    )
    return GenerationScheduler(study, n_generations=n_generations)


def take(gate: GenerationScheduler) -> Trial:
    trial = gate.claim()
    assert trial is not None
    return trial


def place(trial: Trial) -> tuple[int, int, int]:
    attrs = trial.user_attrs
    return attrs[GENERATION], attrs[INDEX], attrs[ATTEMPT]


# The gate


def test_generation_starts_when_the_one_before_is_finished() -> None:
    gate = new_gate(n_generations=2)
    first, second = take(gate), take(gate)
    assert gate.claim() is None
    gate.finish(first, 1.0)
    assert gate.claim() is None
    assert not gate.over
    gate.finish(second, 2.0)
    third = take(gate)
    assert [place(trial) for trial in (first, second, third)] == [(0, 0, 0), (0, 1, 0), (1, 0, 0)]
    gate.finish(third, 1.0)
    gate.finish(take(gate), 1.0)
    assert gate.claim() is None
    assert gate.over
    assert len(gate.study.trials) == 4


def test_aborted_candidate_gets_new_attempts_and_then_the_last_rank() -> None:
    gate = new_gate(popsize=4, attempts=3)
    good = [take(gate) for _ in range(3)]
    bad = take(gate)
    theta = bad.params
    for trial in good:
        gate.finish(trial, -100.0)
    for attempt in range(3):
        assert place(bad) == (0, 3, attempt)
        assert bad.params == theta
        report(bad, 0.1, 1)
        gate.finish(bad, state=PRUNED)
        previous, bad = bad, take(gate)
        if attempt < 2:
            assert bad.user_attrs[RETRY_OF] == previous.number
    assert place(bad) == (1, 0, 0)
    ledger = gate.sampler.read(gate.study)
    assert [len(slot.trials) for slot in ledger.finished[0]] == [1, 1, 1, 3]


def test_slot_takes_its_complete_attempt() -> None:
    gate = new_gate(popsize=2)
    diverged, other = take(gate), take(gate)
    gate.finish(diverged, math.nan)
    gate.finish(other, 0.5)
    gate.finish(take(gate), 0.9)
    (slots,) = gate.sampler.read(gate.study).finished
    assert [slot.result.value for slot in slots if slot.result] == [0.9, 0.5]
    assert [t.state for t in gate.study.trials] == [PRUNED, COMPLETE, COMPLETE]


def test_lost_evaluation_is_made_again_with_the_same_seed_a_limited_number_of_times() -> None:
    gate = new_gate(popsize=2, max_failures=2)
    for _ in range(3):
        trial = take(gate)
        assert place(trial) == (0, 0, 0)
        gate.finish(trial, state=FAIL)
    assert place(take(gate)) == (0, 1, 0)


def test_handing_back_is_not_a_loss() -> None:
    gate = new_gate(popsize=2, max_failures=0)
    for _ in range(5):
        trial = take(gate)
        assert place(trial) == (0, 0, 0)
        gate.release(trial)
    gate.finish(take(gate), 1.0)
    assert place(take(gate)) == (0, 1, 0)


def test_enqueued_candidates_take_their_slots_and_keep_their_parameters() -> None:
    gate = new_gate(popsize=2, max_failures=9)
    for value in (1.0, 2.0, 5000.0):
        gate.study.enqueue_trial(dict.fromkeys(THETA_NAMES, value) | {"lr": 0.1})
    first, second = take(gate), take(gate)
    assert gate.claim() is None, "the third belongs to the next generation"
    assert gate.sampler.suggest(first) == [1.0] * 8
    assert gate.sampler.suggest(second) == [2.0] * 8
    assert first.suggest_float("lr", 0, 1) == 0.1
    gate.finish(first, state=FAIL)
    again = take(gate)
    assert place(again) == place(first)
    assert gate.sampler.suggest(again) == [1.0] * 8
    assert again.suggest_float("lr", 0, 1) == 0.1
    for trial in (second, again):
        gate.finish(trial, 1.0)
    for _ in range(2):
        trial = take(gate)
        with pytest.warns(UserWarning, match="out of range"):
            assert gate.sampler.suggest(trial) == [5000.0] * 8
        gate.finish(trial, state=FAIL)


def test_foreign_parameters_of_a_lost_trial_are_kept() -> None:
    gate = new_gate()
    trial = take(gate)
    rate = trial.suggest_float("lr", 0, 1)
    gate.finish(trial, state=FAIL)
    assert take(gate).suggest_float("lr", 0, 1) == rate


@pytest.mark.parametrize(
    ("value", "state"), [(None, None), (1.0, PRUNED), (None, COMPLETE), (None, TrialState.WAITING)]
)
def test_bad_outcomes_are_refused(value: float | None, state: TrialState | None) -> None:
    gate = new_gate()
    with pytest.raises(ValueError, match=r"(value|state) must be"):
        gate.finish(take(gate), value, state=state)


def test_gate_needs_our_sampler() -> None:
    with pytest.raises(ValueError, match="must have a TaylorGLOSampler, got TPESampler"):
        GenerationScheduler(optuna.create_study())
    with pytest.raises(ValueError, match="n_generations must be at least 0, got -1"):
        new_gate(n_generations=-1)


def test_waiting_ends_when_told_or_when_there_is_work() -> None:
    gate = new_gate()
    first, second = take(gate), take(gate)
    stop = threading.Event()
    threading.Timer(0.1, stop.set).start()
    assert gate.wait_for_trial(stop) is None
    threading.Timer(0.1, lambda: [gate.finish(first, 1.0), gate.finish(second, 1.0)]).start()
    trial = gate.wait_for_trial()
    assert trial is not None
    assert place(trial) == (1, 0, 0)


# Interference


def test_somebody_elses_trial_at_the_worst_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial is enqueued between our look at the study and our own new trial."""
    gate = new_gate(popsize=2)
    create = gate._storage.create_new_trial
    theirs = [dict.fromkeys(THETA_NAMES, 7.0)]

    def create_after_them(*args: Any, **kwargs: Any) -> Any:
        if theirs:
            gate.study.enqueue_trial(theirs.pop())
        return create(*args, **kwargs)

    first = take(gate)
    monkeypatch.setattr(gate._storage, "create_new_trial", create_after_them)
    second = take(gate)
    assert gate.sampler.suggest(second) == [7.0] * 8
    assert gate.claim() is None
    gate.finish(first, 1.0)
    gate.finish(second, 2.0)
    # Ours had landed in the next generation; it is made again when that generation comes.
    third, fourth = take(gate), take(gate)
    assert [place(third), place(fourth)] == [(1, 0, 0), (1, 1, 0)]
    assert gate.sampler.suggest(third) == gate.sampler.candidate(Slot(2, gate.sampler.rules))


def test_lost_answer_leaves_nothing_behind(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database creates a trial, and the connection breaks before it can say so."""
    storage = open_storage(sqlite_url, heartbeat=1, grace=2)
    gate = new_gate(storage, popsize=2)
    create = PatientRDBStorage._create_running_trial
    lost = []

    def lose_first_answer(*args: Any) -> Any:
        created = create(*args)
        if not lost:
            lost.append(created.number)
            raise sqlalchemy.exc.OperationalError("COMMIT", None, Exception("connection lost"))
        return created

    monkeypatch.setattr(PatientRDBStorage, "_create_running_trial", lose_first_answer)
    second = take(gate)
    assert lost == [0]
    assert place(second) == (0, 1, 0)
    assert gate.claim() is None
    age_heartbeats(storage)
    gate._stale_check_due = 0.0
    assert place(take(gate)) == (0, 0, 0)


# Signs of life


def age_heartbeats(storage: Any) -> None:
    with storage.engine.begin() as connection:
        connection.execute(
            sqlalchemy.text("UPDATE trial_heartbeats SET heartbeat = '2001-01-01 00:00:00'")
        )


Silenced = tuple[str, Callable[[GenerationScheduler], None]]


@pytest.fixture(params=["sqlite", "journal"])
def silenced(request: pytest.FixtureRequest, tmp_path: Path) -> Silenced:
    """A storage, and how to make all its running trials look dead to a gate."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/a.db"

        def silence(gate: GenerationScheduler) -> None:
            age_heartbeats(gate._storage._backend)
            gate._stale_check_due = 0.0

    else:
        url = str(tmp_path / "a.log")

        def silence(gate: GenerationScheduler) -> None:
            gate._stale_check_due = 0.0
            gate.claim()
            gate._storage.grace_period = -1
            gate._stale_check_due = 0.0

    return url, silence


def test_worker_killed_before_its_first_beat_blocks_nothing(
    silenced: tuple[str, Callable[[GenerationScheduler], None]],
) -> None:
    url, silence = silenced
    dead, alive = new_gate(open_storage(url)), new_gate(open_storage(url))
    lost = [take(dead), take(dead)]
    assert alive.claim() is None
    silence(alive)
    again = [take(alive), take(alive)]
    assert [place(trial) for trial in again] == [place(trial) for trial in lost]
    assert [trial.params for trial in again] == [trial.params for trial in lost]


def test_result_of_a_worker_given_up_too_early(
    silenced: tuple[str, Callable[[GenerationScheduler], None]], caplog: pytest.LogCaptureFixture
) -> None:
    url, silence = silenced
    slow, quick = new_gate(open_storage(url)), new_gate(open_storage(url))
    first, second = take(slow), take(slow)
    silence(quick)
    again = take(quick)
    assert place(again) == place(first)
    optuna.logging.enable_propagation()
    report(first, 0.5, 1)
    # Somebody else is at the first slot by now; the second is still free.
    slow.finish(first, 1.0)
    slow.finish(second, 2.0)
    optuna.logging.disable_propagation()
    assert "Trial 0 was given up as lost before it ended as COMPLETE" in caplog.text
    quick.finish(again, 3.0)
    assert place(take(quick)) == (1, 0, 0)
    (slots,) = quick.sampler.read(quick.study).finished
    assert [slot.result.value for slot in slots if slot.result] == [3.0, 2.0]
    assert [t.value for t in quick.study.trials if t.state == COMPLETE] == [3.0, 2.0]


@pytest.mark.parametrize("kind", ["sqlite", "journal"])
def test_heartbeat_keeps_a_trial_alive(kind: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db" if kind == "sqlite" else str(tmp_path / "a.log")
    gates = [new_gate(open_storage(url, heartbeat=1, grace=2), popsize=2) for _ in range(2)]
    silent, beating = take(gates[0]), take(gates[0])
    deadline = time.monotonic() + 30
    with Heartbeat(beating):
        while (again := gates[1].claim()) is None:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert place(again) == place(silent)
        assert gates[1].claim() is None
    assert gates[1].study.trials[beating.number].state == TrialState.RUNNING


def test_heartbeat_survives_an_outage(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = new_gate(open_storage(sqlite_url, heartbeat=1, grace=2))
    trial = take(gate)
    beats: list[float] = []

    def beat(trial_id: int) -> None:
        beats.append(time.monotonic())
        if len(beats) == 1:
            raise sqlalchemy.exc.OperationalError("UPDATE", None, Exception("gone"))

    monkeypatch.setattr(gate._storage, "record_heartbeat", beat)
    with Heartbeat(trial):
        deadline = time.monotonic() + 30
        while len(beats) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    time.sleep(0.1)
    ended = len(beats)
    time.sleep(1.2)
    assert len(beats) == ended


# Many workers

POPSIZE, GENERATIONS = 8, 6


def many_workers_sampler() -> TaylorGLOSampler:
    return sampler(popsize=POPSIZE, attempts=3, max_failures=50)


def evaluate(gate: GenerationScheduler, trial: Trial) -> float | None:
    """A noisy objective whose noise, like a training's, comes from the training seed only.

    Returns:
        The value, or None for an abort.
    """
    theta = gate.sampler.suggest(trial)
    dice = random.Random(training_seed(0, *place(trial)))
    report(trial, dice.random(), 1)
    if dice.random() < 0.15:
        return None
    return -sum((x - 1) ** 2 for x in theta) + dice.gauss(0, 0.1)


def conclude(gate: GenerationScheduler, trial: Trial, value: float | None) -> None:
    if value is None:
        gate.finish(trial, state=PRUNED)
    else:
        gate.finish(trial, value)


def work(url: str, log: Path, n_generations: int, chaos: bool) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        study_name="a",
        storage=open_storage(url, heartbeat=1, grace=3),
        sampler=many_workers_sampler(),
        direction="maximize",
        load_if_exists=True,
    )
    gate = GenerationScheduler(study, n_generations=n_generations)
    (log.parent / f"started-{os.getpid()}").touch()
    dice = random.Random()
    while (trial := gate.wait_for_trial(longest_wait=0.5)) is not None:
        with Heartbeat(trial):
            fate = dice.random() if chaos else 1.0
            value = evaluate(gate, trial)
            time.sleep(0.005)
            if fate < 0.04:
                os.kill(os.getpid(), signal.SIGKILL)
        if fate < 0.1:
            gate.finish(trial, state=FAIL)
            continue
        with log.open("a") as file:
            file.write(json.dumps([trial.number, value]) + "\n")
        conclude(gate, trial, value)


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
    gate = GenerationScheduler(study, n_generations=n_generations)
    while (trial := gate.claim()) is not None:
        conclude(gate, trial, evaluate(gate, trial))
    return gate.sampler.read(study)


def thetas(slots: Sequence[Slot]) -> list[set[tuple[float, ...]]]:
    """Every slot's candidates as evaluated; one and only one is right."""
    return [{tuple(t.params[name] for name in THETA_NAMES) for t in slot.trials} for slot in slots]


def assert_like_serial(url: str, n_generations: int) -> optuna.Study:
    study = optuna.load_study(
        study_name="a", storage=open_storage(url), sampler=many_workers_sampler()
    )
    serial = serial_run(n_generations)
    ledger = many_workers_sampler().read(study)
    assert len(ledger.finished) == len(serial.finished) == n_generations
    for ours, theirs in zip(ledger.finished, serial.finished, strict=True):
        assert thetas(ours) == thetas(theirs)
        assert [s.result and s.result.value for s in ours] == [
            s.result and s.result.value for s in theirs
        ]
        assert [s.next_attempt for s in ours] == [s.next_attempt for s in theirs]
    used = {slot.result.number for slots in ledger.finished for slot in slots if slot.result}
    assert used == {trial.number for trial in study.trials if trial.state == COMPLETE}
    return study


def test_crashes_and_kills_change_nothing(database_url: str, tmp_path: Path) -> None:
    crew = Crew(8, database_url, tmp_path / "log", GENERATIONS, True)
    watcher = None
    while crew.replace_the_dead():
        time.sleep(0.05)
        if watcher is None and (tmp_path / "log").exists():
            watcher = new_gate(open_storage(database_url), popsize=POPSIZE)
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
    assert not any(trial.state == FAIL for trial in study.trials)


def test_journal_file_runs_a_search(journal_path: str, tmp_path: Path) -> None:
    Crew(4, journal_path, tmp_path / "log", 3, False).see_it_through()
    assert_like_serial(journal_path, 3)


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
    rules = many_workers_sampler().rules
    first = [t for t in study.trials if RETRY_OF not in t.user_attrs]
    expected = [many_workers_sampler().candidate(Slot(k, rules)) for k in range(POPSIZE)]
    assert [[t.params[name] for name in THETA_NAMES] for t in first] == expected


def _take_enqueued(url: str, log: Path) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    gate = new_gate(open_storage(url), n_generations=5, popsize=8)
    while (trial := gate.wait_for_trial(longest_wait=0.2)) is not None:
        with log.open("a") as file:
            file.write(f"{trial.number}\n")
        gate.finish(trial, gate.sampler.suggest(trial)[0])


def test_waiting_trials_are_taken_once(sqlite_url: str, tmp_path: Path) -> None:
    """Plain Optuna hands the same waiting trial to two processes on SQLite now and then."""
    gate = new_gate(open_storage(sqlite_url), popsize=8)
    for number in range(40):
        gate.study.enqueue_trial(dict.fromkeys(THETA_NAMES, float(number)))
    processes = [
        fork.Process(target=_take_enqueued, args=(sqlite_url, tmp_path / "log")) for _ in range(8)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    taken = sorted(int(line) for line in (tmp_path / "log").read_text().split())
    assert taken == list(range(40))
    assert [trial.value for trial in gate.study.trials] == [float(n) for n in range(40)]


def _draw(url: str) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    gate = new_gate(open_storage(url), n_generations=1, popsize=2000)
    while (trial := gate.wait_for_trial()) is not None:
        gate.finish(trial, 0.0)


@pytest.mark.slow
def test_first_generation_of_two_thousand_by_eight_workers(postgresql_url: str) -> None:
    processes = [fork.Process(target=_draw, args=(postgresql_url,)) for _ in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    gate = new_gate(open_storage(postgresql_url), popsize=2000)
    drawn = [[t.params[name] for name in THETA_NAMES] for t in gate.study.trials]
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
