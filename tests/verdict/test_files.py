"""A verdict on paper, in files and in its study."""

import json
import math

import optuna
import pytest
from verdicts import sample, verdict_of

from optuna_taylorglo.attributes import COMPANION_OF, VERDICT
from optuna_taylorglo.errors import StudyError
from optuna_taylorglo.verdict.files import (
    from_json,
    keep_verdict,
    kept_verdict,
    rows,
    to_csv,
    to_json,
    to_markdown,
    write_verdict,
)
from optuna_taylorglo.verdict.statistics import Verdict, contrasts


def test_every_form_of_a_verdict_says_the_same():
    verdict = verdict_of(winner=0.95, ce=0.90)
    assert from_json(json.loads(json.dumps(to_json(verdict)))) == verdict
    assert rows(verdict)[1][5] == "+0.0500"
    assert "| cross-entropy | 0.9000 | 0.0010 | 3 | 0 | +0.0500 |" in to_markdown(verdict)
    assert to_csv(verdict).splitlines()[1] == "winner,evolved loss,0,0.949"


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
    companion = optuna.create_study(direction="maximize")
    companion.set_user_attr(COMPANION_OF, "mine")
    assert kept_verdict(companion) is None
    keep_verdict(companion, verdict_of(winner=0.95, ce=0.90))
    assert kept_verdict(companion) == verdict_of(winner=0.95, ce=0.90)
    content = companion.user_attrs[VERDICT]
    change(content)
    companion.set_user_attr(VERDICT, content)
    with pytest.raises(StudyError, match="taylorglo evaluate mine"):
        kept_verdict(companion)


def test_files_are_written_whole_or_not_at_all(tmp_path, monkeypatch):
    written = write_verdict(verdict_of(winner=0.95, ce=0.90), tmp_path / "verdict")
    assert [path.name for path in written] == ["verdict.md", "verdict.csv", "verdict.json"]
    before = {path: path.read_text() for path in written}
    monkeypatch.setattr("os.replace", lambda *paths: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_verdict(verdict_of(winner=0.5, ce=0.90), tmp_path / "verdict")
    assert {path: path.read_text() for path in tmp_path.iterdir()} == before
