"""A worker and bugs in a user's own classes: shown with their traceback, never as wrong usage."""

from __future__ import annotations

import pytest
from optuna.trial import TrialState
from searches import load, small_recipe

from optuna_taylorglo import worker
from optuna_taylorglo.storage.open_study import create_study


@pytest.fixture
def work(tmp_path, sqlite_url):
    """Runs a worker with a class of `own_nets` as the model."""

    def run(name, **init_args):
        create_study("s", sqlite_url)
        model = {"class_path": f"own_nets.{name}", "init_args": init_args}
        recipe = small_recipe(tmp_path / "recipe.yaml", model=model)
        words = ["--study-name", "s", "--storage", sqlite_url, "--recipe", str(recipe)]
        return worker.main([*words, "--allow", "own_nets", "--data-dir", str(tmp_path)])

    return run


def test_a_bug_in_an_evaluation_is_shown_and_three_in_a_row_end_the_worker(
    work, sqlite_url, caplog
):
    assert work("FailsInTraining") == worker.FAILED
    assert caplog.text.count("KeyError: 'a bug of mine'") == 3
    assert caplog.text.count("Traceback (most recent call last)") >= 3
    # The last line of it is where the user has to look.
    assert "own_nets.py" in caplog.text
    assert "in forward" in caplog.text
    assert "trial 0: generation 0, candidate 0: failed" in caplog.text
    assert "giving up after 3 failed evaluations in a row" in caplog.text
    assert [t.state for t in load(sqlite_url, "s").trials] == [TrialState.FAIL] * 3


def test_a_value_error_of_a_users_constructor_is_a_failure_with_its_traceback(
    work, sqlite_url, caplog
):
    assert work("RefusesItsWidth", width=7) == worker.FAILED
    assert "Traceback (most recent call last)" in caplog.text
    assert "ValueError: a width of 7 is a bug of mine" in caplog.text
    assert load(sqlite_url, "s").trials == []


def test_a_wrong_argument_for_a_users_class_is_still_wrong_usage(work, caplog):
    assert work("RefusesItsWidth", height=7) == worker.USAGE
    assert "model.init_args: {'height': 7} cannot build own_nets.RefusesItsWidth" in caplog.text
    assert "Traceback" not in caplog.text


def test_a_module_that_trains_itself_goes_on_to_the_end(work, sqlite_url):
    assert work("OwnModule") == worker.DONE
    done = (TrialState.COMPLETE, TrialState.PRUNED)
    assert len(load(sqlite_url, "s").get_trials(states=done)) >= 8
