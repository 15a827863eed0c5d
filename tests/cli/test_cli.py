"""The `taylorglo` command: run, status, export, baseline."""

import os
import re
import signal
import time

import optuna
import pytest
import torch
from optuna.trial import TrialState
from searches import descendants_of, is_alive, load, process, small_recipe, wait_until

from optuna_taylorglo import cli, load_loss
from optuna_taylorglo.cli import run
from optuna_taylorglo.recipes.load import replace_recipe
from optuna_taylorglo.search.history import SearchHistory, attach_recipe
from optuna_taylorglo.study.heartbeat import WorkerProcess

URL = "sqlite:///taylorglo.db"


def has_study(directory, url: str) -> bool:
    """Whether the study is there."""
    try:
        return (directory / "taylorglo.db").exists() and bool(load(url, "tiny"))
    except KeyError:
        return False


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A directory in which a small search was run to its end, one worker killed on the way."""
    directory = tmp_path_factory.mktemp("run")
    small_recipe(directory / "tiny.yaml", budget={"evaluation": 12, "full": 12})
    run = process("optuna_taylorglo.cli", "run", "tiny.yaml", "--workers", "2", cwd=directory)
    url = URL.replace("///", f"///{directory}/")
    wait_until(lambda: has_study(directory, url))
    study = load(url, "tiny")

    def running():
        return study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))

    victims = []

    def find_victim():
        workers = (WorkerProcess.of(trial) for trial in running())
        # Between claim and first heartbeat a trial names no worker.
        victims.extend(worker for worker in workers if worker is not None)
        return victims

    wait_until(find_victim)
    victim = victims[0]
    os.kill(victim.pid, signal.SIGKILL)
    begin = time.monotonic()
    wait_until(lambda: not any(WorkerProcess.of(trial) == victim for trial in running()))
    until_given_back = time.monotonic() - begin
    output, _ = run.communicate()
    return directory, url, run.returncode, output, until_given_back


def test_run_survives_a_dying_worker_and_ends_with_the_winner(finished):
    directory, url, code, output, _ = finished
    assert code == cli.DONE, output
    study = load(url, "tiny")
    best = max(study.get_trials(states=(TrialState.COMPLETE,)), key=lambda t: t.value)
    assert f"{best.value:.4f}, one training of the best of" in output
    assert "cross-entropy at the same budget: " in output
    assert "mean of 3 seeds" in output
    assert "Canonical form" in output
    assert "Traceback" not in output
    loss = load_loss(directory / "best_loss.json")
    assert loss.theta == tuple(best.params[f"theta_{i}"] for i in range(8))
    assert loss.n_classes == 10
    assert loss.origin.study == "tiny"
    assert loss.origin.validation_accuracy == best.value
    assert loss.origin.recipe == study.user_attrs["taylorglo:recipe"]["recipe"]
    logits = torch.randn(4, 10, requires_grad=True)
    loss(logits, torch.arange(4)).backward()
    assert logits.grad.abs().sum() > 0


def test_what_a_killed_worker_held_is_given_back_at_once(finished):
    """A second worker need not wait for the grace period of four minutes."""
    *_, until_given_back = finished
    assert until_given_back < 5


def test_more_generations_may_be_asked_for_later(finished, monkeypatch):
    directory, url, *_ = finished
    monkeypatch.chdir(directory)
    monkeypatch.setattr(run, "_search", lambda *arguments: None)
    study = load(url, "tiny")
    recipe = attach_recipe(study, None)
    try:
        assert cli.main(["run", "tiny.yaml", "--n-generations", "3"]) == cli.DONE
        history = SearchHistory(study, attach_recipe(study, None))
        assert (history.n_finished, history.finished, history.n_slots) == (2, False, 12)
    finally:
        replace_recipe(study, recipe)


def test_a_finished_search_is_not_run_again(finished, monkeypatch, capsys):
    directory, url, *_ = finished
    monkeypatch.chdir(directory)
    before = len(load(url, "tiny").trials)
    assert cli.main(["run", "tiny.yaml", "--allow", "my_nets", "--threads", "2"]) == cli.DONE
    assert len(load(url, "tiny").trials) == before
    out = capsys.readouterr().out
    assert "Winner" in out
    # The command that is advised works as it stands.
    assert "taylorglo evaluate tiny --threads 2 --allow my_nets\n" in out


def test_status_and_export(finished, monkeypatch, capsys):
    directory, url, *_ = finished
    monkeypatch.chdir(directory)
    assert cli.main(["status", "tiny"]) == cli.DONE
    out = capsys.readouterr().out
    assert "Generations: 2 of 2 complete, 8 of 8 candidates evaluated" in out
    study = load(url, "tiny")
    number = study.get_trials(states=(TrialState.COMPLETE,))[-1].number
    assert cli.main(["export", "tiny", "--trial", str(number), "-o", "one.json"]) == cli.DONE
    assert load_loss("one.json").origin.trial == number


def test_the_baseline_is_not_trained_twice(finished, monkeypatch, capsys):
    directory, url, *_ = finished
    monkeypatch.chdir(directory)
    before = load(url, "tiny").user_attrs["taylorglo:cross_entropy"]
    assert len(before) == 3
    from optuna_taylorglo.training.training import Training

    monkeypatch.setattr(Training, "run", lambda *a, **k: pytest.fail("trained again"))
    assert cli.main(["baseline", "tiny"]) == cli.DONE
    assert load(url, "tiny").user_attrs["taylorglo:cross_entropy"] == before


def test_ctrl_c_stops_the_workers_and_the_same_command_goes_on(tmp_path):
    small_recipe(
        tmp_path / "long.yaml", budget={"evaluation": 10**7, "full": 10**7}, early_abort=None
    )
    run = process("optuna_taylorglo.cli", "run", "long.yaml", "--workers", "1", cwd=tmp_path)
    wait_until(lambda: (tmp_path / "taylorglo.db").exists())
    study = None

    def running():
        nonlocal study
        try:
            study = study or load(URL.replace("///", f"///{tmp_path}/"), "long")
        except KeyError:
            return False
        return len(study.get_trials(states=(TrialState.RUNNING,))) == 1

    wait_until(running)
    started = descendants_of(run.pid)
    assert len(started) >= 3, "the fork server, a worker and the baseline"
    run.send_signal(signal.SIGINT)
    output, _ = run.communicate()
    assert run.returncode == cli.INTERRUPTED, output
    assert "the same command goes on where it was" in output
    wait_until(lambda: not any(map(is_alive, started)))
    states = [trial.state for trial in study.trials]
    assert states[0] == TrialState.FAIL
    assert set(states[1:]) == {TrialState.WAITING}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "nowhere.yaml"], "nowhere.yaml"),
        (["status", "nothing"], "there is no study 'nothing'"),
        (["export", "empty"], "has no recipe yet"),
        (["baseline", "empty"], "has no recipe yet"),
        (["status", "s", "--storage", "oracle://host/db"], "oracle"),
    ],
)
def test_wrong_usage(tmp_path, monkeypatch, caplog, words, message):
    monkeypatch.chdir(tmp_path)
    optuna.create_study(study_name="empty", storage=URL, direction="maximize")
    assert cli.main(words) == cli.USAGE
    assert message in caplog.text


def test_wrong_trial_and_verb(finished, monkeypatch, caplog, capsys):
    monkeypatch.chdir(finished[0])
    assert cli.main(["export", "tiny", "--trial", "10000"]) == cli.USAGE
    assert re.search(r"--trial 10000 is not in study 'tiny', which has \d+ trials", caplog.text)
    with pytest.raises(SystemExit) as exit_:
        cli.main(["evolve"])
    assert exit_.value.code == cli.USAGE
    assert "evolve" in capsys.readouterr().err
