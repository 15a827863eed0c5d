"""A worker and bugs in a user's own classes: shown with their traceback, never as wrong usage."""

from __future__ import annotations

import own_nets
import pytest
from optuna.trial import TrialState
from searches import load, small_recipe

from lightning_modules.nets.digits_cnn import DigitsCNN
from optuna_taylorglo.attributes import ERROR, GENERATION, INDEX, RECIPE, RELEASED
from optuna_taylorglo.cli import worker
from optuna_taylorglo.process import BROKEN, DONE, FAILED, USAGE
from optuna_taylorglo.study.open import create_study
from optuna_taylorglo.training import preflight


@pytest.fixture
def work(tmp_path, sqlite_url):
    """Runs a worker with a class of `own_nets` as the model."""

    def run(name, check=True, **init_args):
        create_study("s", sqlite_url)
        model = {"class_path": f"own_nets.{name}", "init_args": init_args}
        recipe = small_recipe(tmp_path / "recipe.yaml", model=model)
        words = ["--study-name", "s", "--storage", sqlite_url, "--recipe", str(recipe)]
        words += ["--allow", "own_nets", "--data-dir", str(tmp_path)]
        with pytest.MonkeyPatch.context() as patch:
            if not check:  # as the workers that a command starts
                patch.setattr(preflight, "dry_run", lambda *args: None)
            return worker.main(words)

    return run


def test_a_bug_is_shown_and_ends_the_worker_and_after_the_fix_it_goes_on(
    work, sqlite_url, caplog, monkeypatch
):
    for _ in range(2):  # the first fix was none
        caplog.clear()
        assert work("FailsInTraining", check=False) == BROKEN
        assert caplog.text.count("Traceback (most recent call last)") >= 3
        message = caplog.records[-1].message
        assert message.startswith("every evaluation fails with the same exception")
        # The last line of it is where the user has to look.
        assert "own_nets.py" in message
        assert "in forward" in message
        assert "KeyError: 'a bug of mine'" in message
    assert "generation 1, candidate 1: failed" in caplog.text
    failed = load(sqlite_url, "s").get_trials(states=(TrialState.FAIL,))
    assert len(failed) == 6
    assert {t.user_attrs[ERROR]["type"] for t in failed} == {"KeyError"}
    assert "own_nets.py" in failed[0].user_attrs[ERROR]["traceback"]
    monkeypatch.setattr(own_nets.FailsInTraining, "forward", DigitsCNN.forward)
    assert work("FailsInTraining") == DONE
    done = load(sqlite_url, "s").get_trials(states=(TrialState.COMPLETE, TrialState.PRUNED))
    places = {(t.user_attrs[GENERATION], t.user_attrs[INDEX]) for t in done}
    assert places == {(generation, index) for generation in range(2) for index in range(4)}


def test_a_failure_after_successes_counts_as_the_candidates_own(
    work, sqlite_url, caplog, monkeypatch
):
    def fails_later(self, images):
        if load(sqlite_url, "s").get_trials(states=(TrialState.COMPLETE, TrialState.PRUNED)):
            raise RuntimeError("a rare bug")
        return DigitsCNN.forward(self, images)

    monkeypatch.setattr(own_nets.FailsInTraining, "forward", fails_later)
    assert work("FailsInTraining") == FAILED
    assert "giving up after 3 failed evaluations in a row" in caplog.text
    first, *others = load(sqlite_url, "s").trials
    assert first.state in (TrialState.COMPLETE, TrialState.PRUNED)
    others = [t for t in others if t.state != TrialState.WAITING]
    assert [t.state for t in others] == [TrialState.FAIL] * 3
    assert not any(RELEASED in t.user_attrs for t in others)


def test_a_value_error_of_a_users_constructor_is_a_failure_with_its_traceback(
    work, sqlite_url, caplog
):
    assert work("RefusesItsWidth", check=False, width=7) == FAILED
    assert "Traceback (most recent call last)" in caplog.text
    assert "ValueError: a width of 7 is a bug of mine" in caplog.text
    assert load(sqlite_url, "s").trials == []


@pytest.mark.parametrize(
    ("name", "said"),
    [("FailsInTraining", "'a bug of mine'"), ("RefusesItsWidth", "a width of 3 is a bug of mine")],
)
def test_a_bug_is_found_before_anything_is_recorded(work, sqlite_url, caplog, name, said):
    assert work(name) == USAGE
    assert "your code raised an exception" in caplog.text
    assert said in caplog.text
    assert "own_nets.py" in caplog.text
    study = load(sqlite_url, "s")
    assert study.trials == []
    assert RECIPE not in study.user_attrs


def test_a_wrong_argument_for_a_users_class_is_still_wrong_usage(work, caplog):
    assert work("RefusesItsWidth", height=7) == USAGE
    assert "model.init_args: {'height': 7} cannot build own_nets.RefusesItsWidth" in caplog.text
    assert "Traceback" not in caplog.text
