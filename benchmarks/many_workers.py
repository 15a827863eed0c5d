"""How many workers one PostgreSQL server, or one SQLite file, can take, and what it costs them.

    python benchmarks/many_workers.py [--workers 16 64 200] [--seconds 30] [--generations 3]
    python benchmarks/many_workers.py --storage sqlite --runs "all busy" --workers 28

Workers are processes on the real classes with the worker's real heartbeats; an evaluation is a
sleep of 0.8 to 1.2 times ``--seconds``. They are forked from one process after all imports, so
hundreds of them fit into memory. The server is a PostgreSQL of its own with ``max_connections``
100, and workers are ordinary users, so that the reserved connections are left for looking on.

Two kinds of run for each number of workers W: a search with λ = W, in which all are busy, and one
with λ = 4, in which nearly all wait.

In the queue: seconds in ``finish()``, and from the moment when both the worker was free and its
generation had begun until its next evaluation started, of all worker time but waiting for nothing.
Next claim: from a generation's last result to the first evaluation of the next one.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
import traceback
import uuid
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "helpers"))

import alembic.command  # noqa: F401  before the fork, or each worker would import it for itself
import cmaes  # noqa: F401  the same
import optuna
import sqlalchemy
from databases import PostgreSQL, postgresql_directory

from optuna_taylorglo.attributes import GENERATION
from optuna_taylorglo.evolution.sampler import THETA_NAMES, TaylorGLOSampler
from optuna_taylorglo.evolution.scheduler import GenerationScheduler
from optuna_taylorglo.study.heartbeat import heartbeats
from optuna_taylorglo.study.open import open_storage
from optuna_taylorglo.study.queue import TrialQueue

MAX_CONNECTIONS = 100
FEW_CANDIDATES = 4
SAMPLED_EVERY = 0.5

HEADER = (
    "| storage | run | workers | λ | evaluations | failures | transactions a second | "
    "peak connections | in the queue | next claim s, median (longest) | seconds |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|"
)

fork = multiprocessing.get_context("fork")

OpenQueue = Callable[[Any], TrialQueue]


class Server:
    """A PostgreSQL server with a given number of connections, and somebody who looks on."""

    def __init__(self, directory: Path) -> None:
        self._server = PostgreSQL(directory)
        self._admin_url = sqlalchemy.make_url(self._server.new_database())
        self._execute(f"ALTER SYSTEM SET max_connections = {MAX_CONNECTIONS}")
        self._execute("CREATE ROLE worker LOGIN")
        self._server.stop()
        self._server.start()
        assert self._execute("SHOW max_connections") == str(MAX_CONNECTIONS)

    def new_database(self) -> str:
        """URL of an empty database, for an ordinary user."""
        name = f"test_{uuid.uuid4().hex}"
        self._execute(f"CREATE DATABASE {name} OWNER worker")
        url = self._admin_url.set(drivername="postgresql", username="worker", database=name)
        return url.render_as_string(hide_password=False)

    def connect(self) -> sqlalchemy.Connection:
        """The look-out's only connection; it holds no transaction open."""
        url = self._admin_url.set(drivername="postgresql+psycopg")
        engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
        return engine.connect().execution_options(isolation_level="AUTOCOMMIT")

    def _execute(self, statement: str) -> Any:
        with self.connect() as connection:
            result = connection.execute(sqlalchemy.text(statement))
            return result.scalar() if result.returns_rows else None

    def close(self) -> None:
        self._server.close()


class Files:
    """SQLite files; there is no server to look at."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(exist_ok=True)

    def new_database(self) -> str:
        return f"sqlite:///{self._directory / uuid.uuid4().hex}.db"

    def close(self) -> None:
        """Nothing is left to close."""


class LookOut:
    """Counts connections and transactions of one database while the body of its ``with`` runs.

    Of a file it measures time only.
    """

    transactions = float("nan")

    def __init__(self, server: Server | Files, url: str) -> None:
        self._server = server if isinstance(server, Server) else None
        self._name = {"name": sqlalchemy.make_url(url).database}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.peak_connections = 0

    def __enter__(self) -> LookOut:
        self._began = time.monotonic()
        if self._server is not None:
            self._connection = self._server.connect()
            self._before = self._transactions()
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds = time.monotonic() - self._began
        if self._server is not None:
            self._stop.set()
            self._thread.join()
            time.sleep(1.5)  # servers count what a connection did a moment after it
            self.transactions = self._transactions() - self._before
            self._connection.close()

    def _transactions(self) -> int:
        query = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = :name"
        return self._connection.execute(sqlalchemy.text(query), self._name).scalar() or 0

    def _watch(self) -> None:
        query = sqlalchemy.text("SELECT count(*) FROM pg_stat_activity WHERE datname = :name")
        while not self._stop.wait(SAMPLED_EVERY):
            count = self._connection.execute(query, self._name).scalar() or 0
            self.peak_connections = max(self.peak_connections, count)


class Evaluation(NamedTuple):
    """One evaluation as its worker saw it, with times of the monotonic clock."""

    worker: int
    generation: int
    free: float  # when the worker was free for it
    began: float
    finished: float  # when its result was handed over
    acknowledged: float  # when the storage had it


@dataclass(frozen=True)
class Run:
    """What every worker does, logging into a directory, until the queue is over or time is up."""

    url: str
    open_queue: OpenQueue
    seconds: float
    directory: Path
    ends: float

    def work(self, worker: int) -> None:
        """Pull and sleep until the queue is over."""
        optuna.logging.set_verbosity(optuna.logging.CRITICAL)
        try:
            self._work(worker)
        except Exception:
            (self.directory / f"error-{worker}").write_text(traceback.format_exc())
            sys.exit(1)

    def _work(self, worker: int) -> None:
        dice = random.Random(worker)
        free = time.monotonic()
        queue = self.open_queue(open_storage(self.url))
        with (self.directory / f"log-{worker}").open("w") as log:
            while (trial := queue.wait_for_trial(deadline=self.ends)) is not None:
                generation = trial.user_attrs.get(GENERATION, 0)
                began = time.monotonic()
                with heartbeats(trial):
                    time.sleep(self.seconds * dice.uniform(0.8, 1.2))
                    finished = time.monotonic()
                    queue.finish(trial, dice.random())
                acknowledged = time.monotonic()
                evaluation = Evaluation(worker, generation, free, began, finished, acknowledged)
                log.write(json.dumps(evaluation) + "\n")
                log.flush()
                free = acknowledged


def crew_of(run: Run, workers: int) -> int:
    """Let workers do a run; returns how many failed."""
    processes = [fork.Process(target=run.work, args=(number,)) for number in range(workers)]
    # As in a worker; here before the fork, or each collection would copy what all of them share.
    gc.collect()
    gc.freeze()
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join()
    finally:
        for process in processes:
            process.kill()
            process.join()
    return sum(process.exitcode != 0 for process in processes)


def search_queue(popsize: int, generations: int) -> OpenQueue:
    """Opens a search."""

    def open_(storage: Any) -> TrialQueue:
        study = optuna.create_study(
            study_name="search",
            storage=storage,
            sampler=TaylorGLOSampler(
                names=THETA_NAMES, popsize=popsize, attempts=3, max_failures=3
            ),
            direction="maximize",
            load_if_exists=True,
        )
        return GenerationScheduler(study, n_generations=generations)

    return open_


def in_a_process(call: Callable[..., object], *args: object) -> None:
    """Make a call elsewhere, so that no connection of ours is there when workers are forked."""
    process = fork.Process(target=call, args=args)
    process.start()
    process.join()
    assert process.exitcode == 0


def share_in_queue(evaluations: Sequence[Evaluation]) -> float:
    """Time in the queue while there was something in it, of that time and of evaluations."""
    ends: dict[int, float] = defaultdict(float)
    for evaluation in evaluations:
        ends[evaluation.generation] = max(ends[evaluation.generation], evaluation.acknowledged)
    queue = busy = 0.0
    first = {}
    for evaluation in sorted(evaluations, key=lambda e: e.began):
        busy += evaluation.finished - evaluation.began
        queue += evaluation.acknowledged - evaluation.finished
        if evaluation.worker in first:
            begun = ends[evaluation.generation - 1] if evaluation.generation else 0.0
            queue += max(0.0, evaluation.began - max(evaluation.free, begun))
        first.setdefault(evaluation.worker, evaluation)
    return queue / (queue + busy) if evaluations else float("nan")


def next_claims(evaluations: Sequence[Evaluation]) -> list[float]:
    """Seconds from each generation's last result to the first evaluation of the next one."""
    ended: dict[int, float] = defaultdict(float)
    began: dict[int, float] = defaultdict(lambda: float("inf"))
    for e in evaluations:
        ended[e.generation] = max(ended[e.generation], e.acknowledged)
        began[e.generation] = min(began[e.generation], e.began)
    waits = [began[g] - ended[g - 1] for g in sorted(began) if g - 1 in ended]
    return waits or [float("nan")]


def measure(server: Server | Files, kind: str, workers: int, options: argparse.Namespace) -> None:
    """One run, and its row."""
    url = server.new_database()
    seconds = options.seconds
    popsize = {"all busy": workers, "many wait": FEW_CANDIDATES}[kind]
    open_queue = search_queue(popsize, options.generations)
    # Tables and study are there before the workers, as an operator makes them.
    in_a_process(lambda: open_queue(open_storage(url)))
    with tempfile.TemporaryDirectory(prefix="many-") as scratch:
        directory = Path(scratch)
        with LookOut(server, url) as look_out:
            run = Run(url, open_queue, seconds, directory, time.monotonic() + options.limit)
            failures = crew_of(run, workers)
        lines = [line for log in directory.glob("log-*") for line in log.read_text().splitlines()]
        errors = [error.read_text() for error in directory.glob("error-*")]
    evaluations = [Evaluation(*json.loads(line)) for line in lines]
    claims = next_claims(evaluations)
    cells = (
        options.storage,
        kind,
        workers,
        popsize,
        len(evaluations),
        failures,
        f"{look_out.transactions / look_out.seconds:.1f}",
        look_out.peak_connections,
        f"{100 * share_in_queue(evaluations):.1f} %",
        f"{statistics.median(claims):.2f} ({max(claims):.2f})",
        f"{look_out.seconds:.0f}",
    )
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)
    for error in sorted({error.strip().splitlines()[-1] for error in errors}):
        print(error, file=sys.stderr, flush=True)


def main() -> None:
    """Measure each number of workers in each kind of run."""
    kinds = ("all busy", "many wait")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--storage", choices=("postgresql", "sqlite"), default="postgresql")
    parser.add_argument("--workers", type=int, nargs="+", default=[16, 64, 200])
    parser.add_argument("--runs", nargs="+", choices=kinds, default=list(kinds))
    parser.add_argument("--seconds", type=float, default=30.0, help="mean of an evaluation")
    parser.add_argument("--generations", type=int, default=3)
    parser.add_argument("--limit", type=float, default=1800, help="seconds a search may take")
    options = parser.parse_args()
    # Workers and the server must not outlive a benchmark that is told to stop.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to stop"))
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    print(HEADER, flush=True)
    with postgresql_directory() as directory:
        server = Files(directory) if options.storage == "sqlite" else Server(directory)
        try:
            for kind in options.runs:
                for workers in options.workers:
                    measure(server, kind, workers, options)
        finally:
            server.close()


if __name__ == "__main__":
    main()
