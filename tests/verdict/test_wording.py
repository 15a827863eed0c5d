"""What a verdict says in sentences."""

from verdicts import sample, verdict_of

from optuna_taylorglo.verdict.statistics import Verdict, contrasts
from optuna_taylorglo.verdict.wording import verdict_in_words


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
