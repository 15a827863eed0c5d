"""Databases that vanish while they are in use, and those that may only be looked at."""

from __future__ import annotations

import multiprocessing
import shutil
from pathlib import Path

import optuna
import pytest
import sqlalchemy

from optuna_taylorglo.errors import StorageUnreachable
from optuna_taylorglo.storage.open_storage import open_storage
from optuna_taylorglo.storage.open_study import create_study, find_companion, open_study
from optuna_taylorglo.storage.outage_tolerant import OutageTolerantStorage
from optuna_taylorglo.storage.urls import parse_url

fork = multiprocessing.get_context("fork")
pytestmark = pytest.mark.filterwarnings("ignore:Heartbeat of storage is supposed")


def test_a_file_that_is_deleted_is_missed(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    study = create_study("a", f"sqlite:///{path}")
    trial = study.ask()
    path.unlink()
    for write in (lambda: study.tell(trial, 1.0), study.ask, lambda: study.set_user_attr("a", 1)):
        with pytest.raises(StorageUnreachable, match=r"study\.db was deleted or replaced"):
            write()


def test_a_file_that_is_replaced_is_missed(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    study = create_study("a", f"sqlite:///{path}")
    shutil.copy(path, tmp_path / "copy.db")
    (tmp_path / "copy.db").replace(path)
    with pytest.raises(StorageUnreachable, match="deleted or replaced"):
        study.ask()
    create_study("a", f"sqlite:///{path}").ask()


def test_the_working_directory_may_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    study = create_study("a", "sqlite:///study.db")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    study.ask()


def look_at(url: str) -> None:
    """What somebody does who only wants to see how a search is getting on."""
    study = open_study("a", url)
    assert [trial.value for trial in study.trials] == [1.0]
    assert study.best_value == 1.0
    assert find_companion(study) is None
    assert optuna.get_all_study_names(open_storage(url)) == ["a"]
    with pytest.raises(Exception, match=r"read-?only|permission denied|commit") as caught:
        study.set_user_attr("a", 1)
    assert "unavailable" not in str(caught.value)


def filled(url: str) -> None:
    study = create_study("a", url)
    study.set_user_attr("taylorglo:recipe", {})
    study.tell(study.ask(), 1.0)


@pytest.mark.parametrize("options", ["mode=ro", "immutable=1", "mode=ro&immutable=1"])
@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_a_file_for_reading_only(tmp_path: Path, options: str, journal: str) -> None:
    path = tmp_path / "study.db"
    # In a process of its own, which leaves no write-ahead log behind.
    process = fork.Process(target=filled, args=(f"sqlite:///{path}",))
    process.start()
    process.join()
    engine = sqlalchemy.create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        connection.execute(sqlalchemy.text(f"PRAGMA journal_mode={journal}"))
    engine.dispose()
    look_at(f"sqlite:///file:{path}?{options}&uri=true")


def test_a_server_for_reading_only(postgresql_url: str) -> None:
    filled(postgresql_url)
    look_at(f"{postgresql_url}&options=-c%20default_transaction_read_only%3Don")


def test_a_user_who_may_only_read(postgresql_url: str) -> None:
    filled(postgresql_url)
    engine = sqlalchemy.create_engine(parse_url(postgresql_url))
    with engine.begin() as connection:
        for statement in (
            "DROP ROLE IF EXISTS reader",
            "CREATE ROLE reader LOGIN",
            "GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader",
        ):
            connection.execute(sqlalchemy.text(statement))
    engine.dispose()
    look_at(postgresql_url.replace("postgres:@", "reader@"))


def test_a_storage_in_memory_has_no_file() -> None:
    for url in ("sqlite://", "sqlite:///:memory:"):
        storage = open_storage(url)
        assert isinstance(storage, OutageTolerantStorage)
        storage.check_file()
