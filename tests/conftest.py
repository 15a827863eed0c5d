from __future__ import annotations

import optuna
import pytest
from databases import (
    database_url,
    journal_path,
    mariadb,
    mariadb_url,
    own_postgresql,
    postgresql,
    postgresql_url,
    sqlite_url,
)

__all__ = [
    "database_url",
    "journal_path",
    "mariadb",
    "mariadb_url",
    "own_postgresql",
    "postgresql",
    "postgresql_url",
    "sqlite_url",
]


@pytest.fixture(autouse=True)
def quiet_optuna() -> None:
    """Trials are told one by one in tests; warnings and errors are still shown."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
