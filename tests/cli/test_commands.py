"""Commands about a study that exists, none of which trains; and what they refuse."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shlex
import socket
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import optuna
import pytest
import torch
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState, create_trial
from searches import small_recipe
from verdicts import verdict_of

from optuna_taylorglo import cli, load_loss
from optuna_taylorglo.attributes import N_CLASSES
from optuna_taylorglo.cli import options, worker
from optuna_taylorglo.cli.options import runtime_of
from optuna_taylorglo.cli.studies import time_left
from optuna_taylorglo.evolution.candidates import make_sampler, parameter_names
from optuna_taylorglo.evolution.history import SearchHistory, attach_recipe, ranked_trials
from optuna_taylorglo.evolution.scheduler import GenerationScheduler
from optuna_taylorglo.losses.files import library
from optuna_taylorglo.recipes.load import load_recipe
from optuna_taylorglo.session import Session
from optuna_taylorglo.study.open import create_evaluation_study, create_study
from optuna_taylorglo.study.optuna_private import storage_of, study_id_of
from optuna_taylorglo.text import as_file_name
from optuna_taylorglo.training.runtime import RuntimeConfig
from optuna_taylorglo.verdict.selection import selected_loss

NAME = "x[/red]y\x1b[31m"
COMMANDS = [["status"], ["status", NAME], ["export", NAME], ["report", NAME]]


@pytest.fixture
def make_search(tmp_path, monkeypatch):
    def make(url: str) -> optuna.Study:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("OPTUNA_STORAGE", url)
        monkeypatch.setenv("COLUMNS", "160")
        study = create_study(NAME, url)
        recipe = attach_recipe(study, load_recipe(small_recipe(tmp_path / "recipe.yaml")))
        study.set_user_attr(N_CLASSES, 10)
        study.sampler = make_sampler(recipe, 10)
        return study

    return make


@pytest.fixture
def study(make_search, sqlite_url):
    """A search with a complete generation."""
    study = make_search(sqlite_url)
    queue = GenerationScheduler(study)
    for value in (0.25, 0.5, 0.125, 0.375):
        queue.finish(queue.claim(), value)
    return study


def test_status_shows_workers_and_the_time_left(study, sqlite_url, capsys):
    GenerationScheduler(study).claim()
    assert cli.main(["status", NAME]) == cli.DONE
    out = capsys.readouterr().out
    assert "Generations: 1 of 2 complete, 4 of 8 candidates evaluated" in out
    (line,) = [li for li in out.splitlines() if f"{socket.gethostname()}:{os.getpid()}" in li]
    assert "generation 2, candidate 1" in line
    assert "s ago" in line, "no last heartbeat"
    assert "Time left: about" in out

    evaluation_study = create_evaluation_study(study, sqlite_url)
    evaluation_study.ask()  # as another program does
    study.tell(4, state=TrialState.FAIL)
    assert cli.main(["status", NAME]) == cli.DONE
    (line,) = [li for li in capsys.readouterr().out.splitlines() if "training 0" in li]
    assert "unknown" in line
    evaluation_study.tell(0, state=TrialState.FAIL)
    assert cli.main(["status", NAME]) == cli.DONE
    out = capsys.readouterr().out
    assert "Workers: none is training" in out
    assert "Time left" not in out


def test_status_without_a_name_has_a_line_for_each_study(study, sqlite_url, capsys):
    create_evaluation_study(study, sqlite_url)
    create_study("second", sqlite_url)
    tuned = create_study("third", sqlite_url)
    attach_recipe(tuned, attach_recipe(study).changed(model={"class_path": "my.Tuned"}))
    create_evaluation_study(tuned, sqlite_url)
    for state in ("interrupted", "1 training"):
        assert cli.main(["status"]) == cli.DONE
        out = capsys.readouterr().out
        (line,) = [line for line in out.splitlines() if "DigitsCNN" in line]
        parts = r"x[/red]y\x1b[31m", "DigitsCNN", "1 of 2", "0.5000", state
        assert [part for part in parts if part not in line] == []
        assert "no worker has begun" in out
        assert re.search("third .*learning rate tuned", out)
        assert "verdict" not in out
        GenerationScheduler(study).claim()


def test_the_time_left_follows_from_the_rate():
    trials = [create_trial(value=0.5) for _ in range(5)]
    for n, trial in enumerate(trials):
        trial.datetime_complete = datetime(2026, 1, 1) + timedelta(seconds=10 * n)
    history = SimpleNamespace(trials=trials, n_slots=10, n_filled=4)
    assert time_left(history) == timedelta(seconds=60)
    history.trials = trials[:1]
    assert time_left(history) is None


def test_only_looking_needs_no_right_to_write_and_shows_names_as_they_are(
    study, sqlite_url, monkeypatch, capsys
):
    file = sqlite_url.removeprefix("sqlite:///")
    monkeypatch.setenv("OPTUNA_STORAGE", f"sqlite:///file:{file}?mode=ro&uri=true")
    for words in COMMANDS:
        assert cli.main(words) == cli.DONE
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize("storage", ["sqlite:///none.db", "none.journal"])
def test_only_looking_creates_no_file(tmp_path, monkeypatch, caplog, storage):
    monkeypatch.chdir(tmp_path)
    for words in (["status"], ["status", "s"], ["export", "s"], ["report", "s"]):
        caplog.clear()
        assert cli.main([*words, "--storage", storage]) == cli.USAGE
        assert "does not exist" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_trials_that_are_no_candidates_are_never_the_best(study, capsys):
    names = parameter_names(attach_recipe(study))
    for value, params in (
        (99.0, {}),
        (98.0, {"lr": 0.1}),
        (97.0, dict.fromkeys(names[1:], 1.0)),
        (math.inf, dict.fromkeys(names, 1.0)),
        (96.0, dict.fromkeys(names, math.inf)),
    ):
        space = {name: FloatDistribution(-math.inf, math.inf) for name in params}
        study.add_trial(create_trial(value=value, params=params, distributions=space))
    assert [trial.value for trial in ranked_trials(study)] == [0.5, 0.375, 0.25, 0.125]
    history = SearchHistory(study, attach_recipe(study))
    assert history.best.number == selected_loss(study).trial.number == 1
    assert all(c.fitness is None or c.fitness <= 0.5 for c in history.candidates)
    for words in COMMANDS:
        assert cli.main(words) == cli.DONE
        assert "99.0" not in capsys.readouterr().out
    name = as_file_name(NAME)
    assert {file.name for file in Path().glob("x*")} == {f"{name}_loss.json", f"{name}_report.html"}
    assert load_loss(f"{name}_loss.json").origin.trial == 1


@pytest.mark.parametrize("storage", ["sqlite_url", "journal_path"])
def test_a_study_that_is_deleted_is_told_in_one_line(
    make_search, request, monkeypatch, caplog, storage
):
    study = make_search(request.getfixturevalue(storage))
    queue = GenerationScheduler(study)
    trial = queue.claim()
    storage_of(study).delete_study(study_id_of(study))
    works = [lambda: attach_recipe(study), lambda: GenerationScheduler(study).claim()]
    if storage != "journal_path":  # a journal keeps the trials, and goes on until the next claim
        works += [lambda: queue.finish(trial, 0.5), lambda: trial.report(0.5, 1)]
    for work in works:
        caplog.clear()
        monkeypatch.setattr(options, "open_study_of", lambda *_, work=work: work())
        assert cli.main(["status", "gone"]) == cli.FAILED
        assert "study 'gone' was deleted while this command worked on it" in caplog.text
        assert "Traceback" not in caplog.text


def test_a_trial_s_loss_is_exported(study, caplog):
    words = ["export", NAME, "-o", "loss.json", "--trial"]
    assert cli.main([*words, "3"]) == cli.DONE
    assert load_loss("loss.json").origin.trial == 3
    assert cli.main([*words, "10000"]) == cli.USAGE
    assert "--trial 10000 is not in study" in caplog.text


def test_a_sweep_is_shown_and_written(study, monkeypatch, capsys):
    @contextlib.contextmanager
    def at_once(session):
        run = Mock(
            side_effect=lambda tasks: [None, *(0.5 + i / 100 for i, _ in enumerate(tasks[1:]))]
        )
        yield create_evaluation_study(session.study, session.url), run

    monkeypatch.setattr(Session, "trainings", at_once)
    monkeypatch.setattr(Session, "check", lambda *_, **__: None)
    words = ["sweep", NAME, "--seeds", "2", "--over"]
    assert cli.main([*words, "label_noise", "--values", "0,0.4"]) == cli.DONE
    assert "\n1 training diverged, counted as 0.1000" in capsys.readouterr().out
    assert cli.main([*words, "length", "--values", "1,2"]) == cli.DONE
    assert "Spearman" in capsys.readouterr().out
    prefix = f"{as_file_name(NAME)}_sweep_"
    assert json.loads(Path(f"{prefix}length.json").read_text())[0]["n_candidates"] == 3
    noise = json.loads(Path(f"{prefix}label_noise.json").read_text())
    assert noise.keys() >= {"cross-entropy"}


def test_a_verdict_is_written_to_files_named_after_the_study(study, monkeypatch, capsys):
    monkeypatch.setattr(Session, "compare", lambda *_: verdict_of(winner=0.9, ce=0.8))
    before = set(Path().iterdir())
    assert cli.main(["evaluate", NAME]) == cli.DONE
    written = {path.name for path in set(Path().iterdir()) - before}
    assert written == {
        f"{as_file_name(NAME)}_verdict{suffix}" for suffix in (".md", ".csv", ".json")
    }
    assert "Written to" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("run nowhere.yaml", "nowhere.yaml"),
        ("status emtpy", "there is no study 'emtpy' in sqlite:///taylorglo.db, which has empty. "),
        ("export empty", "has no recipe yet"),
        ("baseline empty", "has no recipe yet"),
        ("status s --storage oracle://host/db", "oracle"),
        # What cannot be written is told before a study is opened.
        ("run r -o missing/out", "no folder missing. Make it with\n  mkdir -p missing"),
        ("export s -o 'my folder/out'", "Make it with\n  mkdir -p 'my folder'"),
        ("evaluate s -o file/out", "file: Not a directory"),
        ("evaluate s -o .", "it is a folder"),
        ("evaluate s -o taken", "--output taken.json cannot be written: it is a folder"),
        ("sweep s --over length --values 1 -o /proc/out", "cannot be written in /proc: "),
        ("report s -o /dev/null", "it is no regular file"),
        ("evaluate s --against focl", "against has 'focl'; did you mean focal?"),
        ("evaluate s --against ce,best_los.json", "did you mean best_loss.json?"),
        ("evaluate s --against ce,best_loss.json", "best_loss.json: not a whole JSON document"),
        ("sweep s --over fraction --values 0,0.1,2,nan", "0, 2, nan not allowed for fraction"),
        ("sweep s --over label_noise --values 0,1,1.5,-1", "1.5, -1 not allowed for label_noise"),
        ("sweep s --over length --values 100,0.5,inf", "0.5, inf not allowed for length"),
    ],
)
def test_wrong_usage(tmp_path, monkeypatch, caplog, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "best_loss.json").touch()
    (tmp_path / "taken.json").mkdir()
    create_study("empty", "sqlite:///taylorglo.db")
    assert cli.main(shlex.split(words)) == cli.USAGE
    assert message in caplog.text
    assert "Traceback" not in caplog.text
    assert [each.name for each in tmp_path.iterdir() if each.is_dir()] == ["taken.json"]


@pytest.mark.parametrize(
    ("main", "words", "message"),
    [
        (cli.main, "evolve", "evolve"),
        (cli.main, "dashboard s --port 65536", "65536 is not allowed, must be from 1 to 65535"),
        (cli.main, "evaluate s --seeds 1000000000000", "must be from 2 to 1000"),
        (cli.main, "evaluate s --seeds x", "'x' is not allowed, must be a whole number"),
        (cli.main, "evaluate s --seeds 1", "1 is not allowed, must be from 2 to 1000"),
        (cli.main, "run r --device gpu", "'gpu' is not allowed, must be auto, cpu, mps, cuda, or"),
        (cli.main, "run r --workers 100000", "must be from 1 to 1000"),
        (cli.main, "run r --n-generations -1", "-1 is not allowed, must be at least 0"),
        (cli.main, "sweep s --over length --values 1,a", "no list such as"),
        (worker.main, "--study-name s --device cuda:x", "such as cuda:1"),
        (worker.main, "--study-name s --timeout nan", "--timeout"),
        (worker.main, "--study-name s --grace-period 0", "--grace-period"),
        (worker.main, "--study-name s --grace-period 60", "must be shorter than --grace-period"),
    ],
)
def test_wrong_options(main, words, message, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(words.split())
    assert exit_.value.code == cli.USAGE
    assert message in capsys.readouterr().err


AT_ONCE = [
    *("run digits_mlp --device gpu", "evaluate s --seeds 1", "evaluate s --against nothing"),
    *("run digits_mlp -o missing/x.json", "check digits_ml", "status s"),
]


def test_wrong_usage_is_answered_before_torch_is_imported(tmp_path):
    code = f"""
import sys
from optuna_taylorglo import cli
for words in {AT_ONCE}:
    try:
        code = cli.main(words.split())
    except SystemExit as exit_:
        code = exit_.code
    assert code == cli.USAGE, words
    assert "torch" not in sys.modules, words
"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)


def test_a_device_is_refused_before_lightning_is_imported(tmp_path):
    code = """
import sys
import torch
from optuna_taylorglo import cli
torch.cuda.is_available = lambda: False
assert cli.main(["check", "digits_mlp", "--device", "cuda"]) == cli.USAGE
assert "pytorch_lightning" not in sys.modules
"""
    said = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, stderr=-1)
    assert b"device 'cuda' is not on this machine" in said.stderr


def test_without_a_command_the_commands_are_listed(capsys):
    assert cli.main([]) == cli.USAGE
    said = capsys.readouterr().err
    assert "taylorglo [-h]" in said
    assert "watch a study in the browser" in said


def test_the_losses_of_the_library_are_listed_and_drawn(tmp_path, monkeypatch, capsys, caplog):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["losses"]) == cli.DONE
    listed = capsys.readouterr().out
    assert all(f"{name}: " in listed for name in library())
    assert cli.main(["losses", "wrong-labels", "-o", "picture.html"]) == cli.DONE
    said = capsys.readouterr().out
    for outcome in load_loss("wrong-labels").origin.library.outcomes:
        assert f"{outcome.loss:.3f}" in said
    assert "wrong-labels" in Path("picture.html").read_text(encoding="utf-8")
    assert cli.main(["losses", "wrong-lables"]) == cli.USAGE
    assert "did you mean wrong-labels?" in caplog.text


def test_a_port_in_use_is_named(study, caplog):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        assert cli.main(["dashboard", NAME, "--port", port]) == cli.USAGE
    assert f"--port {port} cannot be used" in caplog.text


MACHINE = ["--data-dir", "my data", "--device", "cpu", "--precision", "bf16-mixed"]
MACHINE += ["--threads", "3", "--allow", "mine", "--allow", "yours.nets"]


@pytest.mark.parametrize("words", [[], ["--quiet"], [*MACHINE, "-v"]], ids=" ".join)
def test_options_of_the_machine_reach_workers_and_other_commands(words):
    parse = cli.build_parser().parse_args
    said = runtime_of(worker.build_parser().parse_args(["--study-name", "s", *words]))
    for command in ("run r.yaml", "evaluate s", "sweep s --over length --values 1,2"):
        assert runtime_of(parse([*command.split(), *words])) == said
    assert runtime_of(parse(["baseline", "s", *said.flags()])) == said


def test_options_become_a_machine_with_modules_of_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["/somewhere"])
    parse, threads = cli.build_parser().parse_args, torch.get_num_threads()
    try:
        runtime_of(parse(["check", "r"])).prepare()
        assert sys.path == ["/somewhere"]
        machine = runtime_of(parse(["check", "r", *MACHINE]))
        machine.prepare()
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)
    assert sys.path == [str(tmp_path), "/somewhere"]
    assert machine == RuntimeConfig(Path("my data"), "cpu", "bf16-mixed", ("mine", "yours.nets"), 3)
