"""Rank correlations: those of scipy, with an interval that covers the truth."""

import math

import numpy as np
import pytest
from scipy import stats

from optuna_taylorglo.verdict.statistics import rank_correlation, spearman


def test_the_value_is_scipys() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 6, (2, 20)).tolist()
    assert spearman(a, b) == pytest.approx(stats.spearmanr(a, b).statistic)


def test_failed_trainings_have_the_lowest_rank() -> None:
    assert spearman([-math.inf, 0.5, 0.9], [0.1, 0.2, 0.3]) == 1.0


@pytest.mark.parametrize("n", [0, 1, 3])
def test_few_pairs_have_no_interval(n: int) -> None:
    found = rank_correlation(range(n), range(n))
    assert found.n == n
    assert math.isnan(found.low)


def test_without_an_order_there_is_no_correlation() -> None:
    assert math.isnan(rank_correlation([0.1] * 5, range(5)).value)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    r = 0.6
    truth = 6 / math.pi * math.asin(r / 2)  # Spearman's of a normal distribution
    covered = 0
    for _ in range(1000):
        a = rng.normal(size=15)
        found = rank_correlation(a, r * a + math.sqrt(1 - r**2) * rng.normal(size=15))
        covered += found.low <= truth <= found.high
    assert 920 <= covered <= 980


def test_the_very_same_order_of_a_few_proves_little() -> None:
    found = rank_correlation(range(5), range(5))
    assert found.value == 1.0
    assert found.low < 0.9
    assert rank_correlation(range(5), range(5)[::-1]).high > -0.9
