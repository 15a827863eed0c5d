"""Every private name of Optuna that is used here, each with the reason."""

from __future__ import annotations

from typing import Any

# Optuna puts this cache before a database; our retries have to be outside of it.
from optuna.storages import GrpcStorageProxy
from optuna.storages import _CachedStorage as CachedStorage
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial

__all__ = ["FIXED_PARAMS", "CachedStorage"]

FIXED_PARAMS = "fixed_params"  # system attribute: an enqueued trial's, perhaps out of range


def storage_of(study: Study) -> Any:
    return study._storage  # the only way to claim a certain trial


def study_id_of(study: Study) -> int:
    return study._study_id  # storages ask for it, and the dashboard's addresses have it


def trial_id_of(trial: Trial | FrozenTrial) -> int:
    return trial._trial_id  # storages ask for it


def replace_grpc_channel(proxy: GrpcStorageProxy, channel: Any) -> None:
    """Let a proxy's client use another channel: its own has no deadline."""
    proxy._channel.close()
    proxy._channel = channel
    proxy._stub = type(proxy._stub)(channel)
    proxy._cache.grpc_client = proxy._stub
