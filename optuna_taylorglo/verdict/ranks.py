"""Do two ways to measure candidates put them in the same order?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy


@dataclass(frozen=True)
class RankCorrelation:
    """Spearman's rank correlation.

    Attributes:
        value: The correlation; NaN if one side has no order at all.
        low: Lower end of its 95 % confidence interval; NaN for fewer than four pairs.
        high: Its upper end.
        n: Number of pairs.
    """

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.value:.2f} (95 % interval {self.low:.2f} to {self.high:.2f}, n = {self.n})"


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> RankCorrelation:
    """Spearman's rank correlation of pairs, with an interval.

    The interval is Fisher's z with the variance (1 + r²/2) / (n − 3) (D. G. Bonett and T. A.
    Wright, "Sample size requirements for estimating Pearson, Kendall and Spearman correlations",
    Psychometrika 65, 2000).
    """
    r, n = spearman(a, b), len(a)
    if n < 4 or math.isnan(r):
        return RankCorrelation(r, math.nan, math.nan, n)
    # The same order has no z: take it for half a step short of that, a swap of two neighbors
    # being a whole one.
    greatest = 1 - 6 / (n * (n**2 - 1))
    z = math.atanh(max(-greatest, min(r, greatest)))
    width = 1.96 * math.sqrt((1 + r**2 / 2) / (n - 3))
    return RankCorrelation(r, math.tanh(z - width), math.tanh(z + width), n)


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Correlation of the ranks, equal values sharing theirs; NaN if all on one side are equal."""
    ranks = [scipy.stats.rankdata(side) for side in (a, b)]
    if len(a) < 2 or any(np.ptp(side) == 0 for side in ranks):
        return math.nan
    # A number such as 0.9999999999999998 is a rounded 1.
    return float(np.round(np.corrcoef(*ranks)[0, 1], 12))
