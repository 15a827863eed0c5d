"""Processes that do a job on the real classes, and are replaced when they die.

They log what they do and when. Each line is written by one call, so a worker that is killed leaves
a whole line or none. Times are those of the monotonic clock, which processes of a machine share.
"""

from __future__ import annotations

import contextlib
import json
import logging
import multiprocessing
import os
import signal
import sys
import time
import traceback
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from chaos_jobs import Job, Place, RaisedNowAndThen, Storage
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import TrialState

from optuna_taylorglo.study.heartbeat import heartbeats
from optuna_taylorglo.study.open import open_storage
from optuna_taylorglo.study.queue import record_failure
from optuna_taylorglo.study.storages import parse_url

fork = multiprocessing.get_context("fork")

CLAIMED, RAISED, FINISHED, ACKNOWLEDGED = "claimed", "raised", "finished", "acknowledged"


class Event(NamedTuple):
    """One line of the log.

    Attributes:
        what: CLAIMED when an evaluation begins, RAISED when it ends with an exception, FINISHED the
            moment before its result is handed over, ACKNOWLEDGED when that call has returned.
        when: The time; of a claim the time at which the claim that succeeded began.
        facts: FINISHED has the outcome, ACKNOWLEDGED whether its place has a stored result.
    """

    what: str
    when: float
    worker: int
    evaluation: int
    place: Place
    facts: dict[str, Any]


class LogReader:
    """Reads what is new."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self.events: list[Event] = []

    def read(self) -> list[Event]:
        """All events so far."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._position)
                lines = file.read()
            lines = lines[: lines.rfind(b"\n") + 1]
            self._position += len(lines)
            self.events += [Event(*json.loads(line)) for line in lines.splitlines()]
        return self.events


class Phase(IntEnum):
    """What a worker does, for attacks that aim."""

    STARTING, WAITING, CLAIMING, EVALUATING, FINISHING = range(5)


class Board:
    """What each seat does, and how far the attacks are; no locks, which the killed may hold."""

    def __init__(self, seats: int) -> None:
        self.attacks_over = fork.RawValue("b", 0)
        self.attacks_behind = fork.RawValue("b", 0)
        self.phases = fork.RawArray("i", seats)

    def holds_up(self, *, at_the_end: bool) -> bool:
        """Whether an evaluation may not be finished yet."""
        return bool(self.attacks_behind.value or (at_the_end and not self.attacks_over.value))


def work(job: Job, storage: Storage, log_path: Path, board: Board, seat: int, worker: int) -> None:
    """Do a job until it is done."""
    logging.disable()
    file = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    evaluation, place, claim_began = 0, "", 0.0

    def log(what: str, when: float | None = None, **facts: Any) -> None:
        event = Event(what, when or time.monotonic(), worker, evaluation, place, facts)
        os.write(file, (json.dumps(event) + "\n").encode())

    queue = storage.queue(job)
    claim = queue.claim

    def watched_claim() -> Any:
        nonlocal claim_began
        claim_began = time.monotonic()
        board.phases[seat] = Phase.CLAIMING
        try:
            return claim()
        finally:
            board.phases[seat] = Phase.WAITING

    queue.claim = watched_claim  # type: ignore[method-assign]
    queue._longest_wait = 0.5
    while (trial := job.next_trial(queue)) is not None:
        evaluation += 1
        place = str(job.place(trial))
        log(CLAIMED, claim_began)
        board.phases[seat] = Phase.EVALUATING
        with heartbeats(trial, queue.heartbeat_interval):
            try:
                outcome = job.evaluate(queue, trial)
                while board.holds_up(at_the_end=job.is_last(place)):
                    time.sleep(0.01)
            except RaisedNowAndThen as error:
                record_failure(trial, error)
                queue.finish(trial, state=TrialState.FAIL)
                log(RAISED)
                continue
            except UpdateFinishedTrialError:
                continue  # failed as stale while this worker was suspended
            board.phases[seat] = Phase.FINISHING
            log(FINISHED, outcome=outcome)
            in_time = job.conclude(queue, trial, outcome)
        # Unless the result came too late, its place must have it now.
        log(ACKNOWLEDGED, stored=place in job.stored(queue.study), dropped=not in_time)
        board.phases[seat] = Phase.WAITING


@dataclass
class Seat:
    """A place in a crew, and the process that has it."""

    process: Any
    worker: int

    @property
    def alive(self) -> bool:
        return self.process.exitcode is None


@dataclass
class Crew:
    """Worker processes; those that die are replaced.

    Attributes:
        killed: Numbers of the workers that were killed.
        suspensions: Worker, beginning and end of each.
        outages: Beginning and end of each.
        errors: The end of each worker that died by itself.
    """

    job: Job
    storage: Storage
    size: int
    directory: Path
    killed: set[int] = field(default_factory=set)
    suspensions: list[tuple[int, float, float]] = field(default_factory=list)
    outages: list[tuple[float, float]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.log = self.directory / "evaluations.jsonl"
        self.board = Board(self.size)
        self._groups: list[int] = []
        url = self.storage.url
        # What databases need is imported once for all workers: of a worker's start it would take
        # most of the time. Not for a proxy, whose library does not like to be forked.
        if "://" in url and not url.startswith("grpc:"):
            open_storage("sqlite://")
            parse_url(url).get_dialect().import_dbapi()
        # Made once: workers that make the same study at once are not what is attacked.
        first = fork.Process(target=lambda: self.storage.queue(self.job))
        first.start()
        first.join()
        assert first.exitcode == 0, "the study could not be made"
        self.seats = [self._start(number) for number in range(self.size)]

    def _start(self, seat: int) -> Seat:
        worker = len(self._groups)
        self.board.phases[seat] = Phase.STARTING
        process = fork.Process(target=self._run, args=(seat, worker))
        process.start()
        seated = Seat(process, worker)
        self._groups.append(seated.process.pid)
        return seated

    def _run(self, seat: int, worker: int) -> None:
        # A group of its own, by which what it starts can be found when it has ended.
        os.setpgrp()
        try:
            work(self.job, self.storage, self.log, self.board, seat, worker)
        except Exception:
            (self.directory / f"error-{worker}").write_text(traceback.format_exc())
            sys.exit(1)

    def replace_the_dead(self) -> bool:
        """Start others in place of the dead; False when the job is done or cannot be."""
        for number, seat in enumerate(self.seats):
            if seat.process.exitcode in (None, 0):
                continue
            if seat.worker not in self.killed:
                note = self.directory / f"error-{seat.worker}"
                self.errors.append(note.read_text() if note.exists() else "no word")
            if len(self.errors) > 2 * self.size:
                return False
            self.seats[number] = self._start(number)
        return any(seat.process.exitcode != 0 for seat in self.seats)

    def kill(self, seat: Seat) -> None:
        self.killed.add(seat.worker)
        seat.process.kill()
        seat.process.join()

    def resume(self, seat: Seat, since: float) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(seat.process.pid, signal.SIGCONT)
        self.suspensions.append((seat.worker, since, time.monotonic()))

    def close(self) -> None:
        """End what still runs."""
        for seat in self.seats:
            if seat.alive:
                self.kill(seat)

    def orphans(self) -> int:
        """Workers that left a process behind, in this session: numbers of processes are reused."""
        found, session = set(), os.getsid(0)
        for pid in psutil.pids():
            with contextlib.suppress(ProcessLookupError):
                if os.getsid(pid) == session and (group := os.getpgid(pid)) in self._groups:
                    found.add(group)
        return len(found)
