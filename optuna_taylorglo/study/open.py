"""Opening storages and studies, with errors that say what to do."""

from __future__ import annotations

import shlex
from typing import Literal

import optuna
import sqlalchemy
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage
from optuna.study import Study, StudyDirection

from optuna_taylorglo.attributes import COMPANION_OF, GENERATION, RECIPE
from optuna_taylorglo.errors import StorageUnreachable, StorageURLError, StudyError
from optuna_taylorglo.study.optuna_private import storage_of
from optuna_taylorglo.study.outages import (
    OUTAGE_LIMIT,
    is_grpc_error,
    is_not_ready,
    outage_reason,
    retry,
)
from optuna_taylorglo.study.storages import (
    RetryingStorage,
    open_database,
    open_grpc_proxy,
    open_journal,
)
from optuna_taylorglo.study.urls import (
    file_of,
    grpc_address,
    hide_password,
    is_proxy,
    journal_file,
    parse_url,
    read_url,
    shown_url,
)

Direction = Literal["maximize", "minimize"]

PATIENCE = 10.0
"""Seconds that a command waits for a storage that is not ready."""

WORKER_PATIENCE = 600.0
"""Seconds that a worker waits; it may have been started together with the database."""

_STORAGE_ERRORS = (sqlalchemy.exc.DBAPIError, StorageInternalError)


def open_storage(
    url: str, *, patience: float = PATIENCE, outage_limit: float = OUTAGE_LIMIT
) -> RetryingStorage:
    """Open a storage for many workers, creating its tables when they are missing.

    Args:
        url: ``sqlite:///file.db``, ``postgresql://…``, ``mysql://…`` or ``mariadb://…``;
            ``grpc://host:port`` for Optuna's gRPC proxy; or the path of an Optuna journal file.
        patience: Seconds to wait for a server that is starting, or has no connection to spare.
        outage_limit: Seconds to wait for a storage that goes away later.

    Returns:
        A storage for ``optuna.create_study`` and ``optuna.load_study``.

    Raises:
        StorageURLError: The URL is wrong or its driver is not installed.
        StorageUnreachable: The storage cannot be reached or refuses us.
    """
    shown = shown_url(url)
    try:
        inner = retry(
            lambda: _open(url),
            limit=patience,
            passes=lambda error: is_not_ready(error) or _is_creation_race(error),
        )
    except (sqlalchemy.exc.NoSuchModuleError, ImportError) as error:
        raise StorageURLError(
            f"The driver of {shown} is unknown or not installed: {error}"
        ) from error
    except Exception as error:
        if isinstance(error, _STORAGE_ERRORS) or is_grpc_error(error):
            raise StorageUnreachable(f"Cannot open {shown}: {outage_reason(error)}") from error
        raise
    # mypy does not see the methods that are added to the class by a loop.
    storage = RetryingStorage(inner, shown, outage_limit=outage_limit)  # type: ignore[abstract]
    storage.release_connections()
    return storage


def _open(url: str) -> BaseStorage:
    if "://" not in url:
        return open_journal(journal_file(url))
    if is_proxy(url):
        proxy = open_grpc_proxy(*grpc_address(read_url(url)))
        proxy.get_all_studies()  # one call, to see whether it answers
        return proxy
    parsed = parse_url(url)
    try:
        return open_database(parsed)
    except RuntimeError as error:
        # Optuna's own words, with the command that upgrades the tables.
        raise StorageURLError(f"Cannot open {hide_password(parsed)}: {error}") from error


def _is_creation_race(error: Exception) -> bool:
    """Whether another process has created a table, or its first row, at the same moment."""
    if not isinstance(error, _STORAGE_ERRORS):
        return False
    said = outage_reason(error).lower()
    return any(words in said for words in ("already exists", "duplicate", "unique constraint"))


def open_study(
    study_name: str, url: str, *, direction: Direction = "maximize", patience: float = PATIENCE
) -> Study:
    """Load a study that a TaylorGLO search can run in.

    Args:
        study_name: Its name.
        url: Storage URL, as in `open_storage`.
        direction: Named in the command that creates a missing study.
        patience: Seconds to wait for a storage that is not ready.

    Raises:
        StudyError: If it does not exist, has several objectives, or holds trials of something else.
        StorageURLError: If the URL is wrong.
        StorageUnreachable: If the storage cannot be reached.
    """
    try:
        check_file_exists(url)
        storage = open_storage(url, patience=patience)
        study = optuna.load_study(study_name=study_name, storage=storage)
    except (KeyError, MissingFile) as error:
        missing = ", a file that does not exist" if isinstance(error, MissingFile) else ""
        raise StudyError(
            f"there is no study {study_name!r} in {shown_url(url)}{missing}. Create it with\n"
            f"  {create_command(study_name, url, direction)}"
        ) from error
    _check(study, url)
    return study


class MissingFile(StudyError):
    """The file of a storage does not exist, and reading must not create it."""


def check_file_exists(url: str) -> None:
    """Make sure that opening a storage for reading does not create it.

    Raises:
        MissingFile: If it is a file that does not exist.
        StorageURLError: If the URL is wrong.
    """
    file = file_of(url)
    if file is not None and not file.exists():
        raise MissingFile(
            f"there is no study in {shown_url(url)}: the file does not exist. The storage is "
            "given by --storage or OPTUNA_STORAGE."
        )


def create_study(
    study_name: str, url: str, *, direction: Direction = "maximize", patience: float = PATIENCE
) -> Study:
    """Create a study for a TaylorGLO search, or load it if it exists.

    Args and errors as `open_study`; an existing study must have the direction.
    """
    study = optuna.create_study(
        study_name=study_name,
        storage=open_storage(url, patience=patience),
        direction=direction,
        load_if_exists=True,
    )
    _check(study, url)
    check_direction(study, direction, url)
    return study


def create_companion(study: Study, url: str) -> Study:
    """Create or load the study that holds the trainings for a study's verdict."""
    companion = optuna.create_study(
        study_name=companion_name(study.study_name),
        storage=storage_of(study),
        direction=study.direction,
        load_if_exists=True,
    )
    if not companion.trials and COMPANION_OF not in companion.user_attrs:
        companion.set_user_attr(COMPANION_OF, study.study_name)
    if companion.user_attrs.get(COMPANION_OF) != study.study_name:
        raise StudyError(
            f"study {companion.study_name!r} in {shown_url(url)} is not the companion of "
            f"{study.study_name!r}; its name is needed for the verdict. Rename or delete it."
        )
    _check(companion, url)
    minimises = study.direction == StudyDirection.MINIMIZE
    check_direction(companion, "minimize" if minimises else "maximize", url)
    return companion


def find_companion(study: Study) -> Study | None:
    """The study that holds the trainings for a study's verdict, if there is one."""
    try:
        name = companion_name(study.study_name)
        return optuna.load_study(study_name=name, storage=storage_of(study))
    except KeyError:
        return None


def companion_name(study_name: str) -> str:
    """Name of the study that holds the trainings for a study's verdict."""
    return f"{study_name}-verdict"


def create_command(study_name: str, url: str | None, direction: Direction = "maximize") -> str:
    """The command that creates a study, for people to copy; without a password."""
    command = ["optuna", "create-study", "--direction", direction, "--study-name", study_name]
    if url is not None:
        # Optuna's command line does not know proxies, only what is behind them.
        command += ["--storage", "DATABASE_OF_THE_PROXY" if is_proxy(url) else shown_url(url)]
    return shlex.join(command)


def check_direction(study: Study, direction: Direction, url: str | None = None) -> None:
    """Check the direction of a study.

    Args:
        study: The study.
        direction: The direction that it must have.
        url: Storage URL for the command in the message; None for the default storage.

    Raises:
        StudyError: If it has another one.
    """
    if study.directions != [StudyDirection[direction.upper()]]:
        directions = ", ".join(direction.name.lower() for direction in study.directions)
        verb = direction.replace("ize", "ised")
        raise StudyError(
            f"study {study.study_name!r} has direction {directions}, but by the recipe's "
            f"fitness.mode its metric is to be {verb}. Use another name, or delete the study and "
            f"create it anew with\n  {create_command(study.study_name, url, direction)}"
        )


def _check(study: Study, url: str) -> None:
    name = study.study_name
    if len(study.directions) > 1:
        directions = ", ".join(direction.name.lower() for direction in study.directions)
        raise StudyError(
            f"study {name!r} has direction {directions}, but a search has one objective. Use "
            f"another name, or delete the study and create it anew with\n"
            f"  {create_command(name, url)}"
        )
    if RECIPE in study.user_attrs or COMPANION_OF in study.user_attrs:
        return
    strangers = [t for t in study.get_trials(deepcopy=False) if GENERATION not in t.user_attrs]
    # Trials that wait are candidates that somebody enqueued for the search to start with.
    if any(not trial.state == optuna.trial.TrialState.WAITING for trial in strangers):
        raise StudyError(
            f"study {name!r} holds {len(strangers)} trials that are not of a TaylorGLO search. "
            f"Use another name, and create it with\n"
            f"  {create_command(f'{name}-taylorglo', url)}"
        )
