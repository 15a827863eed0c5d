"""Schedulers on small searches, for tests of queues and searches."""

from __future__ import annotations

from typing import Any

import optuna
import sqlalchemy
from optuna.trial import Trial, TrialState

from optuna_taylorglo.attributes import ATTEMPT, GENERATION, INDEX
from optuna_taylorglo.search.sampler import TaylorGLOSampler
from optuna_taylorglo.search.scheduler import GenerationScheduler

COMPLETE, PRUNED, FAIL = TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL


def sampler(popsize: int = 2, attempts: int = 3, max_failures: int = 3) -> TaylorGLOSampler:
    return TaylorGLOSampler(popsize=popsize, attempts=attempts, max_failures=max_failures)


def new_scheduler(
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


def take(scheduler: GenerationScheduler) -> Trial:
    trial = scheduler.claim()
    assert trial is not None
    return trial


def place(trial: Trial) -> tuple[int, int, int]:
    attrs = trial.user_attrs
    return attrs[GENERATION], attrs[INDEX], attrs[ATTEMPT]


def age_heartbeats(storage: Any) -> None:
    """Make all signs of life in a database look old."""
    with storage.database.engine.begin() as connection:
        connection.execute(
            sqlalchemy.text("UPDATE trial_heartbeats SET heartbeat = '2001-01-01 00:00:00'")
        )
