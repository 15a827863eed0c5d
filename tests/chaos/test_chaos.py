"""Whatever is done to workers and servers, the outcome is that of a serial run.

The long version, with more attacks, is ``benchmarks/chaos.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos_attacks import Attack, Cut, Kill, Outage, Suspend
from chaos_glo import GLOJob
from chaos_jobs import Job, Raising, SearchJob, Storage, VerdictJob
from chaos_judge import Judgment, attacked
from databases import GrpcProxy, PostgreSQL

from optuna_taylorglo.recipes.settings import CoefficientSettings, GLOSettings

SMALL = SearchJob(generations=2, popsize=4, seconds=0.06)
LONG_GLO = GLOSettings(
    popsize=40, n_generations=10, coefficients=CoefficientSettings(popsize=12, n_generations=5)
)


def assert_like_serial(
    job: Job, url: str, attack: Attack, directory: Path, workers: int = 4, limit: float = 300
) -> Judgment:
    storage = Storage(url, heartbeat=1, grace=3)
    judgment = attacked(job, storage, attack, workers=workers, directory=directory, limit=limit)
    judgment.assert_flawless()
    assert attack.done >= attack.total
    return judgment


@pytest.mark.parametrize("kind", ["sqlite_url", "postgresql_url", "mariadb_url", "journal_path"])
def test_kills_change_nothing(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    assert_like_serial(SMALL, request.getfixturevalue(kind), Kill(8), tmp_path)


def test_kills_change_no_tree_and_no_coefficient(postgresql_url: str, tmp_path: Path) -> None:
    job = GLOJob(seconds=0.06)
    assert {place.split("/")[0] for place in job.expected()} == set("01234")
    assert_like_serial(job, postgresql_url, Kill(8), tmp_path)


def test_every_training_of_a_verdict_has_one_result(sqlite_url: str, tmp_path: Path) -> None:
    assert_like_serial(VerdictJob(16, 0.06), sqlite_url, Kill(6), tmp_path)


def test_suspensions_beyond_the_grace_change_nothing(postgresql_url: str, tmp_path: Path) -> None:
    assert_like_serial(SMALL, postgresql_url, Suspend(3), tmp_path)


def test_cut_connections_change_nothing(postgresql_url: str, tmp_path: Path) -> None:
    assert_like_serial(SMALL, postgresql_url, Cut(20), tmp_path)


def test_outages_change_nothing(own_postgresql: PostgreSQL, tmp_path: Path) -> None:
    """The third one lasts longer than the grace."""
    attack = Outage(3, own_postgresql, 4.0)
    assert_like_serial(SMALL, own_postgresql.new_database(), attack, tmp_path)


def test_a_proxy_that_is_killed_changes_nothing(sqlite_url: str, tmp_path: Path) -> None:
    proxy = GrpcProxy(sqlite_url)
    # In a process of its own: the library does not like to be forked after its first call.
    assert_like_serial(SMALL, proxy.url, Outage(2, proxy, 0.0), tmp_path)
    proxy.stop()


def test_exceptions_within_the_limit_change_nothing(sqlite_url: str, tmp_path: Path) -> None:
    job = SearchJob(generations=2, popsize=4, seconds=0.06, raising=Raising(tmp_path, 0.5))
    assert assert_like_serial(job, sqlite_url, Kill(0), tmp_path).attacks > 0


@pytest.mark.slow
@pytest.mark.parametrize("how", [Kill(400), Suspend(40)], ids=["kill", "stop"])
@pytest.mark.parametrize(
    "job",
    [SearchJob(20, 12), VerdictJob(), GLOJob(settings=LONG_GLO, generations=15)],
    ids=["search", "verdict", "glo"],
)
def test_long_runs_in_a_storm(job: Job, database_url: str, tmp_path: Path, how: Attack) -> None:
    how.done = 0
    assert_like_serial(job, database_url, how, tmp_path, workers=12, limit=1800)
