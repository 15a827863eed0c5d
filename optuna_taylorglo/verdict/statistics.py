"""Is one loss better than another? Samples of accuracies and what they allow to say."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any, Literal

import numpy as np
import scipy
from pydantic import BeforeValidator

from optuna_taylorglo.errors import OperationError
from optuna_taylorglo.recipes.schema import Recipe


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


def is_accuracy(metric: str, mode: str) -> bool:
    """Whether a metric is a share of right answers, so that guessing comes to 1/n."""
    return mode == "max" and "accuracy" in metric.lower()


def value_of_divergence(
    values: Sequence[float | None], recipe: Recipe, n_classes: int | None
) -> float:
    """What each diverged training among some counts as.

    Args:
        values: What the trainings reached; None for those that diverged.
        recipe: Their recipe.
        n_classes: Number of classes; None if unknown.

    Raises:
        OperationError: If all diverged, so that there is nothing to compare.
    """
    fitness = recipe.fitness
    reached = [value for value in values if value is not None]
    if not reached:
        raise OperationError(
            f"all {len(values)} trainings diverged, the evolved loss's and the others': there is "
            "nothing to compare. A smaller learning rate may help."
        )
    guessing = [1 / n_classes] if n_classes and is_accuracy(fitness.metric, fitness.mode) else []
    return min([*reached, *guessing], key=lambda value: fitness.sign * value)


# JSON has no NaN: what does not exist is null there.
MaybeNan = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]


_ALTERNATIVES: dict[int, Literal["greater", "less"]] = {1: "greater", -1: "less"}

_ROUNDING = 1e-12
"""Differences that differ by less, in terms of the values, differ by rounding only."""

SIGNIFICANT = 0.05
"""Corrected p-values below it are significant."""


class Role(StrEnum):
    """What a loss is in a comparison for."""

    EVOLVED = "evolved"
    """The loss that is claimed to be better."""
    REFERENCE = "reference"
    """Cross-entropy as it is."""
    BASELINE = "baseline"
    """Something else that one would take instead."""
    SHAPE_CONTROL = "shape control"
    """The evolved loss with cross-entropy's first gradient: what is left is shape."""
    SCALE_CONTROL = "scale control"
    """Cross-entropy with the evolved loss's first gradient: what it gains is scale."""

    @property
    def is_baseline(self) -> bool:
        """Whether the evolved loss has to beat it."""
        return self in (Role.REFERENCE, Role.BASELINE)


@dataclass(frozen=True)
class Sample:
    """Accuracies of one loss, one value per training.

    Attributes:
        name: Short name, as on the command line.
        label: Name for people.
        role: What it is in the comparison for.
        values: Accuracies of all trainings, in the order of their seeds.
        failed: Of verdicts of earlier versions: trainings that are not in the values, because they
            diverged or crashed.
        diverged: Places of the trainings that diverged; what they count as is in the values.
        also: Names of other losses whose trainings are the very same.
        keys: Keys of its trainings in the evaluation study; none in verdicts of earlier versions.
    """

    name: str
    label: str
    role: Role
    values: tuple[float, ...]
    failed: int = 0
    diverged: tuple[int, ...] = ()
    also: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()

    @property
    def mean(self) -> float:
        """Mean; NaN for no values."""
        return statistics.fmean(self.values) if self.values else math.nan

    @property
    def std(self) -> float:
        """Sample standard deviation (n - 1); NaN for fewer than two values."""
        return statistics.stdev(self.values) if len(self.values) > 1 else math.nan


@dataclass(frozen=True)
class Contrast:
    """A loss against another one.

    Attributes:
        against: Name of the other sample.
        difference: Difference of the means.
        low: Lower end of the 95 % confidence interval of the difference.
        high: Its upper end.
        p_value: Of the one-tailed test that the first is better.
        p_holm: The same after Holm's correction for all contrasts made together.
        effect_size: Hedges' g of the two samples: the difference in pooled standard deviations
            over seeds, corrected for size; also where the test is paired, so that it means the
            same everywhere.
    """

    against: str
    difference: MaybeNan
    low: MaybeNan
    high: MaybeNan
    p_value: MaybeNan
    p_holm: MaybeNan
    effect_size: MaybeNan


@dataclass(frozen=True)
class Verdict:
    """What full trainings say about an evolved loss.

    Attributes:
        samples: The evolved loss first, then what it was compared with, then the controls.
        contrasts: The evolved loss against each of the others.
        text: What follows, in words: is it better, and how much of that is scale or shape.
        test_metric: The metric that the values are of.
        trial: Number of the trial whose loss it is about; None for the mean of the final
            distribution, and in verdicts of earlier versions that did not say.
        test: Student's t-test on differences, paired by seed, or Welch's, which earlier versions
            made.
        mode: Whether greater or smaller values are better.
        divergence: What a training that diverged counts as; None if none did.
        loss: Settings of the evolved loss; None in verdicts of earlier versions.
    """

    samples: tuple[Sample, ...]
    contrasts: tuple[Contrast, ...]
    text: str
    test_metric: str
    trial: int | None = None
    test: Literal["paired", "welch"] = "welch"
    mode: Literal["max", "min"] = "max"
    divergence: float | None = None
    loss: dict[str, Any] | None = None

    def beats(self, name: str) -> bool:
        """Whether the evolved loss is significantly better than another, at 5 %."""
        sign = 1 if self.mode == "max" else -1
        return any(
            c.p_holm < SIGNIFICANT and sign * c.difference > 0
            for c in self.contrasts
            if c.against == name
        )


def welch_from_moments(
    mean_a: float, std_a: float, n_a: int, mean_b: float, std_b: float, n_b: int
) -> float:
    """p-value of the one-tailed Welch test that a is better, as in the paper's Table 1."""
    result = scipy.stats.ttest_ind_from_stats(
        mean_a, std_a, n_a, mean_b, std_b, n_b, equal_var=False, alternative="greater"
    )
    return float(result.pvalue)


def contrasts(
    winner: Sample, others: Sequence[Sample], *, paired: bool = False, sign: int = 1
) -> tuple[Contrast, ...]:
    """Compare a sample with each of several others.

    Args:
        winner: The sample that is claimed to be better.
        others: What it is compared with; those with fewer than two values are left out, as
            nothing can be said about their spread.
        paired: Whether values at the same place share a seed: weights, order of data and
            augmentation. Then differences are tested, else the samples by Welch's test.
        sign: 1 where greater is better, -1 where smaller is.

    Returns:
        A contrast for each, their p-values corrected together by Holm's method.

    Raises:
        ValueError: If samples that are paired have different numbers of values.
    """
    if len(winner.values) < 2:
        return ()
    comparable = [other for other in others if len(other.values) > 1]
    compare = _paired_contrast if paired else _welch_contrast
    raw = [compare(winner, other, sign) for other in comparable]
    corrected = holm([contrast.p_value for contrast in raw])
    return tuple(replace(c, p_holm=p) for c, p in zip(raw, corrected, strict=True))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction, in the order of the input.

    The i-th smallest of m p-values is multiplied by m - i, and none may fall below the one before
    it or exceed 1 (S. Holm, 1979).
    """
    order = np.argsort(p_values, kind="stable")
    factors = np.arange(len(p_values), 0, -1)
    stepped = np.maximum.accumulate(np.asarray(p_values, dtype=float)[order] * factors)
    corrected = np.empty(len(p_values))
    corrected[order] = np.minimum(stepped, 1.0)
    return [float(p) for p in corrected]


def _paired_contrast(winner: Sample, other: Sample, sign: int) -> Contrast:
    differences = [a - b for a, b in zip(winner.values, other.values, strict=True)]
    if np.ptp(differences) <= _ROUNDING * max(map(abs, (*winner.values, *other.values))):
        # No spread: t is undefined. If neither loss were better, each difference would have the
        # other sign as often, and all would have this one with probability 2 ** -n.
        difference = winner.mean - other.mean
        p = 0.5 ** len(differences) if sign * differences[0] > 0 else 1.0
        g = _hedges_g(winner, other)
        return Contrast(other.name, difference, difference, difference, p, p, g)
    result = scipy.stats.ttest_rel(winner.values, other.values, alternative=_ALTERNATIVES[sign])
    interval = scipy.stats.ttest_rel(winner.values, other.values).confidence_interval(0.95)
    return _contrast(winner, other, float(result.pvalue), interval.low, interval.high)


def _welch_contrast(winner: Sample, other: Sample, sign: int) -> Contrast:
    if winner.std == 0 and other.std == 0:
        # No spread at all: the test is undefined, the difference is what it is.
        difference = winner.mean - other.mean
        p = 0.0 if sign * difference > 0 else 1.0
        return Contrast(other.name, difference, difference, difference, p, p, math.nan)
    one_tailed = scipy.stats.ttest_ind(
        winner.values, other.values, equal_var=False, alternative=_ALTERNATIVES[sign]
    )
    two_tailed = scipy.stats.ttest_ind(winner.values, other.values, equal_var=False)
    interval = two_tailed.confidence_interval(0.95)
    return _contrast(winner, other, float(one_tailed.pvalue), interval.low, interval.high)


def _contrast(winner: Sample, other: Sample, p: float, low: float, high: float) -> Contrast:
    difference, g = winner.mean - other.mean, _hedges_g(winner, other)
    return Contrast(other.name, difference, float(low), float(high), p, p, g)


def _hedges_g(a: Sample, b: Sample) -> float:
    """Hedges' g with the usual approximation of its small-sample factor, 1 - 3 / (4 df - 1)."""
    n_a, n_b = len(a.values), len(b.values)
    df = n_a + n_b - 2
    pooled = math.sqrt(((n_a - 1) * a.std**2 + (n_b - 1) * b.std**2) / df)
    return (a.mean - b.mean) / pooled * (1 - 3 / (4 * df - 1)) if pooled else math.nan
