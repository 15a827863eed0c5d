"""Studies that others have written to: looking at them is safe, works, and changes nothing."""

from __future__ import annotations

import math
import threading
from typing import Any

import optuna
import pytest
import sqlalchemy
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState, create_trial
from searches import small_recipe

from optuna_taylorglo import cli, load_loss
from optuna_taylorglo.attributes import N_CLASSES
from optuna_taylorglo.cli import status
from optuna_taylorglo.recipes.load import load_recipe
from optuna_taylorglo.search.candidates import make_sampler
from optuna_taylorglo.search.history import SearchHistory, attach_recipe, ranked_trials
from optuna_taylorglo.search.scheduler import GenerationScheduler
from optuna_taylorglo.study.open import create_study
from optuna_taylorglo.study.optuna_private import storage_of, study_id_of
from optuna_taylorglo.verdict.selection import selected_loss

NAME = "x[/red]y\x1b[31m"


@pytest.fixture
def study(tmp_path, sqlite_url, monkeypatch) -> optuna.Study:
    """A search with a complete generation, in the storage of this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPTUNA_STORAGE", sqlite_url)
    monkeypatch.setenv("COLUMNS", "160")
    study = create_study(NAME, sqlite_url)
    recipe = attach_recipe(study, load_recipe(small_recipe(tmp_path / "recipe.yaml")))
    study.set_user_attr(N_CLASSES, 10)
    study.sampler = make_sampler(recipe, 10)
    queue = GenerationScheduler(study)
    for value in (0.25, 0.5, 0.125, 0.375):
        queue.finish(queue.claim(), value)
    return study


def foreign(value: float, params: dict[str, Any] | None = None) -> optuna.trial.FrozenTrial:
    params = params or {}
    distributions = {name: FloatDistribution(-math.inf, math.inf) for name in params}
    return create_trial(value=value, params=params, distributions=distributions)


VERBS = [["status"], ["status", NAME], ["export", NAME], ["report", NAME]]


def test_trials_that_are_no_candidates_are_never_the_best(study, capsys):
    names = SearchHistory(study, attach_recipe(study, None)).names
    study.add_trial(foreign(99.0))
    study.add_trial(foreign(98.0, {"lr": 0.1}))
    study.add_trial(foreign(97.0, dict.fromkeys(names[1:], 1.0)))
    study.add_trial(foreign(math.inf, dict.fromkeys(names, 1.0)))
    assert [trial.value for trial in ranked_trials(study)] == [0.5, 0.375, 0.25, 0.125]
    history = SearchHistory(study, attach_recipe(study, None))
    assert history.best.number == selected_loss(study).trial.number == 1
    assert all(c.fitness is None or c.fitness <= 0.5 for c in history.candidates)
    for words in VERBS:
        assert cli.main(words) == cli.DONE
        said = capsys.readouterr().out
        assert "99" not in said
    assert load_loss("best_loss.json").origin.trial == 1
    study.add_trial(foreign(96.0, dict.fromkeys(names, math.inf)))
    assert ranked_trials(study)[0].number == 1


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_names_of_studies_are_shown_as_they_are(study, capsys, words):
    assert cli.main(words) == cli.DONE
    out = capsys.readouterr().out
    assert "\x1b" not in out
    if words[0] == "status":
        assert r"x[/red]y\x1b[31m" in out


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_only_looking_writes_nothing(study, words):
    """So it works on a database that we may only read."""
    written: list[str] = []

    def watch(conn, cursor, statement, parameters, context, executemany):
        if statement.split(None, 1)[0].upper() in ("INSERT", "UPDATE", "DELETE", "REPLACE"):
            written.append(statement)

    sqlalchemy.event.listen(sqlalchemy.Engine, "before_cursor_execute", watch)
    try:
        assert cli.main(words) == cli.DONE
    finally:
        sqlalchemy.event.remove(sqlalchemy.Engine, "before_cursor_execute", watch)
    assert written == []


def test_a_trial_without_a_heartbeat_is_named(study, capsys, monkeypatch):
    study.ask()  # as another program does
    with monkeypatch.context() as patch:
        patch.setattr(status, "SILENT", 0.0)
        assert cli.main(["status", NAME]) == cli.DONE
    said = " ".join(capsys.readouterr().out.split())
    assert "No heartbeat of trial 4 on an unknown worker" in said
    study.tell(4, state=TrialState.FAIL)
    GenerationScheduler(study).claim()
    assert cli.main(["status", NAME]) == cli.DONE
    assert "No heartbeat" not in capsys.readouterr().out


@pytest.mark.parametrize("storage", ["sqlite_url", "postgresql_url", "journal_path"])
def test_a_study_that_is_deleted_is_told_in_one_line(
    tmp_path, request, monkeypatch, caplog, storage
):
    url = request.getfixturevalue(storage)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPTUNA_STORAGE", url)
    study = create_study("gone", url)
    recipe = attach_recipe(study, load_recipe(small_recipe(tmp_path / "recipe.yaml")))
    study.set_user_attr(N_CLASSES, 10)
    study.sampler = make_sampler(recipe, 10)
    queue = GenerationScheduler(study)
    trial = queue.claim()

    def deleted_meanwhile(work):
        def act(arguments, stop: threading.Event) -> int:
            work()
            return 0

        return act

    storage_of(study).delete_study(study_id_of(study))
    works = [lambda: attach_recipe(study, None), lambda: GenerationScheduler(study).claim()]
    if storage != "journal_path":  # a journal keeps the trials, and goes on until the next claim
        works += [lambda: queue.finish(trial, 0.5), lambda: trial.report(0.5, 1)]
    for work in works:
        caplog.clear()
        monkeypatch.setattr("optuna_taylorglo.cli.status.status", deleted_meanwhile(work))
        assert cli.main(["status", "gone"]) == cli.FAILED
        assert "study 'gone' was deleted while this command worked on it" in caplog.text
        assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    ("words", "most"),
    [
        (["evaluate", "s", "--seeds", "1000000000000"], 1000),
        (["baseline", "s", "--seeds", "1001"], 1000),
        (["run", "r", "--workers", "100000"], 1000),
    ],
)
def test_numbers_that_would_start_endless_work_are_refused(words, most, capsys):
    with pytest.raises(SystemExit) as exit_:
        cli.main(words)
    assert exit_.value.code == cli.USAGE
    assert f"{words[-1]} is not allowed, must be from 1 to {most}" in capsys.readouterr().err
