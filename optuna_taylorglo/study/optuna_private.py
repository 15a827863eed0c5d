"""Every private name of Optuna that is used here, each with the reason.

If Optuna renames one of them, the tests of this package fail at import or at the first claim.
"""

from __future__ import annotations

from typing import Any

# Optuna puts this cache before a database; our retries have to be outside of it.
from optuna.storages import GrpcStorageProxy
from optuna.storages import _CachedStorage as CachedStorage
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial

__all__ = ["FIXED_PARAMS", "CachedStorage"]

FIXED_PARAMS = "fixed_params"
"""System attribute with the parameters of an enqueued trial, which may be out of range."""


def storage_of(study: Study) -> Any:
    """A study's storage, the only way to claim a certain trial."""
    return study._storage


def study_id_of(study: Study) -> int:
    """A study's id in its storage, and in the dashboard's addresses."""
    return study._study_id


def trial_id_of(trial: Trial | FrozenTrial) -> int:
    """A trial's id in its storage."""
    return trial._trial_id


def replace_grpc_channel(proxy: GrpcStorageProxy, channel: Any) -> None:
    """Let a proxy's client use another channel: its own has no deadline."""
    proxy._channel.close()
    proxy._channel = channel
    proxy._stub = type(proxy._stub)(channel)
    proxy._cache.grpc_client = proxy._stub
