"""Whatever is done to its workers, a GLO search is the one that a single worker makes."""

from __future__ import annotations

import random
import subprocess
import time
from pathlib import Path

import optuna
import pytest
from chaos_attacks import Kill, Suspend
from chaos_glo import GLOJob
from chaos_jobs import Storage
from chaos_judge import attacked
from glo_searches import candidates, small_glo_recipe
from optuna.trial import TrialState
from searches import load, process

from optuna_taylorglo import worker
from optuna_taylorglo.process import DONE
from optuna_taylorglo.recipes.settings import CoefficientSettings, GLOSettings
from optuna_taylorglo.study.heartbeat import WorkerProcess
from optuna_taylorglo.study.open import open_storage


def test_kills_change_no_tree_and_no_coefficient(postgresql_url: str, tmp_path: Path) -> None:
    job = GLOJob(seconds=0.06)
    serial = job.expected()
    assert {place.split("/")[0] for place in serial} == {"0", "1", "2", "3", "4"}
    judgment = attacked(
        job,
        Storage(postgresql_url, heartbeat=1, grace=3),
        Kill(8),
        workers=4,
        directory=tmp_path,
        limit=120,
    )
    judgment.assert_flawless()
    assert judgment.attacks == 8


@pytest.mark.slow
def test_workers_that_train_may_be_killed(postgresql_url: str, tmp_path: Path) -> None:
    """Real trainings on the digits by four workers, of which one after the other is killed."""
    recipe = small_glo_recipe(tmp_path / "recipe.yaml")
    serial_url = f"sqlite:///{tmp_path / 'serial.db'}"
    for url in (serial_url, postgresql_url):
        optuna.create_study(study_name="glo", storage=open_storage(url), direction="maximize")
    words = ["--study-name", "glo", "--data-dir", str(tmp_path / "data")]
    given = [*words, "--recipe", str(recipe)]
    assert worker.main([*given, "--storage", serial_url]) == DONE

    def start() -> subprocess.Popen[str]:
        patience = ["--heartbeat-interval", "1", "--grace-period", "3", "--no-check"]
        module = "optuna_taylorglo.worker"
        return process(module, *given, *patience, cwd=tmp_path, storage=postgresql_url)

    study, dice = load(postgresql_url, "glo"), random.Random(0)
    crew, kills = [start() for _ in range(4)], 0
    while any(one.poll() is None for one in crew):
        time.sleep(0.2)
        running = [WorkerProcess.of(t) for t in study.get_trials(states=(TrialState.RUNNING,))]
        pids = {identity.pid for identity in running if identity is not None}
        victims = [one for one in crew if one.pid in pids and one.poll() is None]
        if kills < 12 and victims and dice.random() < 0.3:
            victim = dice.choice(victims)
            victim.kill()
            victim.communicate()
            crew[crew.index(victim)] = start()
            kills += 1
    for one in crew:
        output, _ = one.communicate()
        assert one.returncode == DONE, output
    assert kills > 5
    assert candidates(study) == candidates(load(serial_url, "glo"))


@pytest.mark.slow
@pytest.mark.parametrize("how", [Kill(100), Suspend(10)], ids=["kill", "stop"])
def test_a_long_search_in_a_storm(database_url: str, tmp_path: Path, how: Kill) -> None:
    settings = GLOSettings(
        popsize=40,
        n_generations=10,
        coefficients=CoefficientSettings(popsize=12, n_generations=5),
    )
    judgment = attacked(
        GLOJob(settings=settings, generations=15),
        Storage(database_url),
        how,
        workers=8,
        directory=tmp_path,
        limit=1200,
    )
    judgment.assert_flawless()
    assert judgment.attacks >= how.total
