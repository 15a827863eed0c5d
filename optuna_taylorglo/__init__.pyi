from . import visualization as visualization
from .evolution.glo import GLOSampler
from .evolution.pruners import EarlyAbortPruner
from .evolution.sampler import TaylorGLOSampler
from .losses.describe import describe
from .losses.expansion import Expansion
from .losses.files import load_loss
from .losses.huggingface import trainer_loss
from .losses.robust import (
    ActiveNegativeLoss,
    EpsilonSoftmaxLoss,
    GeneralizedCrossEntropyLoss,
    JointAsymmetricLoss,
    LabelDistributionallyRobustLoss,
    LogitClipLoss,
    NormalizedAsymmetricLoss,
    NormalizedReverseCrossEntropyLoss,
    SymmetricCrossEntropyLoss,
    TaylorCrossEntropyLoss,
)
from .losses.standard import FocalLoss, LabelSmoothingLoss, PolyLoss
from .losses.taylor import TaylorLoss, taylor_loss
from .losses.tree_loss import BaikalCMALoss, BaikalLoss, TreeLoss
from .training.candidate import Candidate
from .workflow import SearchResult, compare, run_worker, search, tune_learning_rate

__version__: str

__all__ = [
    "ActiveNegativeLoss",
    "BaikalCMALoss",
    "BaikalLoss",
    "Candidate",
    "EarlyAbortPruner",
    "EpsilonSoftmaxLoss",
    "Expansion",
    "FocalLoss",
    "GLOSampler",
    "GeneralizedCrossEntropyLoss",
    "JointAsymmetricLoss",
    "LabelDistributionallyRobustLoss",
    "LabelSmoothingLoss",
    "LogitClipLoss",
    "NormalizedAsymmetricLoss",
    "NormalizedReverseCrossEntropyLoss",
    "PolyLoss",
    "SearchResult",
    "SymmetricCrossEntropyLoss",
    "TaylorCrossEntropyLoss",
    "TaylorGLOSampler",
    "TaylorLoss",
    "TreeLoss",
    "compare",
    "describe",
    "load_loss",
    "run_worker",
    "search",
    "taylor_loss",
    "trainer_loss",
    "tune_learning_rate",
]
