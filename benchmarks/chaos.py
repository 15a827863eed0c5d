"""Attacks a search, or the trainings of a verdict, while many processes work on it.

    python benchmarks/chaos.py --storage postgresql --mode kill --workers 12 --generations 20
    python benchmarks/chaos.py --storage sqlite journal --mode kill stop --attacks 100

Every mode ends with the same questions, one row of a table for each: is every candidate, value and
report that of a serial run in memory; was each finished evaluation stored, and stored once; does
anything still run? Workers log an evaluation the moment before they hand its result over, and
again when the storage has acknowledged it, so that what was lost or made twice can be counted.

| mode | attack |
|---|---|
| kill | SIGKILL at random moments, aimed also at starts, claims and results being written |
| stop | SIGSTOP for longer than the grace, then SIGCONT |
| connections | the server ends connections |
| server | immediate stops and restarts of the server, every third for `--outage` seconds |
| exceptions | evaluations that raise, each candidate at most as often as it is made up for |
| verdict | kills on the queue of a verdict |
| real | kills of `taylorglo-worker`, `taylorglo run` and `taylorglo evaluate` processes |
| outage | the server stops for `--outage` seconds under `taylorglo run` and `taylorglo evaluate` |

Evaluations take hundredths of a second, so heartbeats come every second and the grace period is
four; ``--real-intervals`` has the worker's own 60 and 240 seconds. Suspensions beyond 240 seconds
take their time; with several of them together, twenty generations see many within an hour:

    python benchmarks/chaos.py --mode stop --heartbeat 60 --grace 240 --seconds 15 \\
        --workers 24 --popsize 24 --together 6 --attacks 42 --limit 5400
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "helpers"))

import optuna
from chaos_attacks import Attack, Cut, Kill, Outage, Suspend
from chaos_jobs import Job, Raising, SearchJob, Storage, VerdictJob
from chaos_judge import Judgment, attacked
from chaos_real import attack_real
from databases import GrpcProxy, MariaDB, PostgreSQL, postgresql_directory

STORAGES = ("postgresql", "mariadb", "sqlite", "journal", "grpc")
ATTACKS = {
    "kill": 400,
    "stop": 40,
    "connections": 400,
    "server": 6,
    "exceptions": 0,
    "verdict": 100,
    "real": 12,
    "outage": 1,
}
"""Modes, and how often each attacks unless told otherwise."""

SECONDS = 0.05  # of an evaluation, unless told otherwise

HEADER = (
    "| storage | mode | attacks | generations | identical | lost | repeated | overtaken | "
    "left running | orphans | died by themselves | longest standstill s | seconds |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|---|"
)


class Unsupported(Exception):
    """A storage or server that this machine, or this version, does not have."""


@contextlib.contextmanager
def storage_of_kind(kind: str, directory: Path) -> Iterator[tuple[str, Any]]:
    """The URL of a new, empty storage, and its server, which can be stopped and started."""
    with contextlib.ExitStack() as stack:
        if kind == "sqlite":
            yield f"sqlite:///{directory / 'study.db'}", None
        elif kind == "journal":
            yield str(directory / "study.journal"), None
        elif kind == "mariadb":
            if not MariaDB.installed():
                raise Unsupported("mariadbd is not installed")
            server = stack.enter_context(contextlib.closing(MariaDB(directory)))
            yield server.new_database(), server
        else:
            database = PostgreSQL(stack.enter_context(postgresql_directory()))
            stack.callback(database.close)
            url = database.new_database()
            if kind == "postgresql":
                yield url, database
            else:
                proxy = stack.enter_context(contextlib.closing(GrpcProxy(url)))
                yield proxy.url, proxy


def run(kind: str, mode: str, options: argparse.Namespace) -> None:
    """Attack once, and print a row."""
    heartbeat, grace = (60, 240) if options.real_intervals else (options.heartbeat, options.grace)
    total = ATTACKS[mode] if options.attacks is None else options.attacks
    with tempfile.TemporaryDirectory(prefix="chaos-", ignore_cleanup_errors=True) as scratch:
        directory = Path(scratch)
        try:
            with storage_of_kind(kind, directory) as (url, server):
                if mode in ("real", "outage"):
                    stopped = server if mode == "outage" else None
                    args = (total, options.seed, directory, stopped, options.outage)
                    for name, judgment in attack_real(url, *args):
                        print_row(kind, name.replace("real", mode), judgment)
                    return
                judgment = attacked(
                    job_of(mode, options, directory),
                    Storage(url, heartbeat, grace),
                    attack_of(mode, total, options, server),
                    workers=options.workers,
                    directory=directory,
                    limit=options.limit,
                )
        except Unsupported as reason:
            print(f"| {kind} | {mode} | skipped: {reason} |", flush=True)
            return
    print_row(kind, mode + " (60 / 240 s)" * options.real_intervals, judgment)


def job_of(mode: str, options: argparse.Namespace, directory: Path) -> Job:
    """What is attacked."""
    seconds = options.seconds
    if seconds is None:
        # A suspended worker resumes while another makes the same evaluation, or just after it.
        seconds = options.grace / 4 if mode == "stop" else SECONDS
    if mode == "verdict":
        return VerdictJob(options.tasks, seconds)
    return SearchJob(
        options.generations,
        options.popsize,
        seconds,
        raising=Raising(directory, 0.1) if mode == "exceptions" else None,
    )


def attack_of(mode: str, total: int, options: argparse.Namespace, server: Any) -> Attack:
    """How it is attacked."""
    if mode == "server" and server is None:
        raise Unsupported("a file has no server")
    if mode == "connections" and not isinstance(server, PostgreSQL):
        raise Unsupported("only PostgreSQL ends connections")
    if mode == "server":
        return Outage(total, server, options.outage, options.seed)
    if mode == "stop":
        return Suspend(total, options.seed, options.together)
    return (Cut if mode == "connections" else Kill)(total, options.seed)


def print_row(kind: str, mode: str, judgment: Judgment) -> None:
    """One row, and what went wrong on standard error: after an hour's run it is the evidence."""
    j = judgment
    identical = "yes" if j.identical else "**no**" if j.over else "**never ended**"
    counts = [len(each) for each in (j.lost, j.repeated, j.overtaken, j.left)]
    times = [f"{j.standstill:.1f}", f"{j.seconds:.0f}"]
    cells = [kind, mode, j.attacks, j.generations, identical, *counts, j.orphans, len(j.errors)]
    print("| " + " | ".join(map(str, cells + times)) + " |", flush=True)
    for line in [*j.differences[:3], *j.lost[:3], *j.repeated[:3], *j.left[:3], *j.errors[-3:]]:
        print(line, file=sys.stderr, flush=True)


def main() -> None:
    """Attack each storage in each mode."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--storage", nargs="+", choices=STORAGES, default=["postgresql"])
    parser.add_argument("--mode", nargs="+", choices=list(ATTACKS), default=["kill"])
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--generations", type=int, default=20)
    parser.add_argument("--popsize", type=int, default=12)
    parser.add_argument("--tasks", type=int, default=100, help="trainings of a verdict")
    parser.add_argument(
        "--attacks", "--kills", type=int, help="how often; default depends on the mode"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        help=f"of an evaluation; {SECONDS}, for `stop` a quarter of the grace",
    )
    parser.add_argument("--outage", type=float, default=20.0, help="seconds without a server")
    parser.add_argument("--together", type=int, default=1, help="suspended at one time")
    parser.add_argument("--heartbeat", type=int, default=1)
    parser.add_argument("--grace", type=int, default=4)
    parser.add_argument("--real-intervals", action="store_true", help="a worker's real settings")
    parser.add_argument("--limit", type=float, default=1800, help="seconds a run may take")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    # Workers and servers must not outlive a benchmark that is told to stop.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to stop"))
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    print(HEADER, flush=True)
    for kind in options.storage:
        for mode in options.mode:
            run(kind, mode, options)


if __name__ == "__main__":
    main()
