"""Whatever is done to its workers, a GLO search is the one that a single worker makes."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos_attacks import Kill, Suspend
from chaos_glo import GLOJob
from chaos_jobs import Storage
from chaos_judge import attacked

from optuna_taylorglo.recipes.schema import CoefficientSettings, GLOSettings


def test_kills_change_no_tree_and_no_coefficient(postgresql_url: str, tmp_path: Path) -> None:
    job = GLOJob(seconds=0.06)
    serial = job.expected()
    assert {place.split("/")[0] for place in serial} == {"0", "1", "2", "3", "4"}
    judgement = attacked(
        job,
        Storage(postgresql_url, heartbeat=1, grace=3),
        Kill(8),
        workers=4,
        directory=tmp_path,
        limit=120,
    )
    judgement.assert_flawless()
    assert judgement.attacks == 8


@pytest.mark.slow
@pytest.mark.parametrize("how", [Kill(100), Suspend(10)], ids=["kill", "stop"])
def test_a_long_search_in_a_storm(database_url: str, tmp_path: Path, how: Kill) -> None:
    settings = GLOSettings(
        population=40,
        generations=10,
        coefficients=CoefficientSettings(population=12, generations=5),
    )
    judgement = attacked(
        GLOJob(settings=settings, generations=15),
        Storage(database_url),
        how,
        workers=8,
        directory=tmp_path,
        limit=1200,
    )
    judgement.assert_flawless()
    assert judgement.attacks >= how.total
