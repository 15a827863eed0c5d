"""Whatever is done to workers and servers, all is as if nothing had happened.

The long version, with more storages and attacks, is ``benchmarks/chaos.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos_attacks import Attack, Cut, Kill, KillAndSuspend, KillSlot, Nothing, Suspend
from chaos_jobs import Job, Raising, SearchJob, Storage, VerdictJob
from chaos_judge import Judgment, attacked

HEARTBEAT, GRACE = 1, 3


def attack(job: Job, url: str, how: Attack, directory: Path, limit: float = 120) -> Judgment:
    storage = Storage(url, HEARTBEAT, GRACE)
    judgment = attacked(job, storage, how, workers=4, directory=directory, limit=limit)
    judgment.assert_flawless()
    return judgment


def small_search(**options: object) -> SearchJob:
    return SearchJob(generations=2, popsize=4, seconds=0.06, **options)  # type: ignore[arg-type]


def test_kills_change_nothing(database_url: str, tmp_path: Path) -> None:
    judgment = attack(small_search(), database_url, Kill(8), tmp_path)
    assert judgment.attacks == 8


def test_kills_change_nothing_in_a_journal(journal_path: str, tmp_path: Path) -> None:
    judgment = attack(small_search(), journal_path, Kill(6), tmp_path)
    assert judgment.attacks == 6


def test_one_slot_may_lose_ten_workers(postgresql_url: str, tmp_path: Path) -> None:
    """Others on the machine see that they are dead."""
    job = small_search(slow=frozenset({5}))
    judgment = attacked(
        job,
        Storage(postgresql_url),
        KillSlot(10, slot=5),
        workers=4,
        directory=tmp_path,
        limit=120,
    )
    judgment.assert_flawless()
    assert judgment.attacks == 10


def test_workers_that_sleep_for_longer_than_the_grace_change_nothing(
    postgresql_url: str, tmp_path: Path
) -> None:
    judgment = attack(small_search(), postgresql_url, Suspend(3), tmp_path)
    assert judgment.attacks == 3


def test_cut_connections_change_nothing(postgresql_url: str, tmp_path: Path) -> None:
    judgment = attack(small_search(), postgresql_url, Cut(20), tmp_path)
    assert judgment.attacks >= 20


def test_exceptions_within_the_limit_change_nothing(sqlite_url: str, tmp_path: Path) -> None:
    job = small_search(raising=Raising(tmp_path, 0.5))
    assert attack(job, sqlite_url, Nothing(), tmp_path).attacks > 0


def test_every_training_of_a_verdict_has_one_result(sqlite_url: str, tmp_path: Path) -> None:
    judgment = attack(VerdictJob(16, 0.06), sqlite_url, KillAndSuspend(8), tmp_path)
    assert judgment.attacks == 8


@pytest.mark.slow
@pytest.mark.parametrize("how", [Kill(400), Suspend(40)], ids=["kill", "stop"])
def test_a_long_search_in_a_storm(database_url: str, tmp_path: Path, how: Attack) -> None:
    judgment = attacked(
        SearchJob(generations=20, popsize=12),
        Storage(database_url),
        how,
        workers=12,
        directory=tmp_path,
        limit=1800,
    )
    judgment.assert_flawless()
    assert judgment.attacks >= how.total


@pytest.mark.slow
def test_a_long_verdict_in_a_storm(database_url: str, tmp_path: Path) -> None:
    attack(VerdictJob(), database_url, KillAndSuspend(100), tmp_path, limit=900)
