"""Every name that Optuna does not publish and that is used here, each with the reason.

Optuna's public API hands out trials by its own choice, inside `study.optimize`. A search whose
candidates depend on results only must hand out one particular trial, watch over it and take it
back, and for that a storage has to be asked by ids.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy
from optuna.storages import BaseStorage, _CachedStorage

# Optuna looks for this class before it asks a storage for signs of life.
from optuna.storages._heartbeat import BaseHeartbeat

# Optuna's tables: what changes a trial in one transaction has to write there itself.
from optuna.storages._rdb.models import (
    StudyModel,
    StudyUserAttributeModel,
    TrialHeartbeatModel,
    TrialIntermediateValueModel,
    TrialModel,
    TrialParamModel,
    TrialSystemAttributeModel,
    TrialUserAttributeModel,
    TrialValueModel,
)
from optuna.storages.journal import JournalFileBackend
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial

__all__ = ["BaseHeartbeat", "CachedStorage"]

CachedStorage = _CachedStorage
"""The cache that Optuna puts before a database; our own wrapper has to stand before it."""

FIXED_PARAMS = "fixed_params"
"""System attribute of a trial that was enqueued with parameters: these, even out of range."""


STUDIES: sqlalchemy.Table = StudyModel.__table__
STUDY_ATTRIBUTES: sqlalchemy.Table = StudyUserAttributeModel.__table__
TRIALS: sqlalchemy.Table = TrialModel.__table__
PARAMETERS: sqlalchemy.Table = TrialParamModel.__table__
VALUES: sqlalchemy.Table = TrialValueModel.__table__
ATTRIBUTES: sqlalchemy.Table = TrialUserAttributeModel.__table__
SYSTEM_ATTRIBUTES: sqlalchemy.Table = TrialSystemAttributeModel.__table__
REPORTS: sqlalchemy.Table = TrialIntermediateValueModel.__table__
BEATS: sqlalchemy.Table = TrialHeartbeatModel.__table__
"""Tables of a database storage. `ATTRIBUTES` are those of users, `BEATS` are signs of life."""


def stored_value(value: float) -> tuple[float | None, Any]:
    """A trial's value as the two columns that hold it."""
    content, kind = TrialValueModel.value_to_stored_repr(value)
    return content, kind


def read_value(content: float | None, kind: Any) -> float:
    """A trial's value from the two columns that hold it."""
    return TrialValueModel.stored_repr_to_value(content, kind)


def read_report(content: float | None, kind: Any) -> float:
    """A report's value from the two columns that hold it."""
    return TrialIntermediateValueModel.stored_repr_to_intermediate_value(content, kind)


def storage_of(study: Study) -> Any:
    """A study's storage: states, signs of life and attributes of one trial are set there."""
    return study._storage


def study_id_of(study: Study) -> int:
    """A study's id, as the dashboard's address needs it."""
    return study._study_id


def trial_id_of(trial: Trial | FrozenTrial) -> int:
    """A trial's id, by which a storage knows it."""
    return trial._trial_id


def new_trial(study: Study, trial: FrozenTrial) -> Trial:
    """A trial as read from a study's storage, for an objective to work with.

    Optuna's cache must have seen a trial before a parameter can be added to it.
    """
    storage: Any = study._storage
    cache = getattr(storage, "_cached", None)
    if not isinstance(cache, _CachedStorage):
        return Trial(study, trial._trial_id)
    with storage.knowing(trial):
        taken = Trial(study, trial._trial_id)
    with cache._lock:
        cache._add_trials_to_cache(study._study_id, [taken._cached_frozen_trial])
    return taken


def backend_of(storage: BaseStorage) -> Any:
    """The database behind Optuna's cache or the file behind a journal, for locks of our own."""
    return getattr(storage, "_backend", storage)


def path_of(journal: JournalFileBackend) -> str:
    """The file of a journal."""
    return journal._file_path
