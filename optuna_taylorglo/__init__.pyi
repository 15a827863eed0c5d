from .losses.baikal import BaikalCMALoss, BaikalLoss
from .losses.description import describe
from .losses.expansion import Expansion
from .losses.loading import load_loss
from .losses.standard import (
    FocalLoss,
    GeneralizedCrossEntropyLoss,
    NormalizedReverseCrossEntropyLoss,
    PolyLoss,
    SymmetricCrossEntropyLoss,
    TaylorCrossEntropyLoss,
)
from .losses.taylor_loss import TaylorLoss, taylor_loss
from .losses.tree_loss import TreeLoss
from .search.glo.sampler import GLOSampler
from .search.pruners import EarlyAbortPruner
from .search.sampler import TaylorGLOSampler

__version__: str

__all__ = [
    "BaikalCMALoss",
    "BaikalLoss",
    "EarlyAbortPruner",
    "Expansion",
    "FocalLoss",
    "GLOSampler",
    "GeneralizedCrossEntropyLoss",
    "NormalizedReverseCrossEntropyLoss",
    "PolyLoss",
    "SymmetricCrossEntropyLoss",
    "TaylorCrossEntropyLoss",
    "TaylorGLOSampler",
    "TaylorLoss",
    "TreeLoss",
    "describe",
    "load_loss",
    "taylor_loss",
]
