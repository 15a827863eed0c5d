from .losses.baikal import BaikalCMALoss, BaikalLoss
from .losses.description import describe
from .losses.expansion import Expansion
from .losses.taylor_loss import TaylorLoss, load_loss, taylor_loss
from .search.pruners import EarlyAbortPruner
from .search.sampler import TaylorGLOSampler

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
