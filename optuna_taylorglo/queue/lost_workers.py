"""Giving back what workers held that are dead: seen to die, or silent for too long."""

from __future__ import annotations

import warnings
from dataclasses import asdict

from optuna.exceptions import ExperimentalWarning
from optuna.logging import get_logger
from optuna.storages import fail_stale_trials
from optuna.study import Study
from optuna.trial import TrialState

from optuna_taylorglo.attributes import ERROR
from optuna_taylorglo.queue.failures import Failure
from optuna_taylorglo.queue.identity import WorkerIdentity, worker_of
from optuna_taylorglo.storage.locks import study_lock
from optuna_taylorglo.storage.optuna_private import storage_of, trial_id_of
from optuna_taylorglo.storage.retry import retry_during_outage

_logger = get_logger(__name__)

# Whoever looks after workers must not be held up; a trial that stays is found by its silence.
_LIMIT = 10.0


def give_up_silent_trials(study: Study) -> None:
    """Give up the running trials whose workers have given no sign of life for the grace period."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        fail_stale_trials(study)


def give_up_trials_of(study: Study, dead: WorkerIdentity, cause: str) -> list[int]:
    """Give up the running trials of a worker that has died, so that another takes them at once.

    They count as lost, as trials without signs of life do: what kills its worker every time comes
    to an end.

    Args:
        study: A study that it may have worked on.
        dead: The worker.
        cause: How it died.

    Returns:
        Numbers of the trials.
    """
    try:
        return retry_during_outage(lambda: _give_up(study, dead, cause), limit=_LIMIT)
    except Exception as error:
        _logger.warning(f"What worker {dead} held could not be given back: {error}")
        return []


def _give_up(study: Study, dead: WorkerIdentity, cause: str) -> list[int]:
    storage = storage_of(study)
    given_up = []
    with study_lock(storage, study.study_name):
        for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if worker_of(trial) == dead:
                died = Failure("WorkerDied", cause)
                storage.set_trial_user_attr(trial_id_of(trial), ERROR, asdict(died))
                storage.set_trial_state_values(trial_id_of(trial), TrialState.FAIL)
                given_up.append(trial.number)
    return given_up
