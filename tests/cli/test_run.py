"""``taylorglo run``: what it tells the processes that it starts, and what it does without them."""

from __future__ import annotations

from dataclasses import asdict

import optuna
import pytest
from optuna.trial import TrialState, create_trial
from searches import load, small_recipe

from optuna_taylorglo import cli
from optuna_taylorglo.attributes import ERROR, GENERATION, INDEX, RELEASED
from optuna_taylorglo.cli import workers
from optuna_taylorglo.recipes.load import load_recipe
from optuna_taylorglo.search.history import attach_recipe
from optuna_taylorglo.study.queue import Failure


class Idle:
    """Processes that have nothing to do; they remember what they were to do."""

    def __init__(self, jobs, log_dir):
        self.jobs = jobs
        self.calls = []
        Idle.last = self

    def start(self):
        self.calls.append("start")

    def poll(self):
        return False

    def stop(self):
        self.calls.append("stop")


@pytest.fixture
def idle_run(tmp_path, monkeypatch, sqlite_url):
    """Runs the verb with words, on a recipe, without workers."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPTUNA_STORAGE", sqlite_url)
    monkeypatch.setattr(workers, "LocalProcesses", Idle)
    small_recipe(tmp_path / "tiny.yaml")

    def run(*words):
        return cli.main(["run", "tiny.yaml", *words]), Idle.last

    return run


@pytest.mark.parametrize(
    ("said", "verbose", "quiet"), [([], False, False), (["-v"], True, False), (["-q"], False, True)]
)
def test_workers_and_baseline_say_as_much_as_they_were_told(idle_run, said, verbose, quiet):
    _, processes = idle_run("--workers", "2", "--device", "cpu", *said)
    baseline, *workers = processes.jobs
    assert len(workers) == 2
    assert baseline.arguments[0] == "tiny"
    told = [baseline.arguments[-1], *(job.arguments[0].runtime for job in workers)]
    assert {(each.verbose, each.quiet, each.device) for each in told} == {(verbose, quiet, "cpu")}


def test_the_recipe_is_in_the_study_before_workers_start(idle_run, sqlite_url, tmp_path):
    """They are told its name only."""
    _, processes = idle_run("--study-name", "other", "--workers", "1")
    assert processes.calls == ["start", "stop"]
    config = processes.jobs[1].arguments[0]
    assert (config.study_name, config.recipe, config.check) == ("other", None, False)
    assert attach_recipe(load(sqlite_url, "other"), None) == load_recipe(tmp_path / "tiny.yaml")


def test_a_study_gets_the_direction_of_its_fitness(idle_run, sqlite_url, tmp_path, capsys):
    small_recipe(tmp_path / "tiny.yaml", fitness={"metric": "val_nll", "mode": "min"})
    idle_run("--workers", "1")
    assert load(sqlite_url, "tiny").direction == optuna.study.StudyDirection.MINIMIZE
    assert "Warning" not in capsys.readouterr().out


def test_a_metric_that_is_called_loss_is_warned_of_at_the_start(idle_run, tmp_path, capsys):
    small_recipe(
        tmp_path / "tiny.yaml",
        fitness={"metric": "val_loss"},
        model={"class_path": "own_nets.LogsItsLoss", "init_args": {}},
        optimizer=None,
    )
    idle_run("--workers", "1", "--allow", "own_nets")
    said = " ".join(capsys.readouterr().out.split())
    assert "Warning: fitness.metric val_loss, and it is maximized" in said
    assert said.index("Warning") < said.index("Study tiny")


def test_a_search_without_a_single_result_says_what_may_help(idle_run, caplog, tmp_path):
    code, _ = idle_run("--workers", "1")
    assert code == cli.FAILED
    assert "no candidate of study 'tiny' trained at all" in caplog.text
    assert "Traceback" not in caplog.text
    assert not (tmp_path / "best_loss.json").exists()


def test_where_trainings_raised_the_exception_is_shown_in_place_of_advice(
    idle_run, caplog, sqlite_url
):
    idle_run("--workers", "1")
    caplog.clear()
    study = load(sqlite_url, "tiny")
    failure = Failure("RuntimeError", "no such layer")
    failed = create_trial(
        state=TrialState.FAIL,
        user_attrs={GENERATION: 0, INDEX: 0, RELEASED: True, ERROR: asdict(failure)},
    )
    study.add_trial(failed)
    code, _ = idle_run("--workers", "1")
    assert code == cli.FAILED
    assert "RuntimeError: no such layer" in caplog.text
    assert "learning rate" not in caplog.text
