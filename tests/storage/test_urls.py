"""Storage URLs: which driver opens one, and how people are shown it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from optuna_taylorglo.errors import StorageURLError
from optuna_taylorglo.storage.urls import hide_password, parse_url, resolve_storage_url, shown_url


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of the drivers that seem to be installed."""
    modules: set[str] = set()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name in modules else None)
    return modules


@pytest.mark.parametrize(
    ("url", "drivers", "expected"),
    [
        ("postgresql://u@h/db", {"psycopg2", "psycopg"}, "postgresql+psycopg2"),
        ("postgresql://u@h/db", {"psycopg"}, "postgresql+psycopg"),
        ("postgres://u@h/db", {"psycopg"}, "postgresql+psycopg"),
        ("mysql://u@h/db", {"MySQLdb", "pymysql"}, "mysql+mysqldb"),
        ("mysql://u@h/db", {"pymysql"}, "mysql+pymysql"),
        ("mariadb://u@h/db", {"pymysql"}, "mysql+pymysql"),
        ("mariadb+pymysql://u@h/db", set(), "mysql+pymysql"),
        ("postgres+asyncpg://u@h/db", {"psycopg"}, "postgresql+asyncpg"),
    ],
)
def test_the_best_driver_that_is_installed_is_taken_unless_one_is_named(
    url: str, drivers: set[str], expected: str, installed: set[str]
) -> None:
    installed |= drivers
    assert parse_url(url).drivername == expected


def test_nothing_but_the_driver_is_changed() -> None:
    url = parse_url("postgres+psycopg://me:p%40ss@host:5433/db?sslmode=require")
    assert (url.username, url.password, url.host, url.port) == ("me", "p@ss", "host", 5433)
    assert (url.database, dict(url.query)) == ("db", {"sslmode": "require"})


def test_sqlite_needs_a_directory_but_not_a_file(tmp_path: Path) -> None:
    assert parse_url(f"sqlite:///{tmp_path}/new.db").database == f"{tmp_path}/new.db"
    assert parse_url("sqlite://").database is None
    with pytest.raises(StorageURLError, match=r"/none' of sqlite:.*/none/new\.db does not exist"):
        parse_url(f"sqlite:///{tmp_path}/none/new.db")


def test_an_unreadable_url_is_not_quoted_for_its_password() -> None:
    with pytest.raises(StorageURLError, match="scheme 'mysql' cannot be read") as caught:
        parse_url("mysql://me:secret@host:port/db")
    assert "secret" not in str(caught.value)


def test_people_are_shown_no_password() -> None:
    url = "postgresql://me:secret@host/db"
    assert hide_password(url) == shown_url(url) == "postgresql://me:***@host/db"
    assert shown_url("a/study.log") == "a/study.log"


def test_an_empty_variable_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a compose file leaves it when nobody has set it."""
    monkeypatch.setenv("OPTUNA_STORAGE", "")
    assert resolve_storage_url() == "sqlite:///taylorglo.db"
    assert resolve_storage_url("") == "sqlite:///taylorglo.db"
