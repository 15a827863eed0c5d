"""``taylorglo run``: what it tells the processes that it starts, and what it does without them."""

from __future__ import annotations

import contextlib
import math
import pickle
from unittest.mock import call, create_autospec

import optuna
import pytest
import yaml
from drawn_studies import GENERATIONS, POPULATION, searched_study
from optuna.trial import TrialState, create_trial
from searches import load, small_recipe

from optuna_taylorglo import cli, load_loss, session
from optuna_taylorglo.attributes import KEY, TASK
from optuna_taylorglo.cli.options import runtime_of
from optuna_taylorglo.cli.run import _in_words
from optuna_taylorglo.evolution.history import SearchHistory, attach_recipe
from optuna_taylorglo.local import LocalProcesses
from optuna_taylorglo.recipes.load import frozen_recipe, load_recipe
from optuna_taylorglo.study.open import create_evaluation_study
from optuna_taylorglo.training import preflight
from optuna_taylorglo.worker import WorkerConfig, run_reference


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.2, "1 second"),
        (90.4, "90 seconds"),
        (120, "2 minutes"),
        (7200, "2 hours"),
        (2e5, "2 days"),
    ],
)
def test_costs_are_told_in_words(seconds, words):
    assert _in_words(seconds) == f"about {words} of one worker"


@pytest.fixture
def idle_run(tmp_path, monkeypatch, sqlite_url):
    """Runs the command with words, on a recipe, with processes that have nothing to do."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPTUNA_STORAGE", sqlite_url)
    small_recipe(tmp_path / "tiny.yaml")

    def run(*words):
        processes = create_autospec(LocalProcesses)
        processes.return_value.poll.return_value = False
        monkeypatch.setattr(session, "LocalProcesses", processes)
        code = cli.main(["run", "tiny.yaml", *words])
        jobs = processes.call_args.args[0] if processes.called else None
        calls = [call.start(), call.poll(), call.stop()] if processes.called else []
        assert processes.return_value.method_calls == calls
        return code, jobs

    return run


@pytest.mark.parametrize("said", [[], ["-v"]])
def test_workers_and_baseline_are_told_what_the_command_was(
    idle_run, monkeypatch, sqlite_url, tmp_path, said
):
    environments = [{"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"}]
    monkeypatch.setattr(session, "_environments", lambda *_: environments)
    machine = ["--device", "cpu", "--threads", "2", "--allow", "mine", *said]
    _, (baseline, *others) = idle_run("--study-name", "other", *machine)
    assert baseline.run is run_reference
    runtime = runtime_of(cli.build_parser().parse_args(["run", "r", *machine]))
    # Workers find the recipe in the study.
    config = WorkerConfig("other", sqlite_url, runtime, check=False, verbose=bool(said))
    for job in (baseline, *others):
        assert pickle.loads(pickle.dumps(job.arguments)) == (config,)
    assert [job.environment for job in others] == environments
    assert attach_recipe(load(sqlite_url, "other")) == load_recipe(tmp_path / "tiny.yaml")


def test_a_study_gets_the_direction_of_its_fitness_and_may_end_without_a_result(
    idle_run, sqlite_url, tmp_path, caplog
):
    changes = {"model": {"class_path": "own_nets.LogsItsLoss", "init_args": {}}, "optimizer": None}
    fitness = {"metric": "val_loss", "mode": "min"}
    small_recipe(tmp_path / "tiny.yaml", fitness=fitness, **changes)
    code, _ = idle_run("--workers", "1", "--allow", "own_nets")
    assert code == cli.FAILED
    assert load(sqlite_url, "tiny").direction == optuna.study.StudyDirection.MINIMIZE
    # Which is warned of, as it may be each candidate's own loss.
    assert "fitness.metric val_loss: if it is computed by self.criterion" in caplog.text
    assert "no candidate of study 'tiny' trained at all" in caplog.text
    assert "Traceback" not in caplog.text
    assert not list(tmp_path.glob("*.json"))


def kept_search(url, recipe_file, **changes):
    """A complete search, and its recipe as a file."""
    drawn = searched_study(name="tiny", **changes)
    recipe_file.write_text(yaml.safe_dump(frozen_recipe(drawn).to_dict()))
    optuna.copy_study(from_study_name="tiny", from_storage=drawn._storage, to_storage=url)
    return load(url, "tiny")


def test_workers_are_started_to_select_the_winner(idle_run, sqlite_url, tmp_path, capsys):
    study = kept_search(sqlite_url, tmp_path / "tiny.yaml", selection={"candidates": 2})
    evaluation_study = create_evaluation_study(study, sqlite_url)
    for key, state in (("a", TrialState.FAIL), ("a", TrialState.WAITING), ("b", TrialState.FAIL)):
        attributes = {KEY: key, TASK: {"loss": {"name": "finalist"}}}
        evaluation_study.add_trial(create_trial(state=state, user_attrs=attributes))
    assert session._selection_progress(study) == (1, 2)
    _, jobs = idle_run("--workers", "1")
    assert len(jobs) == 2
    assert "selection of the winner: 2 trainings" in capsys.readouterr().out


def test_a_complete_search_is_not_run_again_unless_it_is_made_longer(
    idle_run, sqlite_url, tmp_path, capsys, monkeypatch
):
    study = kept_search(sqlite_url, tmp_path / "tiny.yaml")
    monkeypatch.setattr(preflight, "dry_run", lambda *_: pytest.fail("tried again"))
    assert idle_run("--allow", "my_nets", "--threads", "2") == (cli.DONE, None)
    out = capsys.readouterr().out
    assert "Winner: trial" in out
    assert "one training of the best of" in out
    assert "Canonical form" in out
    # The command that is advised works as it stands.
    assert "taylorglo evaluate tiny --threads 2 --allow my_nets\n" in out
    assert "Saved to tiny_loss.json. Next:\n" in out
    assert load_loss("tiny_loss.json").origin.study == "tiny"

    code, jobs = idle_run("--n-generations", str(GENERATIONS + 1), "--workers", "1")
    assert (code, len(jobs)) == (cli.DONE, 2)
    assert ": 1 worker, " in capsys.readouterr().out
    history = SearchHistory(study, attach_recipe(study))
    assert (history.n_finished, history.finished) == (GENERATIONS, False)
    assert history.n_slots == POPULATION * (GENERATIONS + 1)


def test_the_learning_rate_of_any_loss_is_tuned(tmp_path, monkeypatch, sqlite_url, capsys, caplog):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPTUNA_STORAGE", sqlite_url)
    rate = load_recipe(small_recipe(tmp_path / "tiny.yaml")).optimizer.lr
    best = 3 * rate

    @contextlib.contextmanager
    def trainings(self):
        yield None, lambda tasks: [-abs(math.log(t.loss.learning_rate / best)) for t in tasks]

    monkeypatch.setattr(session.Session, "trainings", trainings)
    for words in ([], ["--loss", "wrong-labels"]):
        assert cli.main(["tune", "tiny.yaml", "--device", "cpu", *words]) == cli.DONE
        said = capsys.readouterr().out
        assert f"For the recipe: optimizer.lr: {best:.3g}\n" in said
        assert (words or ["cross-entropy"])[-1] in said
        assert "at the end" not in said
    best = 1000 * rate
    assert cli.main(["tune", "tiny.yaml", "--device", "cpu"]) == cli.DONE
    assert "It is at the end of those tried" in capsys.readouterr().out
    assert cli.main(["tune", "tiny.yaml", "--loss", "wrong-lables"]) == cli.USAGE
    assert "did you mean wrong-labels?" in caplog.text
