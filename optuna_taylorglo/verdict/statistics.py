"""Is one loss better than another? Samples of test results and what they allow to say."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import scipy
from pydantic import BeforeValidator

SIGNIFICANT = 0.05  # corrected p-values below it are significant
_ROUNDING = 1e-12  # relative spread of differences up to which they count as equal

# A number that may be NaN, which JSON does not have: it is null there.
NaNFloat = Annotated[float, BeforeValidator(lambda x: math.nan if x is None else x)]


class Role(StrEnum):
    """Why a loss is part of a comparison."""

    EVOLVED = "evolved"  # claimed to be better
    REFERENCE = "reference"  # cross-entropy as it is
    BASELINE = "baseline"  # what one would take instead
    # Where scale does not act, the learning rate takes the first gradient's place.
    SHAPE_CONTROL = "shape control"  # the evolved loss with cross-entropy's first gradient
    SCALE_CONTROL = "scale control"  # cross-entropy with the evolved loss's first gradient

    @property
    def is_baseline(self) -> bool:
        """Whether the evolved loss has to beat it."""
        return self in (Role.REFERENCE, Role.BASELINE)


class Standing(StrEnum):
    """What a verdict says of the evolved loss against another one."""

    BETTER = "better"  # by the one-tailed t-test at 5 %, corrected by Holm's method
    LEVEL = "level"  # neither better nor worse
    WORSE = "worse"  # the whole 95 % interval of the difference lies on the wrong side


class Lead(NamedTuple):
    """How much better the evolved loss is, negative if worse, with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Sample:
    """Test results of one loss, in the order of the seeds."""

    name: str
    label: str
    role: Role
    values: tuple[float, ...]
    diverged: tuple[int, ...] = ()  # indices of trainings; `values` has what they count as
    also: tuple[str, ...] = ()  # names of other losses whose trainings are the very same
    keys: tuple[str, ...] = ()  # of the trainings in the evaluation study

    @property
    def mean(self) -> float:
        """Mean of the values."""
        return statistics.fmean(self.values)

    @property
    def std(self) -> float:
        """Sample standard deviation (n - 1); NaN for a single value."""
        return statistics.stdev(self.values) if len(self.values) > 1 else math.nan


@dataclass(frozen=True)
class Contrast:
    """The evolved loss against another one."""

    against: str
    difference: float  # of the means, with the 95 % confidence interval `low` to `high`
    low: float
    high: float
    p_value: float  # of the one-tailed test that the evolved loss is better
    p_holm: float  # after Holm's correction for all contrasts made together
    effect_size: NaNFloat  # Hedges' g; NaN without any spread


@dataclass(frozen=True)
class Verdict:
    """What full trainings say about an evolved loss."""

    samples: tuple[Sample, ...]  # the evolved loss, the baselines and the controls
    contrasts: tuple[Contrast, ...]  # the evolved loss against each of the others, paired by seed
    text: str
    test_metric: str
    trial: int | None = None  # of the evolved loss; None for the mean of the final distribution
    mode: Literal["max", "min"] = "max"
    divergence: float | None = None  # what a training that diverged counts as, if one did
    loss: dict[str, Any] | None = None  # settings of the evolved loss
    scale_acts: bool = True  # False where the optimizer undoes the scale of a loss

    @property
    def sign(self) -> int:
        """1 where greater values are better, -1 where smaller ones are."""
        return 1 if self.mode == "max" else -1

    @property
    def baselines(self) -> list[Sample]:
        """The losses that the evolved loss has to beat, the hardest first."""
        found = [sample for sample in self.samples if sample.role.is_baseline]
        return sorted(found, key=lambda sample: -self.sign * sample.mean)

    @property
    def hardest(self) -> Sample | None:
        """The baseline with the best mean; None if there is no baseline."""
        return next(iter(self.baselines), None)

    def lead(self, name: str) -> Lead:
        """How much better the evolved loss is than another, whichever way is better."""
        contrast = self._contrast(name)
        low, high = sorted((self.sign * contrast.low, self.sign * contrast.high))
        return Lead(self.sign * contrast.difference, low, high)

    def standing(self, name: str) -> Standing:
        """Whether the evolved loss is better than another, level with it, or worse."""
        lead = self.lead(name)
        if lead.low > 0 and self._contrast(name).p_holm < SIGNIFICANT:
            return Standing.BETTER
        # Without spread the interval has no width; the sign test takes its place.
        n = len(self.samples[0].values)
        is_sure = lead.low < lead.high or 0.5**n < SIGNIFICANT
        return Standing.WORSE if lead.high < 0 and is_sure else Standing.LEVEL

    def beats(self, name: str) -> bool:
        """Whether the evolved loss is significantly better than another, at 5 %."""
        return self.standing(name) == Standing.BETTER

    def _contrast(self, name: str) -> Contrast:
        found = {contrast.against: contrast for contrast in self.contrasts}
        if name not in found:
            raise ValueError(f"name must be one of {', '.join(found)}, not {name!r}.")
        return found[name]


def contrasts(winner: Sample, others: Sequence[Sample], *, sign: int = 1) -> tuple[Contrast, ...]:
    """Compare a sample with others, paired by index, by t-tests that are corrected together."""
    raw = [_contrast(winner, other, sign) for other in others]
    corrected = holm([contrast.p_value for contrast in raw])
    return tuple(replace(c, p_holm=p) for c, p in zip(raw, corrected, strict=True))


def _contrast(winner: Sample, other: Sample, sign: int) -> Contrast:
    differences = np.subtract(winner.values, other.values)
    low = high = difference = winner.mean - other.mean
    if np.ptp(differences) <= _ROUNDING * max(map(abs, (*winner.values, *other.values))):
        # Without spread, t is undefined. By the sign test, if neither loss were better, all
        # differences would have this sign with probability 2 ** -n.
        p = 0.5 ** len(differences) if sign * differences[0] > 0 else 1.0
    else:
        alternative = "greater" if sign > 0 else "less"
        p = scipy.stats.ttest_rel(winner.values, other.values, alternative=alternative).pvalue
        two_tailed = scipy.stats.ttest_rel(winner.values, other.values)
        low, high = map(float, two_tailed.confidence_interval(0.95))
    return Contrast(other.name, difference, low, high, float(p), float(p), _hedges_g(winner, other))


def _hedges_g(a: Sample, b: Sample) -> float:
    """Hedges' g with the usual approximation of its small-sample factor, 1 - 3 / (4 df - 1)."""
    n_a, n_b = len(a.values), len(b.values)
    df = n_a + n_b - 2
    pooled = math.sqrt(((n_a - 1) * a.std**2 + (n_b - 1) * b.std**2) / df)
    return (a.mean - b.mean) / pooled * (1 - 3 / (4 * df - 1)) if pooled else math.nan


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction (S. Holm, 1979), in the order of the input.

    The i-th smallest of m p-values is multiplied by m - i, and none may fall below the one before
    it or exceed 1.
    """
    order = np.argsort(p_values, kind="stable")
    stepped = np.asarray(p_values, dtype=float)[order] * np.arange(len(p_values), 0, -1)
    corrected = np.empty(len(p_values))
    corrected[order] = np.minimum(np.maximum.accumulate(stepped), 1.0)
    return [float(p) for p in corrected]


def is_accuracy(metric: str, mode: str) -> bool:
    """Whether a metric is a share of right answers, so that guessing gives 1/n."""
    return mode == "max" and "accuracy" in metric.lower()


class RankCorrelation(NamedTuple):
    """Spearman's rank correlation with the ends of its 95 % confidence interval, or NaN."""

    value: float
    low: float
    high: float


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> RankCorrelation:
    """Spearman's rank correlation of pairs; NaN for fewer than four, or without any order.

    The interval is Fisher's z with the variance (1 + r²/2) / (n − 3) (D. G. Bonett and T. A.
    Wright, "Sample size requirements for estimating Pearson, Kendall and Spearman correlations",
    Psychometrika 65, 2000).
    """
    n = len(a)
    if n < 4 or len(set(a)) == 1 or len(set(b)) == 1:
        return RankCorrelation(math.nan, math.nan, math.nan)
    r = float(scipy.stats.spearmanr(a, b).statistic)
    # The same order has no z. It counts as half a step short of 1; a step swaps two neighbors.
    greatest = 1 - 6 / (n * (n**2 - 1))
    z = math.atanh(max(-greatest, min(r, greatest)))
    width = 1.96 * math.sqrt((1 + r**2 / 2) / (n - 3))
    return RankCorrelation(r, math.tanh(z - width), math.tanh(z + width))
