"""Trials are read as Optuna reads them."""

from __future__ import annotations

import math

import optuna
import pytest
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from optuna_taylorglo.storage import reading
from optuna_taylorglo.storage.open_storage import open_storage
from optuna_taylorglo.storage.optuna_private import study_id_of, trial_id_of
from optuna_taylorglo.storage.outage_tolerant import OutageTolerantStorage


@pytest.fixture(params=["sqlite_url", "postgresql_url", "mariadb_url"])
def study(request: pytest.FixtureRequest) -> optuna.Study:
    storage = open_storage(request.getfixturevalue(request.param))
    # Ids of trials are not their numbers.
    other = optuna.create_study(study_name="other", storage=storage)
    study = optuna.create_study(study_name="a", storage=storage)
    for value in (0.1, -math.inf, 1e308):
        trial = study.ask()
        other.ask()
        trial.suggest_float("z", -1, 1)
        trial.suggest_float("a", 1e-9, 1, log=True)
        trial.suggest_categorical("kind", ["x", None, 3, True])
        trial.suggest_int("n", 2, 8, step=2)
        trial.set_user_attr("words", {"ü": [1, 2.5, None]})
        for step, report in enumerate((math.nan, math.inf, 0.25)):
            trial.report(report, step)
        study.tell(trial, value)
    study.ask()
    study.tell(study.ask(), state=TrialState.FAIL)
    study.enqueue_trial({"z": 0.5})
    study.add_trial(create_trial(state=TrialState.PRUNED))
    return study


def read(study: optuna.Study, *args: object) -> tuple[list[FrozenTrial], list[FrozenTrial]]:
    """By us, and by Optuna."""
    storage = study._storage
    assert isinstance(storage, OutageTolerantStorage)
    database = storage.database
    theirs = RDBStorage._get_trials(database, study_id_of(study), *args)  # type: ignore[arg-type]
    return database._get_trials(study_id_of(study), *args), theirs  # type: ignore[arg-type]


def shown(trials: list[FrozenTrial]) -> list[str]:
    """With every digit, the order of parameters, and NaN as equal to itself."""
    return [f"{trial!r} {trial_id_of(trial)}" for trial in trials]


def test_all_trials(study: optuna.Study) -> None:
    ours, theirs = read(study, None, set(), -1)
    assert len(ours) == 7
    assert shown(ours) == shown(theirs)


def test_some_trials(study: optuna.Study, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [trial_id_of(trial) for trial in study.trials]
    running = (TrialState.RUNNING,)
    for limit in (500, 1):
        monkeypatch.setattr(reading, "_NAMED_AT_MOST", limit)
        for states, included, above in (
            (None, set(), ids[3]),
            (None, {ids[0], ids[2], ids[5]}, ids[3]),
            (None, {ids[0], ids[2]}, ids[-1]),
            (running, {ids[0], ids[1]}, ids[1]),
            (None, set(), ids[-1]),
        ):
            ours, theirs = read(study, states, included, above)
            assert shown(ours) == shown(theirs)


def test_a_study_that_is_not_there(study: optuna.Study) -> None:
    storage = study._storage
    assert storage.get_all_trials(storage.create_new_study([optuna.study.StudyDirection(1)])) == []
    with pytest.raises(KeyError):
        storage.get_all_trials(4711)
