"""Opening storages and studies, with errors that say what to do."""

from __future__ import annotations

import contextlib
import difflib
import shlex
from typing import Literal

import optuna
import sqlalchemy
from optuna.storages import InMemoryStorage
from optuna.study import Study, StudyDirection
from optuna.trial import TrialState

from optuna_taylorglo.attributes import EVALUATION_OF, GENERATION, RECIPE
from optuna_taylorglo.errors import StorageUnreachable, StorageURLError, StudyError
from optuna_taylorglo.study import outages, storages
from optuna_taylorglo.study.optuna_private import storage_of
from optuna_taylorglo.study.storages import RetryingStorage, file_of, shown_url
from optuna_taylorglo.text import counted

Direction = Literal["maximize", "minimize"]

# Seconds to wait for a storage that is not ready; workers may start together with the database.
PATIENCE, WORKER_PATIENCE = 10.0, 600.0


def open_storage(url: str, *, patience: float = PATIENCE) -> RetryingStorage:
    """Open a storage for many workers, creating its tables when they are missing.

    Args:
        url: ``sqlite:///file.db``, ``postgresql://…``, ``mysql://…`` or ``mariadb://…``;
            ``grpc://host:port`` for Optuna's gRPC proxy; or the path of an Optuna journal file.
        patience: Seconds to wait for a server that is starting, or has no connection to spare.
    """
    shown = shown_url(url)
    try:
        inner = outages.retry(
            lambda: storages.connect(url), limit=patience, passes=outages.is_not_ready
        )
    except (sqlalchemy.exc.NoSuchModuleError, ImportError, RuntimeError) as error:
        # The driver is missing, or Optuna asks to upgrade the tables.
        raise StorageURLError(f"Cannot open {shown}: {error}") from error
    except outages.storage_errors() as error:
        raise StorageUnreachable(f"Cannot open {shown}: {outages.outage_reason(error)}") from error
    # mypy does not see the methods that are added to the class by a loop.
    storage = RetryingStorage(inner, file_of(url), shown)  # type: ignore[abstract]
    storages.release_connections(storage)
    return storage


def check_file_exists(url: str) -> None:
    """Raise `StudyError` if opening a storage for reading would create its file."""
    if (file := file_of(url)) is not None and not file.exists():
        raise StudyError(
            f"there is no study in {shown_url(url)}: the file does not exist. The storage is "
            "given by --storage or OPTUNA_STORAGE."
        )


def open_study(
    study_name: str, url: str, *, direction: Direction = "maximize", patience: float = PATIENCE
) -> Study:
    """Load a study that a TaylorGLO search can run in, or say which command creates one."""
    try:
        check_file_exists(url)
        storage = open_storage(url, patience=patience)
        study = optuna.load_study(study_name=study_name, storage=storage)
    except (KeyError, StudyError) as error:
        found = ", a file that does not exist"
        if isinstance(error, KeyError):
            found = _studies_like(study_name, storage)
        raise StudyError(
            f"there is no study {study_name!r} in {shown_url(url)}{found}. Create it with\n"
            f"  {create_command(study_name, url, direction)}"
        ) from error
    return _checked(study, url)


def _studies_like(name: str, storage: RetryingStorage) -> str:
    """The searches in a storage, those with names near to this one first."""
    names = set(optuna.get_all_study_names(storage))
    names -= {evaluation_study_name(each) for each in names}

    def sort_key(other: str) -> tuple[float, str]:
        return -difflib.SequenceMatcher(None, name.lower(), other.lower()).ratio(), other

    shown = sorted(names, key=sort_key)[:5]
    more = [f"{len(names) - len(shown)} more"] if len(names) > len(shown) else []
    return ", which has " + ", ".join([*shown, *more]) if shown else ""


def create_study(study_name: str, url: str, *, direction: Direction = "maximize") -> Study:
    """Create a study for a TaylorGLO search; one that exists must have the direction."""
    return _checked(_create(study_name, open_storage(url), direction, url), url)


def create_in_memory(name: str, direction: Direction) -> Study:
    """A study that only this process sees."""
    return _quietly_created(name, None, direction)


def _create(name: str, storage: RetryingStorage, direction: Direction, url: str) -> Study:
    study = _quietly_created(name, storage, direction)
    check_direction(study, direction, url)
    return study


def _quietly_created(name: str, storage: RetryingStorage | None, direction: Direction) -> Study:
    """A study without Optuna's message, which would also be about our further ones."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        return optuna.create_study(
            study_name=name, storage=storage, direction=direction, load_if_exists=True
        )
    finally:
        optuna.logging.set_verbosity(before)


def _checked(study: Study, url: str) -> Study:
    """Refuse a study of something else."""
    if len(study.directions) > 1:
        check_direction(study, "maximize", url)
    if RECIPE not in study.user_attrs and EVALUATION_OF not in study.user_attrs:
        foreign = [t for t in study.get_trials(deepcopy=False) if GENERATION not in t.user_attrs]
        # Waiting trials are candidates that the user enqueued to start with.
        if any(trial.state != TrialState.WAITING for trial in foreign):
            new = create_command(f"{study.study_name}-taylorglo", url)
            raise StudyError(
                f"study {study.study_name!r} holds {counted(len(foreign), 'trials')} not of a "
                f"TaylorGLO search. Use another name:\n  {new}"
            )
    return study


def is_shared(study: Study) -> bool:
    """Whether other processes can see a study."""
    return not isinstance(storage_of(study), InMemoryStorage)


def check_direction(study: Study, direction: Direction, url: str | None = None) -> None:
    """Refuse a study of another direction, or of several; without a URL in the default storage."""
    names = ", ".join(each.name.lower() for each in study.directions)
    if names != direction:
        raise StudyError(
            f"study {study.study_name!r} has direction {names}, but the recipe's fitness.mode "
            f"needs {direction}. Use another name, or delete the study and create it anew with\n"
            f"  {create_command(study.study_name, url, direction)}"
        )


def create_command(study_name: str, url: str | None, direction: Direction = "maximize") -> str:
    """The command that creates a study, without a password."""
    command = ["optuna", "create-study", "--direction", direction, "--study-name", study_name]
    if url is not None:
        # Optuna's command line does not know proxies, only the database behind one.
        is_proxy = url.startswith("grpc:")
        command += ["--storage", "DATABASE_OF_THE_PROXY" if is_proxy else shown_url(url)]
    return shlex.join(command)


def evaluation_study_name(study_name: str) -> str:
    """Name of the study that holds the trainings for a study's verdict."""
    return f"{study_name}-verdict"


def create_evaluation_study(study: Study, url: str) -> Study:
    """Create or load the study that holds the trainings for a study's verdict."""
    direction: Direction = "minimize" if study.direction == StudyDirection.MINIMIZE else "maximize"
    name = evaluation_study_name(study.study_name)
    found = _create(name, storage_of(study), direction, url)
    if not found.trials and EVALUATION_OF not in found.user_attrs:
        found.set_user_attr(EVALUATION_OF, study.study_name)
    if found.user_attrs.get(EVALUATION_OF) != study.study_name:
        raise StudyError(
            f"study {name!r} in {shown_url(url)} is not the evaluation study of "
            f"{study.study_name!r}; its name is needed for the verdict. Rename or delete it."
        )
    return found


def find_evaluation_study(study: Study) -> Study | None:
    """The study that holds the trainings for a study's verdict, if there is one."""
    name = evaluation_study_name(study.study_name)
    with contextlib.suppress(KeyError):
        return optuna.load_study(study_name=name, storage=storage_of(study))
    return None
