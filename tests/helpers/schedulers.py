"""Schedulers on small searches, for tests of queues and searches."""

from __future__ import annotations

from typing import Any

import optuna
import sqlalchemy
from optuna.trial import Trial, TrialState

from optuna_taylorglo.attributes import ATTEMPT, GENERATION, INDEX
from optuna_taylorglo.queue.lost_workers import SilenceWatch
from optuna_taylorglo.queue.trial_queue import TrialQueue
from optuna_taylorglo.search.sampler import TaylorGLOSampler
from optuna_taylorglo.search.scheduler import GenerationScheduler
from optuna_taylorglo.storage.optuna_private import storage_of
from optuna_taylorglo.storage.outage_tolerant import OutageTolerantStorage

COMPLETE, PRUNED, FAIL = TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL


def sampler(
    popsize: int = 2, attempts: int = 3, max_failures: int = 3, overlap: int = 0
) -> TaylorGLOSampler:
    return TaylorGLOSampler(
        popsize=popsize, attempts=attempts, max_failures=max_failures, overlap=overlap
    )


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


def silence(queue: TrialQueue) -> None:
    """Make a queue take all trials that run for silent when it next looks."""
    storage = storage_of(queue.study)
    if isinstance(storage, OutageTolerantStorage):
        age_heartbeats(storage)
    else:
        queue._watch.give_up()
        storage.grace_period = -1
    queue._watch = SilenceWatch(queue.study, watch=0.0)
    queue._watch_due = queue._idle_watch_due = 0.0


def give_up_running(queue: TrialQueue) -> None:
    """Do what another worker does when it hears no signs of life."""
    silence(queue)
    queue._watch.give_up()


def age_heartbeats(storage: Any) -> None:
    """Make all signs of life in a database look old."""
    with storage.database.engine.begin() as connection:
        connection.execute(
            sqlalchemy.text("UPDATE trial_heartbeats SET heartbeat = '2001-01-01 00:00:00'")
        )
