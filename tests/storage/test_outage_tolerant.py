"""A storage as Optuna wants it, through outages of its database."""

from __future__ import annotations

import multiprocessing
import multiprocessing.pool
import random
import time
from pathlib import Path
from typing import Any

import optuna
import pytest
import sqlalchemy
from databases import PostgreSQL
from optuna.storages import BaseStorage
from optuna.testing.pytest_storages import StorageTestCase

from optuna_taylorglo.storage import retry
from optuna_taylorglo.storage.open_storage import open_storage
from optuna_taylorglo.storage.outage_tolerant import OutageTolerantStorage
from optuna_taylorglo.storage.retry import retry_during_outage, without_retry

fork = multiprocessing.get_context("fork")


class TestConformance(StorageTestCase):
    """What Optuna asks of every storage, here with its own cache in front."""

    @pytest.fixture(params=["sqlite", "journal"])
    def storage(self, request: pytest.FixtureRequest, tmp_path: Path) -> BaseStorage:
        url = f"sqlite:///{tmp_path}/a.db" if request.param == "sqlite" else str(tmp_path / "a.log")
        return open_storage(url)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waited: list[float] = []
    monkeypatch.setattr(retry.time, "sleep", waited.append)
    return waited


def _outage(*_: Any) -> Any:
    raise sqlalchemy.exc.OperationalError("SELECT 1", None, Exception("server closed"))


def test_outage_is_waited_for_with_growing_breaks(waits: list[float]) -> None:
    answers = iter([_outage] * 9 + [lambda: "here"])
    assert retry_during_outage(lambda: next(answers)(), limit=1e9) == "here"
    assert len(waits) == 9
    assert waits[0] <= 0.25
    assert 7.5 <= waits[-1] <= 15


def test_patience_ends(waits: list[float]) -> None:
    with pytest.raises(sqlalchemy.exc.OperationalError):
        retry_during_outage(_outage, limit=0.1)
    assert waits == []


def test_other_errors_are_not_waited_for(waits: list[float]) -> None:
    calls = []

    def wrong() -> None:
        calls.append(1)
        raise sqlalchemy.exc.ProgrammingError("SELEC 1", None, Exception("syntax"))

    with pytest.raises(sqlalchemy.exc.ProgrammingError):
        retry_during_outage(wrong, limit=1e9)
    assert (len(calls), waits) == (1, [])


def test_every_call_of_a_study_is_patient(sqlite_url: str, waits: list[float]) -> None:
    """Half of the transactions do not begin, and half of the rest fail in the end."""
    storage = open_storage(sqlite_url)
    assert isinstance(storage, OutageTolerantStorage)
    dice = random.Random(0)

    def fail_sometimes(transaction: Any) -> None:
        if dice.random() < 0.5:
            _outage()

    sessions = storage.database.scoped_session.session_factory
    sqlalchemy.event.listen(sessions, "before_commit", fail_sometimes)
    # What is read without a session has no commit.
    sqlalchemy.event.listen(storage.database.engine, "begin", fail_sometimes)
    study = optuna.create_study(storage=storage)
    study.set_user_attr("a", 1)
    study.enqueue_trial({"x": 0.5})
    for _ in range(2):
        trial = study.ask()
        trial.suggest_float("x", 0, 1)
        trial.suggest_float("y", 0, 1)
        trial.report(0.5, 1)
        trial.set_user_attr("b", 2)
        storage.record_heartbeat(trial._trial_id)
        study.tell(trial, 1.0)
    assert study.best_value == 1.0
    assert [trial.value for trial in study.trials] == [1.0, 1.0]
    assert study.trials[1].user_attrs == {"b": 2}
    assert len(waits) > 20
    sqlalchemy.event.listen(sessions, "before_commit", _outage)
    with pytest.raises(optuna.exceptions.StorageInternalError), without_retry():
        storage.get_all_studies()


def test_server_restart_in_the_middle_of_a_study(own_postgresql: PostgreSQL) -> None:
    study = optuna.create_study(storage=open_storage(own_postgresql.new_database()))
    trial = study.ask()
    trial.suggest_float("x", 0, 1)
    pool = multiprocessing.pool.ThreadPool(1)
    own_postgresql.stop()
    result = pool.apply_async(lambda: [trial.report(0.5, 1), study.tell(trial, 1.0)])
    time.sleep(0.5)
    assert not result.ready()
    own_postgresql.start()
    result.get()
    assert study.trials[0].value == 1.0
    assert study.trials[0].intermediate_values == {1: 0.5}
