"""Opening storages and studies, and what is said when that does not work."""

from __future__ import annotations

import importlib.util
import multiprocessing
import threading
from pathlib import Path
from typing import Any

import optuna
import psycopg
import pytest
import sqlalchemy
from databases import PostgreSQL
from optuna.trial import TrialState, create_trial

from optuna_taylorglo.attributes import EVALUATION_OF, GENERATION, RECIPE
from optuna_taylorglo.errors import StorageUnreachable, StorageURLError, StudyError
from optuna_taylorglo.study import outages
from optuna_taylorglo.study.open import (
    Direction,
    create_command,
    create_evaluation_study,
    create_study,
    find_evaluation_study,
    open_storage,
    open_study,
)
from optuna_taylorglo.study.storages import file_of, parse_url, resolve_storage_url, shown_url

fork = multiprocessing.get_context("fork")


def test_option_then_environment_then_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPTUNA_STORAGE", "")  # as a compose file leaves it when it is not set
    assert resolve_storage_url() == resolve_storage_url("") == "sqlite:///taylorglo.db"
    monkeypatch.setenv("OPTUNA_STORAGE", "sqlite:///other.db")
    assert resolve_storage_url() == "sqlite:///other.db"
    assert resolve_storage_url("mine.log") == "mine.log"


def test_parts_of_urls(tmp_path: Path) -> None:
    assert parse_url("mariadb://u@h/db").drivername == "mysql+pymysql"
    assert parse_url("postgres+asyncpg://u@h/db").drivername == "postgresql+asyncpg"
    url = parse_url("postgres://me:p%40ss@host:5433/db?sslmode=require")
    assert url.drivername == "postgresql+psycopg"
    assert (url.username, url.password, url.host, url.port) == ("me", "p@ss", "host", 5433)
    assert (url.database, dict(url.query)) == ("db", {"sslmode": "require"})
    assert shown_url("postgresql://me:secret@host/db") == "postgresql://me:***@host/db"
    assert "secret" not in create_command("s", "postgresql://me:secret@host/db")
    assert "--storage DATABASE_OF_THE_PROXY" in create_command("a", "grpc://host")
    assert shown_url("a/study.log") == "a/study.log"
    assert file_of("study.log") == Path("study.log").absolute()
    assert file_of(f"sqlite:///{tmp_path}/a.db") == tmp_path / "a.db"
    assert file_of(f"sqlite:///file:{tmp_path}/a.db?mode=ro&uri=true") == tmp_path / "a.db"
    for each in ("sqlite://", "sqlite:///:memory:", "grpc://host:1", "mysql+pymysql://u@h/db"):
        assert file_of(each) is None


def test_a_missing_driver_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for scheme, extra in (("postgresql", "postgres"), ("mysql", "mysql"), ("grpc", "grpc")):
        with pytest.raises(StorageURLError, match=rf"pip install 'optuna-taylorglo\[{extra}\]'"):
            open_storage(f"{scheme}://host:1")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "expected a URL such as sqlite:///taylorglo.db"),
        ("no/such/directory/x.log", "x.log' is not a file in an existing directory"),
        (".", "'.' is not a file"),
        ("mssql://sa:secret@host/db", r"mssql://sa:\*\*\*@host/db has the unknown scheme 'mssql'"),
        ("redis://host", "unknown scheme 'redis': expected one of grpc, mariadb, mysql, postgres"),
        ("sqlite:///no/such/directory/x.db", "x.db' is not a file in an existing dir"),
        ("postgresql://u:secret@host:port/db", "scheme 'postgresql' cannot be read: expected"),
        ("postgresql+nodriver://u:secret@h/db", r"Cannot open .*:\*\*\*@h/db: .*nodriver"),
    ],
)
def test_a_bad_url_is_explained_without_its_password(url: str, message: str) -> None:
    with pytest.raises(StorageURLError, match=message) as caught:
        open_study("a", url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["postgresql", "mysql", "grpc"])
def test_an_unreachable_server_is_named_without_its_password(scheme: str) -> None:
    with pytest.raises(StorageUnreachable, match=r"Cannot open [\w+]+://user:\*\*\*@127") as caught:
        open_storage(f"{scheme}://user:secret@127.0.0.1:1/db", patience=0.3)
    assert "secret" not in str(caught.value)


def test_a_refusal_is_said_at_once(
    postgresql_url: str, mariadb_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outages.random, "uniform", lambda *args: pytest.fail("waited"))
    host, socket = postgresql_url.split("?host=")[1], mariadb_url.split("?unix_socket=")[1]
    for url, message in (
        (f"postgresql://postgres@/nowhere?host={host}", 'database "nowhere" does not exist'),
        (f"postgresql://nobody:secret@/postgres?host={host}", 'role "nobody" does not exist'),
        (f"mysql://me:secret@localhost/db?unix_socket={socket}", "Access denied for user"),
        (f"mysql://root@localhost/nowhere?unix_socket={socket}", "Unknown database"),
        (f"sqlite:///file:{tmp_path}/none.db?mode=ro&uri=true", "unable to open database file"),
    ):
        with pytest.raises(StorageUnreachable, match=message) as caught:
            open_storage(url, patience=60)
        assert "secret" not in str(caught.value)


def test_a_server_that_starts_later_or_has_no_connection_to_spare(
    own_postgresql: PostgreSQL,
) -> None:
    url, taken = own_postgresql.new_database(), list[Any]()
    with pytest.raises(psycopg.OperationalError, match="too many clients"):
        taken.extend(iter(lambda: psycopg.connect(url), None))
    with pytest.raises(StorageUnreachable, match="too many clients"):
        open_storage(url, patience=0.3)
    threading.Timer(0.3, lambda: [connection.close() for connection in taken]).start()
    assert optuna.get_all_study_names(open_storage(url, patience=60)) == []
    own_postgresql.stop()
    later = threading.Timer(0.5, own_postgresql.start)
    later.start()
    open_storage(url, patience=60)
    later.join()


def test_tables_of_another_version(sqlite_url: str) -> None:
    database = open_storage(sqlite_url).database
    assert database is not None
    with database.engine.begin() as connection:
        connection.execute(sqlalchemy.text("UPDATE alembic_version SET version_num = 'v3.0.0.d'"))
    with pytest.raises(StorageURLError, match=r"Cannot open sqlite:.* no longer compatible .* upg"):
        open_storage(sqlite_url)


def _start(url: str, barrier: Any) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    barrier.wait(60)
    storage = open_storage(url)
    optuna.create_study(study_name="a", storage=storage, load_if_exists=True).ask()


def test_tables_are_there_with_their_indices_or_not_at_all(sqlite_url: str) -> None:
    """Or a killed worker, or one that is slower than another, would leave names that repeat."""

    def kill(connection: object, cursor: object, statement: str, *others: object) -> None:
        if statement.startswith("CREATE UNIQUE INDEX"):
            raise KeyboardInterrupt

    sqlalchemy.event.listen(sqlalchemy.Engine, "before_cursor_execute", kill)
    try:
        with pytest.raises(KeyboardInterrupt):
            open_storage(sqlite_url)
    finally:
        sqlalchemy.event.remove(sqlalchemy.Engine, "before_cursor_execute", kill)
    database = open_storage(sqlite_url).database
    assert database is not None
    assert sqlalchemy.inspect(database.engine).get_indexes("studies")[0]["unique"]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])
def test_many_processes_create_the_tables_of_one_database(
    kind: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(f"{kind}_url")
    barrier = fork.Barrier(8)
    processes = [fork.Process(target=_start, args=(url, barrier)) for _ in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 8
    study = optuna.load_study(study_name="a", storage=open_storage(url))
    assert [trial.number for trial in study.trials] == list(range(8))


def test_a_missing_study_comes_with_the_command_that_creates_it(
    sqlite_url: str, journal_path: str
) -> None:
    for missing_file in (True, False):
        with pytest.raises(StudyError, match="there is no study 'my study'") as caught:
            open_study("my study", sqlite_url)
        assert "--study-name 'my study' --storage sqlite:///" in str(caught.value)
        assert ("a file that does not exist" in str(caught.value)) == missing_file
        if missing_file:
            assert not Path(sqlite_url.removeprefix("sqlite:///")).exists(), "reading created it"
            open_storage(sqlite_url)
    for n in range(7):
        create_study(f"study-{n}", sqlite_url)
    study = create_study("My Study 2", sqlite_url)
    create_evaluation_study(study, sqlite_url)
    with pytest.raises(StudyError, match=r"\.db, which has My Study 2, study-0, .*, 3 more. Creat"):
        open_study("my study", sqlite_url)
    with pytest.raises(StudyError, match="--direction minimize"):
        open_study("my study", sqlite_url, direction="minimize")
    with pytest.raises(StudyError, match=r"study\.log, a file that does not exist"):
        open_study("s", journal_path)
    assert not Path(journal_path).exists()
    with pytest.raises(StorageURLError, match=r"study\.db is an SQLite database: write sqlite:///"):
        open_storage(sqlite_url.removeprefix("sqlite:///"))


@pytest.mark.parametrize(("there", "asked"), [("minimize", "maximize"), ("maximize", "minimize")])
def test_a_study_has_one_direction(sqlite_url: str, there: Direction, asked: Direction) -> None:
    create_study("s", sqlite_url, direction=there).set_user_attr("mark", 1)
    # A storage can be opened after another one has been written to.
    assert create_study("s", sqlite_url, direction=there).user_attrs == {"mark": 1}
    with pytest.raises(StudyError, match=f"has direction {there}, but") as caught:
        create_study("s", sqlite_url, direction=asked)
    assert f"--direction {asked} --study-name s --storage sqlite:///" in str(caught.value)
    optuna.create_study(study_name="two", storage=sqlite_url, directions=[there] * 2)
    with pytest.raises(StudyError, match=f"has direction {there}, {there}, but"):
        open_study("two", sqlite_url, direction=there)


def test_foreign_trials_are_those_that_ran_without_a_generation(sqlite_url: str) -> None:
    study = create_study("s", sqlite_url)
    study.enqueue_trial({"theta_0": 1.0})
    study.add_trial(create_trial(value=1.0, user_attrs={GENERATION: 0}))
    open_study("s", sqlite_url)
    study.add_trial(create_trial(state=TrialState.FAIL))
    with pytest.raises(StudyError, match="not of a TaylorGLO search") as caught:
        open_study("s", sqlite_url)
    assert "--study-name s-taylorglo" in str(caught.value)
    study.set_user_attr(RECIPE, {})
    open_study("s", sqlite_url)


def test_the_evaluation_study_is_created_once_and_knows_its_study(sqlite_url: str) -> None:
    study = create_study("s", sqlite_url, direction="minimize")
    assert find_evaluation_study(study) is None
    create_evaluation_study(study, sqlite_url).add_trial(create_trial(value=1.0))
    again = create_evaluation_study(study, sqlite_url)
    assert (again.study_name, len(again.trials)) == ("s-verdict", 1)
    assert again.user_attrs == {EVALUATION_OF: "s"}
    found = find_evaluation_study(study)
    assert found is not None
    assert found.direction == study.direction
    # Its trials have no generation, and are not foreign.
    assert open_study("s-verdict", sqlite_url).direction == study.direction


def test_another_study_with_the_name_is_refused_and_left_alone(sqlite_url: str) -> None:
    foreign = create_study("s-verdict", sqlite_url)
    foreign.add_trial(create_trial(value=1.0))
    create_study("t-verdict", sqlite_url).set_user_attr(EVALUATION_OF, "another")
    create_study("u-verdict", sqlite_url, direction="minimize")
    for name, message in (
        ("s", r"'s-verdict' in .* is not the evaluation study of 's'"),
        ("t", "is not the evaluation study of 't'"),
        ("u", "'u-verdict' has direction minimize"),
    ):
        with pytest.raises(StudyError, match=message):
            create_evaluation_study(create_study(name, sqlite_url), sqlite_url)
    assert foreign.user_attrs == {}
