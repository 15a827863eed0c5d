"""Statistics of the verdict, against scipy and statsmodels."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.weightstats import DescrStatsW
from verdicts import sample

from optuna_taylorglo.verdict.statistics import Role, Verdict, contrasts, holm, rank_correlation

A = sample("a", "a", (0.9912, 0.9931, 0.9925, 0.9940, 0.9918, 0.9922, 0.9936, 0.9929))
B = sample("b", "b", (0.9899, 0.9921, 0.9908, 0.9915, 0.9894, 0.9917, 0.9903, 0.9925))
C = sample("c", "c", (0.9925, 0.9941, 0.9910, 0.9932, 0.9931, 0.9920, 0.9918, 0.9940))


def test_a_contrast_is_a_test_of_the_differences():
    a, b = A.values, B.values
    (contrast,) = contrasts(A, [B])
    differences = DescrStatsW(np.subtract(a, b))
    _, p, _ = differences.ttest_mean(alternative="larger")
    assert contrast.p_value == pytest.approx(p, rel=1e-9)
    assert contrast.p_value == pytest.approx(stats.ttest_rel(a, b, alternative="greater").pvalue)
    assert contrast.p_holm == contrast.p_value
    assert (contrast.low, contrast.high) == pytest.approx(differences.tconfint_mean(), rel=1e-9)
    assert contrast.difference == pytest.approx(np.mean(a) - np.mean(b))
    pooled = math.sqrt((np.var(a, ddof=1) + np.var(b, ddof=1)) / 2)
    assert contrast.effect_size == pytest.approx(contrast.difference / pooled * (1 - 3 / 55))
    with pytest.raises(ValueError, match="shape"):
        contrasts(A, [sample("b", "b", b[:7])])


def test_where_smaller_is_better_the_test_looks_the_other_way():
    (greater,), (smaller,) = contrasts(A, [B]), contrasts(A, [B], sign=-1)
    assert smaller.p_value == pytest.approx(1 - greater.p_value)
    assert (smaller.difference, smaller.low) == (greater.difference, greater.low)
    verdict = Verdict((B, A), contrasts(B, [A], sign=-1), "", "test_loss")
    assert dataclasses.replace(verdict, mode="min").beats("a")
    assert not verdict.beats("a")


@pytest.mark.parametrize(("sign", "p"), [(1, 1 / 8), (-1, 1.0)])
def test_equal_differences_are_as_unlikely_as_equal_tosses_of_a_coin(sign, p):
    """Equal differences of a few seeds are no certainty."""
    a, b = sample("a", "a", [0.3, 0.4, 0.6]), sample("b", "b", [0.2, 0.3, 0.5])
    (contrast,) = contrasts(a, [b], sign=sign)
    assert contrast.p_value == p
    assert (contrast.low, contrast.high) == pytest.approx((0.1, 0.1))
    (same,) = contrasts(a, [a])
    assert (same.p_value, same.difference) == (1.0, 0.0)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_loss_is_worse_where_the_whole_interval_is_on_the_wrong_side(sign):
    def standing(*differences):
        other = sample("ce", "ce", [0.5] * len(differences))
        mine = sample("winner", "winner", [0.5 + sign * d for d in differences])
        mode = "max" if sign == 1 else "min"
        tested = contrasts(mine, [other], sign=sign)
        return Verdict((mine, other), tested, "", "test_metric", mode=mode).standing("ce")

    assert standing(0.04, 0.05, 0.06) == "better"
    assert standing(-0.04, -0.05, -0.06) == "worse"
    assert standing(-0.01, -0.05, -0.06) == "level"
    # Equal differences of three seeds prove nothing, those of five do.
    assert standing(*[-0.25] * 3) == "level"
    assert standing(*[-0.25] * 5) == "worse"


def test_the_hardest_baseline_has_the_best_mean_and_is_no_control():
    reference = sample("ce", "ce", B.values)
    control = sample("ce-scaled", "ce-scaled", C.values)
    winner = dataclasses.replace(A, role=Role.EVOLVED)
    tested = contrasts(winner, [reference, control])
    verdict = Verdict((winner, reference, control), tested, "", "test_metric")
    assert verdict.hardest is reference
    smaller = dataclasses.replace(verdict, samples=(control, A, B), mode="min")
    assert smaller.hardest is B
    assert dataclasses.replace(verdict, samples=(control,)).hardest is None
    with pytest.raises(ValueError, match="name must be one of ce, ce-scaled, not 'c'"):
        verdict.standing("c")


def test_holm_equals_statsmodels():
    p_values = [0.04, 0.001, 0.03, 0.0005, 0.8, 0.03]
    _, expected, _, _ = multipletests(p_values, method="holm")
    assert holm(p_values) == pytest.approx(list(expected))
    assert holm([]) == []
    found = contrasts(A, [B, C])
    assert [c.against for c in found] == ["b", "c"]
    assert [c.p_holm for c in found] == holm([c.p_value for c in found])


def test_a_rank_correlation_is_scipys_and_ranks_diverged_trainings_lowest():
    a, b = np.random.default_rng(0).integers(0, 6, (2, 20)).tolist()
    assert rank_correlation(a, b).value == pytest.approx(stats.spearmanr(a, b).statistic)
    assert rank_correlation([-math.inf, 0.5, 0.8, 0.9], range(4)).value == pytest.approx(1)
    # A few in the very same order prove little.
    assert rank_correlation(range(5), range(5)).low < 0.9
    assert rank_correlation(range(5), range(5)[::-1]).high > -0.9


@pytest.mark.parametrize(("a", "b"), [([], []), (range(3), range(3)), ([0.1] * 5, range(5))])
def test_few_pairs_or_no_order_have_no_correlation(a, b):
    assert all(map(math.isnan, rank_correlation(a, b)))


def test_the_interval_of_a_correlation_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(1)
    r = 0.6
    truth = 6 / math.pi * math.asin(r / 2)  # Spearman's of a normal distribution
    covered = 0
    for _ in range(1000):
        a = rng.normal(size=15)
        _, low, high = rank_correlation(a, r * a + math.sqrt(1 - r**2) * rng.normal(size=15))
        covered += low <= truth <= high
    assert 920 <= covered <= 980
