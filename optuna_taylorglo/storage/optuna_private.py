"""Every name that Optuna does not publish and that is used here, each with the reason.

Optuna's public API hands out trials by its own choice, inside `study.optimize`. A search whose
candidates depend on results only must hand out one particular trial, watch over it and take it
back, and for that a storage has to be asked by ids.
"""

from __future__ import annotations

from typing import Any

from optuna.storages import BaseStorage, _CachedStorage

# Optuna looks for this class before it asks a storage for signs of life.
from optuna.storages._heartbeat import BaseHeartbeat
from optuna.storages.journal import JournalFileBackend
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial

__all__ = ["BaseHeartbeat", "CachedStorage"]

CachedStorage = _CachedStorage
"""The cache that Optuna puts before a database; our own wrapper has to stand before it."""

FIXED_PARAMS = "fixed_params"
"""System attribute of a trial that was enqueued with parameters: these, even out of range."""


def storage_of(study: Study) -> Any:
    """A study's storage: states, signs of life and attributes of one trial are set there."""
    return study._storage


def study_id_of(study: Study) -> int:
    """A study's id, as the dashboard's address needs it."""
    return study._study_id


def trial_id_of(trial: Trial | FrozenTrial) -> int:
    """A trial's id, by which a storage knows it."""
    return trial._trial_id


def backend_of(storage: BaseStorage) -> Any:
    """The database behind Optuna's cache or the file behind a journal, for locks of our own."""
    return getattr(storage, "_backend", storage)


def path_of(journal: JournalFileBackend) -> str:
    """The file of a journal."""
    return journal._file_path
