from . import visualization as visualization
from .losses.describe import describe
from .losses.expansion import Expansion
from .losses.files import load_loss
from .losses.standard import (
    FocalLoss,
    GeneralizedCrossEntropyLoss,
    NormalizedReverseCrossEntropyLoss,
    PolyLoss,
    SymmetricCrossEntropyLoss,
    TaylorCrossEntropyLoss,
)
from .losses.taylor import TaylorLoss, taylor_loss
from .losses.tree_loss import BaikalCMALoss, BaikalLoss, TreeLoss
from .search.glo import GLOSampler
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
