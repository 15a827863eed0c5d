"""Standard losses with the one parameter that is tuned, and names of all that `evaluate` knows.

Plain values: the command line names them without waiting for torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Family:
    """A standard loss and the values that its parameter may take.

    Where a loss has two weights, the ratio is the parameter: their scale is a learning rate.

    Attributes:
        label: Name for people, with a place for the parameter.
        kind: Kind of `ComparedLoss`.
        parameter: The setting that is tuned.
        grid: Values for a small grid.
        low: Least value for a search; of whole numbers an int.
        high: Greatest value.
        log: Whether the search is over the logarithm.
    """

    label: str
    kind: str
    parameter: str
    grid: tuple[float, ...]
    low: float
    high: float
    log: bool = False


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "label-smoothing": Family(
            "label smoothing {:.3g}",
            "cross-entropy",
            "label_smoothing",
            (0.05, 0.1, 0.2, 0.3),
            0.0,
            0.9,
        ),
        "focal": Family(
            "focal loss (gamma {:.3g})", "focal", "gamma", (0.5, 1.0, 2.0, 5.0), 0.0, 5.0
        ),
        "gce": Family(
            "generalized cross-entropy (q {:.3g})", "gce", "q", (0.3, 0.5, 0.7, 0.9), 0.05, 1.0
        ),
        "poly": Family(
            "PolyLoss-1 (epsilon {:.3g})", "poly", "epsilon", (1.0, 3.0, 10.0, 30.0), -1.0, 30.0
        ),
        "sce": Family(
            "symmetric cross-entropy (alpha {:.3g})",
            "sce",
            "alpha",
            (0.03, 0.1, 0.3, 1.0),
            0.01,
            10.0,
            log=True,
        ),
        "taylor-ce": Family(
            "Taylor cross-entropy (order {})", "taylor-ce", "order", (1, 2, 4, 8), 1, 32, log=True
        ),
        "nce-rce": Family(
            "normalized plus reverse cross-entropy (alpha {:.3g})",
            "nce-rce",
            "alpha",
            (0.3, 1.0, 10.0, 100.0),
            0.1,
            100.0,
            log=True,
        ),
    }
)

BASELINES = (
    "ce",
    "ce-tuned",
    "ce-smoothed",
    "baikal",
    "baikal-cma",
    *FAMILIES,
    "best-standard",
)
DEFAULT_BASELINES = ("ce", "ce-tuned", "label-smoothing", "best-standard")
