from __future__ import annotations

import importlib.util
import multiprocessing
import multiprocessing.pool
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import optuna
import pytest
import sqlalchemy
from databases import PostgreSQL
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage, RDBStorage, get_storage
from optuna.storages.journal import JournalFileBackend
from optuna.testing.pytest_storages import StorageTestCase
from optuna.trial import TrialState, create_trial
from optuna_taylorglo.storage.database import PatientRDBStorage

from optuna_taylorglo.storage import retry as patience
from optuna_taylorglo.storage.locks import study_lock
from optuna_taylorglo.storage.open_storage import open_storage
from optuna_taylorglo.storage.retry import retry_during_outage, without_retry
from optuna_taylorglo.storage.urls import resolve_storage_url

fork = multiprocessing.get_context("fork")


class TestConformance(StorageTestCase):
    """What Optuna asks of every storage, here with its own cache in front."""

    @pytest.fixture(params=["sqlite", "journal"])
    def storage(self, request: pytest.FixtureRequest, tmp_path: Path) -> BaseStorage:
        url = f"sqlite:///{tmp_path}/a.db" if request.param == "sqlite" else str(tmp_path / "a.log")
        return get_storage(open_storage(url))


# Addresses


def test_option_then_environment_then_embedded_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPTUNA_STORAGE", raising=False)
    assert resolve_storage_url() == "sqlite:///taylorglo.db"
    monkeypatch.setenv("OPTUNA_STORAGE", "sqlite:///other.db")
    assert resolve_storage_url() == "sqlite:///other.db"
    assert resolve_storage_url("mine.log") == "mine.log"


def test_sqlite_has_a_write_ahead_log(sqlite_url: str) -> None:
    storage = open_storage(sqlite_url)
    assert isinstance(storage, PatientRDBStorage)
    with storage.engine.connect() as connection:
        assert connection.execute(sqlalchemy.text("PRAGMA journal_mode")).scalar() == "wal"
        assert connection.execute(sqlalchemy.text("PRAGMA busy_timeout")).scalar() == 60_000


def test_plain_path_is_a_journal_that_optuna_reads(journal_path: str) -> None:
    optuna.create_study(study_name="a", storage=open_storage(journal_path))
    plain = JournalStorage(JournalFileBackend(journal_path))
    assert optuna.get_all_study_names(plain) == ["a"]


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_ways_to_write_postgresql(postgresql_url: str, scheme: str) -> None:
    storage = open_storage(postgresql_url.replace("postgresql", scheme, 1))
    assert optuna.get_all_study_names(storage) == []


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "neither a URL such as sqlite:///taylorglo.db nor a file"),
        ("no/such/directory/x.log", "neither a URL .* nor a file in an existing directory"),
        (".", "neither a URL"),
        ("mssql://sa:secret@host/db", r"mssql://sa:\*\*\*@host/db has the unknown scheme 'mssql'"),
        ("redis://host", "unknown scheme 'redis': expected one of mariadb, mysql, postgres"),
        ("sqlite:///no/such/directory/x.db", "Directory 'no/such/directory' of .* does not exist"),
        ("postgresql://u:secret@host:port/db", "scheme 'postgresql' cannot be read: expected"),
        ("postgresql+nodriver://u:secret@h/db", r"driver of postgresql\+nodriver://u:\*\*\*@h/db"),
    ],
)
def test_bad_url_is_explained_without_its_password(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        open_storage(url)
    assert "secret" not in str(caught.value)


def test_sqlite_file_given_as_a_path(tmp_path: Path) -> None:
    open_storage(f"sqlite:///{tmp_path}/a.db")
    with pytest.raises(ValueError, match=r"a\.db is an SQLite database: write sqlite:///"):
        open_storage(f"{tmp_path}/a.db")


@pytest.mark.parametrize(("scheme", "extra"), [("postgresql", "postgres"), ("mysql", "mysql")])
def test_missing_driver_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, scheme: str, extra: str
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=rf"pip install 'optuna-taylorglo\[{extra}\]'"):
        open_storage(f"{scheme}://user:secret@host/db")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:secret@127.0.0.1:1/db",
        "mysql://user:secret@127.0.0.1:1/db",
        "postgresql://user:secret@no-such-host.invalid/db",
    ],
)
def test_unreachable_server_fails_at_once_and_keeps_the_password(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("waited"))
    with pytest.raises(ConnectionError, match=r"Cannot open \w+\+\w+://user:\*\*\*@") as caught:
        open_storage(url)
    assert "secret" not in str(caught.value)


def test_missing_database_is_named(postgresql_url: str) -> None:
    host = postgresql_url.split("?host=")[1]
    with pytest.raises(ConnectionError, match='database "nowhere" does not exist'):
        open_storage(f"postgresql://postgres@/nowhere?host={host}")


@pytest.mark.parametrize(("heartbeat", "grace"), [(0, 1), (60, 60), (60, 30)])
def test_grace_must_outlast_the_heartbeat(heartbeat: int, grace: int) -> None:
    with pytest.raises(ValueError, match="shorter than grace, got heartbeat="):
        open_storage("sqlite://", heartbeat=heartbeat, grace=grace)


# First start


def _start(url: str, barrier: Any) -> None:
    barrier.wait()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = open_storage(url)
    optuna.create_study(study_name="a", storage=storage, load_if_exists=True).ask()


@pytest.mark.parametrize("database", ["sqlite", "postgresql", "mariadb"])
def test_many_processes_start_on_an_empty_database(
    database: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(f"{database}_url")
    barrier = fork.Barrier(10)
    processes = [fork.Process(target=_start, args=(url, barrier)) for _ in range(10)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 10
    study = optuna.load_study(study_name="a", storage=open_storage(url))
    assert [trial.number for trial in study.trials] == list(range(10))


# Trials


def _rich_study(storage: BaseStorage) -> optuna.Study:
    study = optuna.create_study(study_name="rich", storage=storage)
    distributions = {
        "f": FloatDistribution(-1, 1),
        "i": IntDistribution(1, 9, log=True),
        "c": CategoricalDistribution(("a", None, 3)),
    }
    for number, choice in enumerate(("a", None, 3)):
        study.add_trial(
            create_trial(
                params={"f": 0.1 * number, "i": number + 1, "c": choice},
                distributions=distributions,
                value=[1.5, float("inf"), -float("inf")][number],
                user_attrs={"u": [1, {"x": None}]},
                system_attrs={"s": "t"},
                intermediate_values={0: 0.5, 7: float("nan") if number else 0.25},
            )
        )
    study.enqueue_trial({"f": 0.5})
    study.ask()
    study.add_trial(create_trial(state=TrialState.FAIL))
    optuna.create_study(study_name="other", storage=storage).ask()
    return study


def test_quick_load_is_what_optuna_loads(database_url: str) -> None:
    storage = open_storage(database_url)
    assert isinstance(storage, PatientRDBStorage)
    study_id = _rich_study(storage)._study_id
    ours = storage.get_all_trials(study_id)
    theirs = RDBStorage(str(storage.url), engine_kwargs=storage.engine_kwargs).get_all_trials(
        study_id
    )
    assert len(ours) == 5
    # A NaN is not equal to itself; the text shows everything else, too.
    assert [str(trial) for trial in ours] == [str(trial) for trial in theirs]


def test_running_trial_is_created_whole_and_watched(database_url: str) -> None:
    storage = open_storage(database_url, heartbeat=1, grace=2)
    assert isinstance(storage, PatientRDBStorage)
    study = _rich_study(storage)
    template = create_trial(
        state=TrialState.RUNNING,
        params={"f": 0.1 + 0.2, "c": 3},
        distributions={"f": FloatDistribution(-1, 1), "c": CategoricalDistribution(("a", None, 3))},
        user_attrs={"u": 1},
        system_attrs={"s": [2]},
    )
    trial_id = get_storage(storage).create_new_trial(study._study_id, template)
    stored = storage.get_trial(trial_id)
    assert (stored.number, stored.state) == (5, TrialState.RUNNING)
    for field in ("params", "distributions", "user_attrs", "system_attrs", "datetime_start"):
        assert getattr(stored, field) == getattr(template, field)
    _age_heartbeats(storage)
    assert storage._get_stale_trial_ids(study._study_id) == [trial_id]


def _age_heartbeats(storage: PatientRDBStorage) -> None:
    with storage.engine.begin() as connection:
        connection.execute(
            sqlalchemy.text("UPDATE trial_heartbeats SET heartbeat = '2001-01-01 00:00:00'")
        )


def test_running_trial_with_an_incompatible_parameter_is_refused(sqlite_url: str) -> None:
    storage = open_storage(sqlite_url)
    study = _rich_study(storage)
    template = create_trial(
        state=TrialState.RUNNING, params={"f": 1}, distributions={"f": IntDistribution(0, 2)}
    )
    with pytest.raises(ValueError, match="Cannot set different distribution kind"):
        storage.create_new_trial(study._study_id, template)
    assert len(study.trials) == 5


# Patience


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waited: list[float] = []
    monkeypatch.setattr(patience.time, "sleep", waited.append)
    return waited


def _outage(*_: Any) -> Any:
    raise sqlalchemy.exc.OperationalError("SELECT 1", None, Exception("server closed"))


def test_outage_is_waited_for_with_growing_breaks(waits: list[float]) -> None:
    answers = iter([_outage] * 9 + [lambda: "here"])
    assert retry_during_outage(lambda: next(answers)(), patience=1e9) == "here"
    assert len(waits) == 9
    assert waits[0] <= 0.25
    assert 7.5 <= waits[-1] <= 15


def test_patience_ends(waits: list[float]) -> None:
    with pytest.raises(sqlalchemy.exc.OperationalError):
        retry_during_outage(_outage, patience=0.1)
    assert waits == []


def test_other_errors_are_not_waited_for(waits: list[float]) -> None:
    calls = []

    def wrong() -> None:
        calls.append(1)
        raise sqlalchemy.exc.ProgrammingError("SELEC 1", None, Exception("syntax"))

    with pytest.raises(sqlalchemy.exc.ProgrammingError):
        retry_during_outage(wrong, patience=1e9)
    assert (len(calls), waits) == (1, [])


def test_every_call_of_a_study_is_patient(sqlite_url: str, waits: list[float]) -> None:
    """Half of the transactions fail; nothing of it reaches the study."""
    storage = open_storage(sqlite_url)
    assert isinstance(storage, PatientRDBStorage)
    dice = random.Random(0)

    def fail_sometimes(session: Any) -> None:
        if dice.random() < 0.5:
            _outage()

    sessions = storage.scoped_session.session_factory
    sqlalchemy.event.listen(sessions, "before_commit", fail_sometimes)
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
    result.get(timeout=60)
    assert study.trials[0].value == 1.0
    assert study.trials[0].intermediate_values == {1: 0.5}


# Locks


def _hold(url: str, held: Any) -> None:
    with study_lock(get_storage(open_storage(url)), "a"):
        held.set()
        time.sleep(3600)


def _count(url: str, path: Path) -> None:
    storage = get_storage(open_storage(url))
    for _ in range(10):
        with study_lock(storage, "a"):
            number = int(path.read_text())
            time.sleep(0.001)
            path.write_text(str(number + 1))


@pytest.fixture(params=["sqlite_url", "postgresql_url", "mariadb_url", "journal_path"])
def any_url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(request.param)
    return url


def test_lock_lets_one_process_in_at_a_time(any_url: str, tmp_path: Path) -> None:
    open_storage(any_url)
    path = tmp_path / "number"
    path.write_text("0")
    processes = [fork.Process(target=_count, args=(any_url, path)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert path.read_text() == "40"


def test_lock_dies_with_its_holder(any_url: str) -> None:
    storage = get_storage(open_storage(any_url))
    held = fork.Event()
    process = fork.Process(target=_hold, args=(any_url, held))
    process.start()
    assert held.wait(30)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    with study_lock(storage, "a"):
        pass


def test_lock_in_memory_is_between_threads() -> None:
    storage, counts = InMemoryStorage(), [0]

    def count(_: int) -> None:
        for _ in range(10):
            with study_lock(storage, "a"):
                number = counts[0]
                time.sleep(0.0005)
                counts[0] = number + 1

    with multiprocessing.pool.ThreadPool(4) as pool:
        pool.map(count, range(4))
    assert counts == [40]
