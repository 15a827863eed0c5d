"""The worker as a process: it searches, resumes, releases, and says what is wrong."""

import signal
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
import torch
from optuna.trial import TrialState
from searches import load, process, results, small_recipe, wait_until

from optuna_taylorglo.attributes import (
    ATTEMPT,
    CLASS_WEIGHTS,
    GENERATION,
    INDEX,
    KEY,
    RELEASED,
    SELECTION,
    STALE,
    STOPPED,
)
from optuna_taylorglo.cli import worker
from optuna_taylorglo.errors import RecipeError
from optuna_taylorglo.evolution.candidates import candidate_loss
from optuna_taylorglo.evolution.history import attach_recipe
from optuna_taylorglo.process import DONE, FAILED, INTERRUPTED, USAGE
from optuna_taylorglo.recipes.load import load_recipe
from optuna_taylorglo.recipes.schema import recipe_from_dict
from optuna_taylorglo.recipes.settings import DEFAULT_OPTIMIZER
from optuna_taylorglo.report.build import write_report
from optuna_taylorglo.study import open as opening
from optuna_taylorglo.study.heartbeat import fail_trial
from optuna_taylorglo.study.open import find_evaluation_study
from optuna_taylorglo.study.optuna_private import storage_of, trial_id_of
from optuna_taylorglo.verdict.selection import selected_loss


def create_study_by_command(url):
    """By Optuna's own command line, as the README says."""
    optuna_command = Path(sys.executable).with_name("optuna")
    words = ["create-study", "--direction", "maximize", "--study-name", "digits", "--storage"]
    # Optuna itself must be told the driver.
    url = url.replace("postgresql://", "postgresql+psycopg://")
    subprocess.run([optuna_command, *words, url], check=True, capture_output=True)


def study_with(url, **settings):
    return optuna.create_study(study_name="digits", storage=url, **settings)


def create_study(url: str) -> None:
    """What that command makes, without the seconds that it takes to start."""
    study_with(url, direction="maximize")


def serial_results(tmp_path, recipe, data_dir):
    url = f"sqlite:///{tmp_path / 'serial.db'}"
    optuna.create_study(study_name="serial", storage=url, direction="maximize")
    words = ["--study-name", "serial", "--storage", url, "--recipe", str(recipe)]
    assert worker.main([*words, "--data-dir", str(data_dir)]) == DONE
    return results(load(url, "serial"))


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


def test_killed_and_resumed_workers_give_the_very_results_of_a_serial_run(
    tmp_path, data_dir, postgresql_url
):
    recipe = small_recipe(tmp_path / "recipe.yaml")
    expected = serial_results(tmp_path, recipe, data_dir)
    create_study_by_command(postgresql_url)
    words = ["optuna_taylorglo.cli.worker", "--study-name", "digits", "--data-dir", str(data_dir)]
    patience = ["--heartbeat-interval", "1", "--grace-period", "3"]
    first = process(
        *words, *patience, "--recipe", str(recipe), cwd=tmp_path, storage=postgresql_url
    )
    study = load(postgresql_url, "digits")
    wait_until(lambda: len(study.trials) >= 3)
    first.kill()
    first.communicate()
    # Only the name is needed now; the file form of the command is a user's right as well.
    others = [process(*words, *patience, cwd=tmp_path, storage=postgresql_url) for _ in range(2)]
    for other in others:
        output, _ = other.communicate()
        assert other.returncode == DONE, output
        assert "the search is over: 2 generations are complete" in output
    assert results(study) == expected
    assert len({key[:2] for key in expected}) == 8


def finalists(study):
    """Those of the selection, without the numbers of their trials, which duplicates shift."""
    return [c | {"trial": None} for c in study.user_attrs[SELECTION]["finalists"]]


def test_workers_search_and_select_by_themselves(tmp_path, data_dir, sqlite_url):
    """Two workers, one of which is killed on the way, decide as a single one does."""
    recipe = small_recipe(
        tmp_path / "recipe.yaml",
        early_abort=None,
        early_stop=None,
        search={"popsize": 5, "n_generations": 2},
        selection={"candidates": 3},
    )
    expected = serial_results(tmp_path, recipe, data_dir)
    alone = load(f"sqlite:///{tmp_path / 'serial.db'}", "serial")
    create_study(sqlite_url)
    words = ["optuna_taylorglo.cli.worker", "--study-name", "digits", "--data-dir", str(data_dir)]
    words += ["--recipe", str(recipe), "--heartbeat-interval", "1", "--grace-period", "3"]
    first, second = (process(*words, cwd=tmp_path, storage=sqlite_url) for _ in range(2))
    study = load(sqlite_url, "digits")

    def n_trainings():
        evaluation_study = find_evaluation_study(study)
        return 0 if evaluation_study is None else len(evaluation_study.trials)

    wait_until(n_trainings)
    first.kill()
    first.communicate()
    output, _ = second.communicate()
    assert second.returncode == DONE, output
    assert results(study) == expected
    assert finalists(study) == finalists(alone)
    assert_trained_once(sqlite_url)
    # All is decided: another worker finds nothing to do, and changes nothing.
    before = dict(study.user_attrs)
    assert worker.main([*words[1:], "--storage", sqlite_url, "--timeout", "2"]) == DONE
    assert study.user_attrs == before


def assert_trained_once(url):
    trials = load(url, "digits-verdict").get_trials(states=(TrialState.COMPLETE,))
    keys = [trial.user_attrs[KEY] for trial in trials]
    assert len(keys) == len(set(keys))


def test_candidates_that_fall_behind_are_stopped_and_not_tried_again(tmp_path, data_dir, caplog):
    recipe = small_recipe(
        tmp_path / "recipe.yaml",
        budget={"evaluation": 30, "full": 30},
        early_stop={"at": 10, "keep": 0.25},
        early_abort={"at": 10, "attempts": 2},
        search={"n_generations": 3},
    )
    with caplog.at_level("INFO"):
        found = serial_results(tmp_path, recipe, data_dir)
    stopped = [r for r in caplog.records if "stopped, 0." in r.message]
    trials = load(f"sqlite:///{tmp_path / 'serial.db'}", "serial").trials
    marked = [t for t in trials if t.user_attrs.get(STOPPED)]
    assert len(stopped) == len(marked) >= 2
    for trial in marked:
        generation, index, attempt = (trial.user_attrs[k] for k in (GENERATION, INDEX, ATTEMPT))
        assert list(trial.intermediate_values) == [10]
        before = [
            result[3].get(10, 0.0) for key, result in found.items() if key[0] == generation - 1
        ]
        assert trial.intermediate_values[10] < max(before)
        assert (generation, index, attempt + 1) not in found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stale_trial_is_left_and_a_signal_releases_the_next_one_at_once(
    tmp_path, data_dir, sqlite_url, number
):
    """Trainings of days end at once; after one that failed as stale the worker goes on."""
    recipe = small_recipe(
        tmp_path / "recipe.yaml", budget={"evaluation": 10**7, "full": 10**7}, early_abort=None
    )
    create_study(sqlite_url)
    running = process(
        *("optuna_taylorglo.cli.worker", "--study-name", "digits", "--recipe", str(recipe)),
        *("--data-dir", str(data_dir), "--heartbeat-interval", "1", "--grace-period", "60"),
        cwd=tmp_path,
        storage=sqlite_url,
    )
    study = load(sqlite_url, "digits")

    def in_hand():
        return [trial.number for trial in study.get_trials(states=(TrialState.RUNNING,))]

    wait_until(in_hand)
    (stale,) = in_hand()
    # As another worker does that has seen no heartbeat of it.
    assert fail_trial(storage_of(study), trial_id_of(study.trials[stale]), STALE)
    wait_until(in_hand)
    (last,) = in_hand()
    running.send_signal(number)
    output, _ = running.communicate()
    assert running.returncode == INTERRUPTED, output
    assert "Traceback" not in output
    assert f"trial {stale}: generation 1, candidate {stale + 1}: failed as stale" in output
    trials = study.trials
    assert [t.number for t in trials if t.state != TrialState.WAITING] == sorted([stale, last])
    assert [t.number for t in trials if RELEASED in t.user_attrs] == [last]
    assert trials[last].state == TrialState.FAIL


def test_limits_and_log(tmp_path, data_dir, sqlite_url, caplog):
    recipe = small_recipe(tmp_path / "recipe.yaml")
    create_study(sqlite_url)
    words = ["--study-name", "digits", "--storage", sqlite_url, "--data-dir", str(data_dir)]
    assert worker.main([*words, "--recipe", str(recipe), "--max-trials", "1"]) == DONE
    study = load(sqlite_url, "digits")
    trial, *others = study.trials
    assert trial.state.is_finished()
    assert {other.state for other in others} == {TrialState.WAITING}
    lines = [r.message for r in caplog.records if r.message.startswith("trial 0")]
    assert len(lines) == 1
    assert lines[0].startswith("trial 0: generation 1, candidate 1")
    assert worker.main([*words, "--n-generations", "1"]) == DONE
    assert {t.user_attrs[GENERATION] for t in study.trials} == {0}
    assert {t.user_attrs[INDEX] for t in study.trials} == {0, 1, 2, 3}
    before = len(study.trials)
    assert worker.main([*words, "--timeout", "0.000001"]) == DONE
    assert len(study.trials) == before
    assert study.metric_names == ["val_accuracy"]


def test_a_recipe_that_cannot_work_is_refused_and_the_corrected_one_goes_on(
    tmp_path, data_dir, sqlite_url, caplog
):
    recipe = small_recipe(tmp_path / "recipe.yaml", fitness={"metric": "val_beauty"})
    create_study(sqlite_url)
    words = ["--study-name", "digits", "--storage", sqlite_url, "--data-dir", str(data_dir)]
    assert worker.main([*words, "--recipe", str(recipe)]) == USAGE
    assert "fitness.metric: 'val_beauty'" in caplog.text
    assert load(sqlite_url, "digits").trials == []
    recipe = small_recipe(tmp_path / "recipe.yaml")
    assert worker.main([*words, "--recipe", str(recipe), "--n-generations", "1"]) == DONE
    assert results(load(sqlite_url, "digits")).keys() >= {(0, index, 0) for index in range(4)}


def test_a_finished_search_goes_on_when_it_is_given_more_generations(
    tmp_path, data_dir, sqlite_url
):
    """The winner is chosen anew, and nothing that was trained is trained again."""
    create_study(sqlite_url)
    words = ["--study-name", "digits", "--storage", sqlite_url, "--data-dir", str(data_dir)]
    settings = {"selection": {"candidates": 2}, "early_abort": None, "early_stop": None}
    recipes = [
        small_recipe(tmp_path / f"{n}.yaml", search={"n_generations": n}, **settings)
        for n in (1, 2)
    ]
    assert worker.main([*words, "--recipe", str(recipes[0])]) == DONE
    study = load(sqlite_url, "digits")
    before = results(study)
    assert worker.main([*words, "--recipe", str(recipes[1])]) == DONE
    assert results(study) == serial_results(tmp_path, recipes[1], data_dir)
    assert before.items() <= results(study).items()
    serial = load(f"sqlite:///{tmp_path / 'serial.db'}", "serial")
    assert study.user_attrs[SELECTION] == serial.user_attrs[SELECTION]
    assert_trained_once(sqlite_url)


ABSENT = "cuda" if sys.platform == "darwin" else "mps"
BAD_USAGE = {
    "no such study": (lambda url: None, [], ["there is no study 'digits'", "optuna create-study"]),
    "minimizes": (
        lambda url: study_with(url),
        ["--recipe", "digits_mlp"],
        ["has direction minimize", "optuna create-study --direction maximize --study-name digits"],
    ),
    "no recipe": (
        lambda url: study_with(url, direction="maximize"),
        [],
        ["has no recipe yet", "--recipe studies/digits_cnn.yaml"],
    ),
    "recipe damaged in the database": (
        lambda url: study_with(url, direction="maximize").set_user_attr("taylorglo:recipe", "{"),
        [],
        ["taylorglo:recipe"],
    ),
    "device that is not there": (
        lambda url: study_with(url, direction="maximize"),
        ["--recipe", "RECIPE", "--device", ABSENT],
        [f"device '{ABSENT}' is not on this machine", "cpu"],
    ),
    "class that is not allowed": (
        lambda url: study_with(url, direction="maximize").set_user_attr("unused", 0),
        ["--recipe", "RECIPE_OS"],
        ["model.class_path", "os.path.Evil", "--allow os"],
    ),
}


@pytest.mark.parametrize("case", BAD_USAGE)
def test_wrong_usage_is_answered_with_what_to_do(tmp_path, data_dir, sqlite_url, caplog, case):
    prepare, words, expected = BAD_USAGE[case]
    prepare(sqlite_url)
    recipes = {
        "RECIPE": {},
        "RECIPE_OS": {"model": {"class_path": "os.path.Evil"}},
    }
    words = [
        str(small_recipe(tmp_path / "recipe.yaml", **recipes[word])) if word in recipes else word
        for word in words
    ]
    common = ["--study-name", "digits", "--storage", sqlite_url, "--data-dir", str(data_dir)]
    assert worker.main([*common, *words]) == USAGE
    for part in expected:
        assert part in caplog.text


BAD_FLAGS = {
    "nothing": ([], "--study-name"),
    "no whole number": (["--study-name", "s", "--threads", "two"], "--threads"),
    "zero": (["--study-name", "s", "--max-trials", "0"], "must be at least 1"),
    "negative time": (["--study-name", "s", "--timeout", "-1"], "must be above 0"),
    "grace": (["--study-name", "s", "--grace-period", "9"], "60 must be shorter than"),
}


@pytest.mark.parametrize("case", BAD_FLAGS)
def test_wrong_flags(capsys, case):
    words, expected = BAD_FLAGS[case]
    with pytest.raises(SystemExit) as exit_:
        worker.main(words)
    assert exit_.value.code == USAGE
    assert expected in capsys.readouterr().err


def test_a_storage_that_is_away_is_named_without_its_password(caplog, monkeypatch):
    monkeypatch.setattr(opening, "WORKER_PATIENCE", 0.5)
    url = "postgresql://u:secret@127.0.0.1:1/db"
    assert worker.main(["--study-name", "s", "--storage", url]) == FAILED
    assert "Cannot open postgresql" in caplog.text
    assert "secret" not in caplog.text


def test_balanced_class_weights_are_saved_with_the_study_and_in_the_winner(tmp_path, sqlite_url):
    recipe = small_recipe(
        tmp_path / "recipe.yaml",
        data={"init_args": {"imbalance": 10}},
        loss={"class_weights": "balanced"},
        search={"n_generations": 1},
    )
    create_study(sqlite_url)
    study = load(sqlite_url, "digits")
    with pytest.raises(RecipeError, match="no worker has begun"):
        candidate_loss(attach_recipe(study, load_recipe(recipe)), [0.0] * 8, 10)
    words = ["--study-name", "digits", "--storage", sqlite_url, "--data-dir", str(tmp_path)]
    for _ in range(2):  # the same file is accepted again
        assert worker.main([*words, "--recipe", str(recipe)]) == DONE
    weights = study.user_attrs[CLASS_WEIGHTS]
    assert len(weights) == 10
    assert max(weights) > 5 * min(weights)
    assert attach_recipe(study, None).loss.class_weights == tuple(weights)
    winner = selected_loss(study).loss
    torch.testing.assert_close(winner.weight, torch.tensor(weights))


def test_the_optimizer_that_no_recipe_names_is_saved_with_the_study_and_in_the_winner(
    tmp_path, sqlite_url
):
    recipe = small_recipe(
        tmp_path / "recipe.yaml",
        optimizer=None,
        search={"n_generations": 1},
        selection={"candidates": 2},
    )
    create_study(sqlite_url)
    study = load(sqlite_url, "digits")
    words = ["--study-name", "digits", "--storage", sqlite_url, "--data-dir", str(tmp_path)]
    for _ in range(2):  # the same file is accepted again
        assert worker.main([*words, "--recipe", str(recipe)]) == DONE
    assert load_recipe(recipe).optimizer is None
    assert attach_recipe(study, None).optimizer == DEFAULT_OPTIMIZER
    origin = selected_loss(study).loss.origin
    assert recipe_from_dict(origin.recipe).optimizer == DEFAULT_OPTIMIZER
    write_report(study, tmp_path / "report.html")
    assert "sgd at learning rate 0.05" in (tmp_path / "report.html").read_text()
