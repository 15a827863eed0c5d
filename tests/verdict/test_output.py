"""A verdict in words, in files and in its study."""

import dataclasses
import json
import math

import optuna
import pytest
from drawn_studies import searched_study
from verdicts import sample, verdict_of

from optuna_taylorglo.attributes import EVALUATION_OF, VERDICT
from optuna_taylorglo.errors import StudyError
from optuna_taylorglo.recipes.load import settled_recipe
from optuna_taylorglo.verdict import output
from optuna_taylorglo.verdict.selection import Finalist, SelectedLoss, Selection, selected_loss
from optuna_taylorglo.verdict.statistics import Verdict, contrasts

GOOD = verdict_of(winner=0.95, ce=0.90)


def words(verdict):
    return output.verdict_in_words(verdict, 10)


def plain(verdict):
    return json.loads(json.dumps(output.to_json(verdict), allow_nan=False))


def test_every_form_of_a_verdict_says_the_same(tmp_path):
    written = output.write_verdict(GOOD, tmp_path / "verdict")
    assert [path.name for path in written] == ["verdict.md", "verdict.csv", "verdict.json"]
    assert written[0].read_text() == output.to_markdown(GOOD)
    assert written[1].read_text() == output.to_csv(GOOD)
    assert output.from_json(json.loads(written[2].read_text())) == GOOD
    assert output.rows(GOOD)[1][5] == "+0.0500"
    assert "| cross-entropy | 0.9000 | 0.0010 | 3 | 0 | +0.0500 |" in output.to_markdown(GOOD)
    assert output.to_csv(GOOD).splitlines()[:2] == [
        "name,loss,training,test_accuracy,outcome",
        "winner,evolved loss,0,0.949,trained",
    ]

    samples = (sample("winner", "evolved loss", (0.9, 0.9)), sample("ce", "c", (0.8, 0.8)))
    verdict = Verdict(samples, contrasts(samples[0], samples[1:]), "", "test_accuracy", 3)
    assert math.isnan(verdict.contrasts[0].effect_size)
    assert plain(verdict)["contrasts"][0]["effect_size"] is None
    assert math.isnan(output.from_json(plain(verdict)).contrasts[0].effect_size)


def test_trainings_that_diverged_are_marked():
    unlucky = dataclasses.replace(GOOD.samples[0], values=(0.95, 0.1, 0.1), diverged=(1, 2))
    verdict = dataclasses.replace(GOOD, samples=(unlucky, GOOD.samples[1]), divergence=0.1)
    assert output.from_json(plain(verdict)) == verdict
    assert output.short_rows(verdict)[0][2] == "2 of 3 diverged"
    assert output.rows(verdict)[0][3:5] == ("3", "2 of 3 diverged")
    outcomes = [line.rsplit(",", 1)[1] for line in output.to_csv(verdict).splitlines()[1:]]
    assert outcomes == ["trained", *["diverged"] * 2, *["trained"] * 3]
    text = words(verdict)
    assert "Trainings that diverged: 2 of 3 of evolved loss." in text
    assert "counts as 0.1000, guessing among 10 classes, in means" in text
    assert "did not get beyond guessing" not in text
    guessed = dataclasses.replace(unlucky, diverged=())
    text = words(dataclasses.replace(verdict, samples=(guessed, GOOD.samples[1])))
    assert "(below 0.15), which lower the means and widen the intervals: 2 of 3 of evolved" in text
    worst = words(dataclasses.replace(verdict, test_metric="test_f1"))
    assert "counts as 0.1000, the worst that any training here reached" in worst


def test_a_verdict_knows_its_loss():
    chosen = selected_loss(searched_study())
    other = selected_loss(searched_study(search={"seed": 5}))
    number, settings = chosen.trial.number, chosen.loss.settings()
    verdict = dataclasses.replace(GOOD, trial=number, loss=settings)
    assert output.is_about(output.from_json(plain(verdict)), chosen)
    assert not output.is_about(dataclasses.replace(verdict, trial=number + 1), chosen)
    assert not output.is_about(dataclasses.replace(verdict, loss=other.loss.settings()), chosen)
    assert output.is_about(
        dataclasses.replace(verdict, trial=None), SelectedLoss(chosen.loss, None)
    )


def test_a_verdict_of_another_version_is_refused_with_what_to_type():
    evaluation_study = optuna.create_study(direction="maximize")
    evaluation_study.set_user_attr(EVALUATION_OF, "mine")
    assert output.load_verdict(evaluation_study) is None
    output.save_verdict(evaluation_study, GOOD)
    assert output.load_verdict(evaluation_study) == GOOD
    for change in ({"role": "king"}, {"values": ["many"]}):
        content = output.to_json(GOOD)
        content["samples"][0] |= change
        evaluation_study.set_user_attr(VERDICT, content)
        with pytest.raises(StudyError, match="taylorglo evaluate mine"):
            output.load_verdict(evaluation_study)


def test_the_words_tell_scale_from_shape():
    text = words(verdict_of(winner=0.95, ce=0.90, ce_tuned=0.95, ce_scaled=0.94))
    assert "significantly better than cross-entropy, but not than tuned cross-entropy" in text
    assert "+0.0500 to cross-entropy, +0.0400 is what cross-entropy gains from the same" in text
    assert "+0.0100 is left for the shape" in text
    worse = verdict_of(winner=0.90, ce=0.95)
    assert "better than every baseline" in words(GOOD)
    assert "not significantly better than any baseline" in words(worse)
    level = words(verdict_of(winner=0.95, ce=0.90, ce_scaled=0.90 - 1e-9))
    assert "+0.0000 is what cross-entropy gains" in level
    samples = verdict_of(winner=0.10, ce=0.20).samples
    tested = contrasts(samples[0], samples[1:], sign=-1)
    text = words(Verdict(samples, tested, "", "test_loss", mode="min"))
    assert "significantly better than every baseline" in text
    assert "Smaller test_loss is better" in text
    assert "guessing" not in text  # a loss of 0.1 is no accuracy of 0.1


ASCENDING = [i / 10 for i in range(10)]
SHUFFLED = [ASCENDING[i] for i in (4, 9, 2, 7, 0, 5, 8, 1, 6, 3)]
OTHERWISE = [ASCENDING[i] for i in (3, 4, 8, 2, 1, 6, 7, 9, 5, 0)]


def advice(evaluations, *values, **changes):
    """What is said of finalists with these evaluations and full trainings."""
    recipe = settled_recipe(searched_study(0))
    for section, fields in changes.items():
        recipe = recipe.changed(**{section: getattr(recipe, section).changed(**fields)})
    places = enumerate(zip(evaluations, zip(*values, strict=True), strict=True))
    candidates = [Finalist(i, (0.0,), value, values, 0.0) for i, (value, values) in places]
    mean = Finalist(None, (0.0,), None, (0.5, 0.5), 0.5)  # which has no evaluation
    return output.evaluation_advice(Selection((*candidates, mean)), recipe)


@pytest.mark.parametrize(
    ("evaluations", "first", "second", "said"),
    [
        (ASCENDING, ASCENDING, ASCENDING, "Evaluations are long enough."),
        (ASCENDING, SHUFFLED, SHUFFLED, "by 1.00: evaluations favor other losses"),
        (ASCENDING, SHUFFLED, OTHERWISE, "the candidates differ less than the seeds"),
        (ASCENDING[:5], [0, 1, 3, 2, 4], [0, 1, 2, 4, 3], "That leaves open"),
        (ASCENDING[:3], ASCENDING[:3], ASCENDING[:3], "Too few candidates that differ"),
    ],
)
def test_the_advice_follows_from_the_correlation(evaluations, first, second, said):
    assert said in advice(evaluations, first, second)
    full = advice(ASCENDING, SHUFFLED, SHUFFLED, budget={"evaluation": 1, "full": 1})
    assert "Both are full trainings: the remaining disagreement is seed noise, which" in full


def test_diverged_trainings_are_the_worst_whichever_way_is_better():
    first, last = [None, *ASCENDING[1:]], [*ASCENDING[:-1], None]
    fitness = {"metric": "val_loss", "mode": "min"}
    assert "best candidates: 1.00" in advice(ASCENDING, first, ASCENDING)
    assert "best candidates: 1.00" in advice(ASCENDING, last, ASCENDING, fitness=fitness)
    assert "best candidates: 1.00" not in advice(ASCENDING, last, ASCENDING)
