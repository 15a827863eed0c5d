"""A verdict on paper, in files and in its study."""

import dataclasses
import json
import math

import optuna
import pytest
from drawn_studies import searched_study
from searches import ROOT
from verdicts import sample, verdict_of

from optuna_taylorglo.attributes import EVALUATION_OF, VERDICT
from optuna_taylorglo.errors import StudyError
from optuna_taylorglo.verdict.output import (
    from_json,
    is_about,
    load_verdict,
    loss_name,
    rows,
    save_verdict,
    short_rows,
    to_csv,
    to_json,
    to_markdown,
    write_verdict,
)
from optuna_taylorglo.verdict.statistics import Verdict, contrasts
from optuna_taylorglo.verdict.winner import FINAL_MEAN, SelectedLoss, selected_loss


def test_every_form_of_a_verdict_says_the_same():
    verdict = verdict_of(winner=0.95, ce=0.90)
    assert from_json(json.loads(json.dumps(to_json(verdict)))) == verdict
    assert rows(verdict)[1][5] == "+0.0500"
    assert "| cross-entropy | 0.9000 | 0.0010 | 3 | 0 | +0.0500 |" in to_markdown(verdict)
    lines = to_csv(verdict).splitlines()
    assert lines[:2] == [
        "name,loss,training,test_accuracy,outcome",
        "winner,evolved loss,0,0.949,trained",
    ]


def test_trainings_that_diverged_are_marked_in_table_and_csv():
    verdict = verdict_of(winner=0.95, ce=0.90)
    unlucky = dataclasses.replace(verdict.samples[1], diverged=(1,))
    verdict = dataclasses.replace(verdict, samples=(verdict.samples[0], unlucky), divergence=0.9)
    assert from_json(json.loads(json.dumps(to_json(verdict)))) == verdict
    assert short_rows(verdict)[1][2] == "1 of 3 diverged"
    assert rows(verdict)[1][3:5] == ("3", "1 of 3 diverged")
    outcomes = [line.rsplit(",", 1)[1] for line in to_csv(verdict).splitlines()[1:]]
    assert outcomes == ["trained"] * 4 + ["diverged", "trained"]


def test_a_verdict_of_an_earlier_version_is_shown_as_it_was_made():
    path = ROOT / "tests" / "data" / "verdict_of_version_0_1.json"
    content = json.loads(path.read_text())
    assert "test" not in content
    verdict = from_json(content)
    assert (verdict.test, verdict.mode, verdict.divergence) == ("welch", "max", None)
    assert [c.p_holm for c in verdict.contrasts] == [c["p_holm"] for c in content["contrasts"]]
    assert "Welch" in verdict.text
    failed = dataclasses.replace(verdict.samples[0], failed=2)
    n = len(failed.values)
    assert short_rows(dataclasses.replace(verdict, samples=(failed,)))[0][2] == f"{n}, 2 failed"


def test_a_kept_verdict_without_a_single_result_is_none():
    evaluation_study = optuna.create_study(direction="maximize")
    samples = (sample("winner", "evolved loss", (), 3), sample("ce", "cross-entropy", (), 3))
    save_verdict(evaluation_study, Verdict(samples, (), "not better", "test_accuracy"))
    assert load_verdict(evaluation_study) is None


def test_a_verdict_knows_its_loss():
    chosen = selected_loss(searched_study())
    other = selected_loss(searched_study(search={"seed": 5}))
    verdict = dataclasses.replace(verdict_of(winner=0.95, ce=0.90), trial=chosen.trial.number)
    assert loss_name(verdict) == chosen.name
    assert is_about(verdict, chosen)
    assert not is_about(dataclasses.replace(verdict, trial=chosen.trial.number + 1), chosen)
    told = dataclasses.replace(verdict, loss=chosen.loss.settings())
    assert is_about(from_json(json.loads(json.dumps(to_json(told)))), chosen)
    assert not is_about(dataclasses.replace(verdict, loss=other.loss.settings()), chosen)
    mean = SelectedLoss(chosen.loss, None)
    assert loss_name(dataclasses.replace(told, trial=None)) == mean.name == FINAL_MEAN
    assert is_about(dataclasses.replace(told, trial=None), mean)


def test_numbers_that_do_not_exist_are_null_in_json():
    samples = (sample("winner", "evolved loss", (0.9, 0.9)), sample("ce", "c", (0.8, 0.8)))
    verdict = Verdict(samples, contrasts(samples[0], samples[1:]), "", "test_accuracy", 3)
    assert math.isnan(verdict.contrasts[0].effect_size)
    content = json.loads(json.dumps(to_json(verdict), allow_nan=False))
    assert content["contrasts"][0]["effect_size"] is None
    back = from_json(content)
    assert math.isnan(back.contrasts[0].effect_size)
    assert (back.samples, back.trial) == (verdict.samples, 3)


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.pop("samples"),
        lambda content: content["samples"][0].pop("role"),
        lambda content: content["samples"][0].update(role="king"),
        lambda content: content["samples"][0].update(values=["many"]),
    ],
)
def test_a_verdict_of_another_version_is_refused_with_what_to_type(change):
    evaluation_study = optuna.create_study(direction="maximize")
    evaluation_study.set_user_attr(EVALUATION_OF, "mine")
    assert load_verdict(evaluation_study) is None
    save_verdict(evaluation_study, verdict_of(winner=0.95, ce=0.90))
    assert load_verdict(evaluation_study) == verdict_of(winner=0.95, ce=0.90)
    content = evaluation_study.user_attrs[VERDICT]
    change(content)
    evaluation_study.set_user_attr(VERDICT, content)
    with pytest.raises(StudyError, match="taylorglo evaluate mine"):
        load_verdict(evaluation_study)


def test_files_are_written_whole_or_not_at_all(tmp_path, monkeypatch):
    written = write_verdict(verdict_of(winner=0.95, ce=0.90), tmp_path / "verdict")
    assert [path.name for path in written] == ["verdict.md", "verdict.csv", "verdict.json"]
    before = {path: path.read_text() for path in written}
    monkeypatch.setattr("os.replace", lambda *paths: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_verdict(verdict_of(winner=0.5, ce=0.90), tmp_path / "verdict")
    assert {path: path.read_text() for path in tmp_path.iterdir()} == before
