"""Is one loss better than another? Samples of accuracies and what they allow to say."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import numpy as np
from pydantic import BeforeValidator
from scipy import stats

# JSON has no NaN: what does not exist is null there.
MaybeNan = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]


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
    def is_opponent(self) -> bool:
        """Whether the evolved loss has to beat it."""
        return self in (Role.REFERENCE, Role.BASELINE)


@dataclass(frozen=True)
class Sample:
    """Accuracies of one loss, one value per training.

    Attributes:
        name: Short name, as on the command line.
        label: Name for people.
        role: What it is in the comparison for.
        values: Accuracies of the trainings that came to an end.
        failed: Trainings that did not: diverged or crashed for good.
    """

    name: str
    label: str
    role: Role
    values: tuple[float, ...]
    failed: int = 0

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
        p_value: Of the one-tailed Welch test that the first is better.
        p_holm: The same after Holm's correction for all contrasts made together.
        effect_size: Hedges' g: the difference in pooled standard deviations, corrected for size.
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
        generations: Generations that the search had, which may have got more since; None in
            verdicts of earlier versions.
    """

    samples: tuple[Sample, ...]
    contrasts: tuple[Contrast, ...]
    text: str
    test_metric: str
    trial: int | None = None
    generations: int | None = None


def welch_from_moments(
    mean_a: float, std_a: float, n_a: int, mean_b: float, std_b: float, n_b: int
) -> float:
    """p-value of the one-tailed Welch test that a is better, as in the paper's Table 1."""
    result = stats.ttest_ind_from_stats(
        mean_a, std_a, n_a, mean_b, std_b, n_b, equal_var=False, alternative="greater"
    )
    return float(result.pvalue)


def contrasts(winner: Sample, others: Sequence[Sample]) -> tuple[Contrast, ...]:
    """Compare a sample with each of several others.

    Args:
        winner: The sample that is claimed to be better.
        others: What it is compared with; those with fewer than two values are left out, as
            nothing can be said about their spread.

    Returns:
        A contrast for each, their p-values corrected together by Holm's method.
    """
    if len(winner.values) < 2:
        return ()
    comparable = [other for other in others if len(other.values) > 1]
    raw = [_contrast(winner, other) for other in comparable]
    corrected = holm([contrast.p_value for contrast in raw])
    return tuple(
        Contrast(c.against, c.difference, c.low, c.high, c.p_value, p, c.effect_size)
        for c, p in zip(raw, corrected, strict=True)
    )


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


def _contrast(winner: Sample, other: Sample) -> Contrast:
    if winner.std == 0 and other.std == 0:
        # No spread at all: the test is undefined, the difference is what it is.
        difference = winner.mean - other.mean
        p = 0.0 if difference > 0 else 1.0
        return Contrast(other.name, difference, difference, difference, p, p, math.nan)
    one_tailed = stats.ttest_ind(
        winner.values, other.values, equal_var=False, alternative="greater"
    )
    two_tailed = stats.ttest_ind(winner.values, other.values, equal_var=False)
    interval = two_tailed.confidence_interval(0.95)
    p = float(one_tailed.pvalue)
    return Contrast(
        other.name,
        winner.mean - other.mean,
        float(interval.low),
        float(interval.high),
        p,
        p,
        _hedges_g(winner, other),
    )


def _hedges_g(a: Sample, b: Sample) -> float:
    """Hedges' g with the usual approximation of its small-sample factor, 1 - 3 / (4 df - 1)."""
    n_a, n_b = len(a.values), len(b.values)
    df = n_a + n_b - 2
    pooled = math.sqrt(((n_a - 1) * a.std**2 + (n_b - 1) * b.std**2) / df)
    return (a.mean - b.mean) / pooled * (1 - 3 / (4 * df - 1))
