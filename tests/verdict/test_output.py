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
    said = [
        output.about_another(made, chosen)
        for made in (
            output.from_json(plain(verdict)),
            dataclasses.replace(verdict, trial=number + 1),
            dataclasses.replace(verdict, loss=other.loss.settings()),
        )
    ]
    assert said[0] == ""
    assert f"about trial {number + 1}, not about the winner, trial {number}" in said[1]
    assert f"about trial {number} as it was before the search went on" in said[2]
    mean = SelectedLoss(chosen.loss, None)
    assert output.about_another(dataclasses.replace(verdict, trial=None), mean) == ""


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
    assert "+0.0500 to cross-entropy, +0.0400 comes with the same scale" in text
    assert "+0.0100 with the shape" in text
    level = words(verdict_of(winner=0.95, ce=0.90, ce_scaled=0.90 - 1e-9))
    assert "+0.0000 comes with the same scale" in level
    text = words(smaller_is_better(winner=0.10, ce=0.20))
    assert "Smaller test_loss is better" in text
    assert "guessing" not in text  # a loss of 0.1 is no accuracy of 0.1


def test_the_words_do_not_speak_of_scale_where_the_optimizer_undoes_it():
    verdict = verdict_of(winner=0.95, ce=0.90, ce_scaled=0.94, winner_normalized=0.93)
    assert "made as large as cross-entropy's, its difference to cross-entropy is +0.0300" in words(
        verdict
    )
    text = words(dataclasses.replace(verdict, scale_acts=False))
    assert "+0.0400 comes with the same learning rate, and +0.0100" in text
    assert "At cross-entropy's learning rate, its difference to cross-entropy is +0.0300." in text
    assert "gradient" not in text
    assert "scale" not in text


def smaller_is_better(**means):
    samples = verdict_of(**means).samples
    tested = contrasts(samples[0], samples[1:], sign=-1)
    return Verdict(samples, tested, "", "test_loss", mode="min")


@pytest.mark.parametrize(
    ("winner", "ce", "tuned", "said"),
    [
        (
            *(0.90, 0.80, 0.95),
            "worse than tuned cross-entropy, the hardest baseline, by 5.0 points "
            "(95 % interval 4.5 to 5.5); it is better than cross-entropy.",
        ),
        (
            *(0.95, 0.90, 0.952),
            "level with tuned cross-entropy, the hardest baseline (lead -0.2 points, "
            "95 % interval -0.7 to +0.3); it is better than cross-entropy.",
        ),
        (
            *(0.95, 0.91, 0.90),
            "better than cross-entropy, the hardest baseline, by 4.0 points "
            "(95 % interval 3.5 to 4.5); it is better than tuned cross-entropy.",
        ),
    ],
)
def test_the_headline_tells_better_from_level_and_worse(winner, ce, tuned, said):
    """A loss that is worse than the hardest baseline was "better, but not than" it."""
    verdict = verdict_of(winner=winner, ce=ce, ce_tuned=tuned)
    assert words(verdict).splitlines()[0] == f"The evolved loss is {said}"
    # The same for a metric of which less is better, without points.
    losses = {"winner": 1 - winner, "ce": 1 - ce, "ce_tuned": 1 - tuned}
    other = smaller_is_better(**losses)
    for name in ("ce", "ce-tuned"):
        assert other.standing(name) == verdict.standing(name)
    text = output.headline(other)
    start, end = said.split(", the hardest")[0], said.rsplit(";", 1)[1]
    assert text.startswith(f"The evolved loss is {start}, the hardest baseline")
    assert text.endswith(end)
    assert "points" not in text


def test_the_headline_gives_differences_of_a_metric_and_names_many_by_their_number():
    text = output.headline(smaller_is_better(winner=0.10, ce=0.05))
    assert "cross-entropy, the only baseline, by 0.0500 (95 % interval 0.0450 to 0.0550)." in text
    ahead = verdict_of(winner=0.95, ce=0.90, ce_tuned=0.91, focal=0.92)
    assert output.headline(ahead).endswith("; it is better than every other baseline.")
    behind = verdict_of(winner=0.95, ce=0.97, a=0.96, b=0.90, c=0.91, d=0.92, e=0.93)
    assert output.headline(behind).endswith("; it is worse than a, and better than 4 others.")
    first, *others = verdict_of(winner=0.95, a=0.97, b=0.95, c=0.90).samples
    others = [dataclasses.replace(other, label=f"{other.label}, tuned") for other in others]
    tested = contrasts(first, others)
    text = output.headline(Verdict((first, *others), tested, "", "test_accuracy"))
    assert text.endswith('; it is level with "b, tuned", and better than "c, tuned".')
    alone = dataclasses.replace(GOOD, samples=GOOD.samples[:1], contrasts=())
    assert output.headline(alone) == "The evolved loss was compared with no baseline."


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
    ],
)
def test_the_advice_follows_from_the_correlation(evaluations, first, second, said):
    assert said in advice(evaluations, first, second)
    assert advice(ASCENDING[:3], ASCENDING[:3], ASCENDING[:3]) == "", "too few"
    full = advice(ASCENDING, SHUFFLED, SHUFFLED, budget={"evaluation": 1, "full": 1})
    assert "Both are full trainings: the remaining disagreement is seed noise, which" in full


def test_diverged_trainings_are_the_worst_whichever_way_is_better():
    first, last = [None, *ASCENDING[1:]], [*ASCENDING[:-1], None]
    fitness = {"metric": "val_loss", "mode": "min"}
    assert "best candidates: 1.00" in advice(ASCENDING, first, ASCENDING)
    assert "best candidates: 1.00" in advice(ASCENDING, last, ASCENDING, fitness=fitness)
    assert "best candidates: 1.00" not in advice(ASCENDING, last, ASCENDING)
