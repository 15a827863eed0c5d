"""What a verdict says in sentences."""

import dataclasses

from verdicts import sample, verdict_of

from optuna_taylorglo.verdict.output import verdict_in_words
from optuna_taylorglo.verdict.statistics import Verdict, contrasts


def test_the_words_tell_scale_from_shape():
    text = verdict_in_words(verdict_of(winner=0.95, ce=0.90, ce_tuned=0.95, ce_scaled=0.94), 10)
    assert "significantly better than cross-entropy, but not than tuned cross-entropy" in text
    assert (
        "+0.0500 to cross-entropy, +0.0400 is what cross-entropy gains from the same scale" in text
    )
    assert "+0.0100 is left for the shape" in text
    assert "better than every baseline" in verdict_in_words(verdict_of(winner=0.95, ce=0.90), 10)
    assert "not significantly better than any baseline" in verdict_in_words(
        verdict_of(winner=0.90, ce=0.95), 10
    )


def test_no_difference_is_not_minus_nothing():
    text = verdict_in_words(verdict_of(winner=0.95, ce=0.90, ce_scaled=0.90 - 1e-9), 10)
    assert "+0.0000 is what cross-entropy gains" in text


def test_the_words_name_trainings_that_only_guessed():
    samples = (
        sample("winner", "evolved loss", (0.98, 0.1, 0.99)),
        sample("ce", "cross-entropy", (0.97, 0.98, 0.96)),
    )
    text = verdict_in_words(
        Verdict(samples, contrasts(samples[0], samples[1:]), "", "test_accuracy"), 10
    )
    assert "did not get beyond guessing (below 0.15)" in text
    assert "1 of 3 of evolved loss." in text


def test_the_words_name_the_test():
    verdict = verdict_of(winner=0.95, ce=0.90)
    assert "One-tailed Welch tests" in verdict_in_words(verdict, 10)
    paired = dataclasses.replace(verdict, test="paired")
    assert "One-tailed t-tests at 5 %, paired by seed, corrected by" in verdict_in_words(paired, 10)


def test_the_words_state_what_a_diverged_training_counts_as():
    verdict = verdict_of(winner=0.95, ce=0.90)
    unlucky = dataclasses.replace(verdict.samples[0], values=(0.95, 0.1, 0.1), diverged=(1, 2))
    verdict = dataclasses.replace(verdict, samples=(unlucky, verdict.samples[1]), divergence=0.1)
    text = verdict_in_words(verdict, 10)
    assert "Trainings that diverged: 2 of 3 of evolved loss." in text
    assert "counts as 0.1000, guessing among 10 classes, in means" in text
    assert "did not get beyond guessing" not in text
    worst = verdict_in_words(dataclasses.replace(verdict, test_metric="test_f1"), 10)
    assert "counts as 0.1000, the worst that any training here reached" in worst


def test_where_smaller_is_better_the_words_say_so():
    verdict = verdict_of(winner=0.10, ce=0.20)
    assert "not significantly better" in verdict_in_words(verdict, 10)
    samples = verdict.samples
    tested = contrasts(samples[0], samples[1:], sign=-1)
    verdict = dataclasses.replace(verdict, contrasts=tested, test_metric="test_loss", mode="min")
    text = verdict_in_words(verdict, 10)
    assert "significantly better than every baseline" in text
    assert "Smaller test_loss is better" in text
    assert "guessing" not in text  # a loss of 0.1 is no accuracy of 0.1
