"""Evolve loss functions with TaylorGLO, on Optuna, CMA-ES and PyTorch Lightning."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optuna_taylorglo.baselines import BaikalCMALoss, BaikalLoss
    from optuna_taylorglo.description import describe
    from optuna_taylorglo.loss import TaylorLoss, load_loss, taylor_loss
    from optuna_taylorglo.pruner import EarlyAbortPruner
    from optuna_taylorglo.sampler import TaylorGLOSampler
    from optuna_taylorglo.taylor import Expansion

__all__ = [
    "BaikalCMALoss",
    "BaikalLoss",
    "EarlyAbortPruner",
    "Expansion",
    "TaylorGLOSampler",
    "TaylorLoss",
    "describe",
    "load_loss",
    "taylor_loss",
]

_HOMES = {
    "BaikalCMALoss": "baselines",
    "BaikalLoss": "baselines",
    "EarlyAbortPruner": "pruner",
    "Expansion": "taylor",
    "TaylorGLOSampler": "sampler",
    "TaylorLoss": "loss",
    "describe": "description",
    "load_loss": "loss",
    "taylor_loss": "loss",
}


def __getattr__(name: str) -> Any:
    # Names are imported when first used: a command that only reads a study must not wait for torch.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
