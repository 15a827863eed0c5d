"""What becomes of a trial, each change in one transaction.

A trial waits, is taken, and ends. Each step is made by a statement that holds only if the trial is
still as it is taken to be, so of two processes one succeeds, and neither has to hold a lock: a
process that is suspended or dies in the middle leaves nothing that others wait for.

Optuna makes the same changes in several steps, of which SQLite puts a read before the transaction,
and reads whole studies to find one trial that waits.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

import sqlalchemy
from optuna.distributions import distribution_to_json
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.engine import Connection

from optuna_taylorglo.attributes import TAKER, WORKER
from optuna_taylorglo.storage import statements
from optuna_taylorglo.storage.counted_beats import CountedBeats
from optuna_taylorglo.storage.optuna_private import (
    ATTRIBUTES,
    BEATS,
    PARAMETERS,
    STUDIES,
    SYSTEM_ATTRIBUTES,
    TRIALS,
    VALUES,
    stored_value,
    trial_id_of,
)
from optuna_taylorglo.storage.outage_tolerant import OutageTolerantStorage
from optuna_taylorglo.storage.reading import at_this_place, read_just_taken
from optuna_taylorglo.storage.retry import is_standstill, noting_standstill, retry_during_outage

T = TypeVar("T")


@dataclass(frozen=True)
class Marks:
    """By which attributes a trial that waits is known to be ready.

    Attributes:
        ready: Key of the attribute that holds the trial's own number when it may be taken.
        key: Key of a further attribute, or None if any trial will do.
        values: What the further attribute may be.
    """

    ready: str
    key: str | None = None
    values: Sequence[Any] = ()


class Glance(NamedTuple):
    """What a study is like.

    Attributes:
        counts: How many trials are in each state.
        attribute: A user attribute of the study; None if there is none, or no trial.
    """

    counts: Counter[TrialState]
    attribute: Any


def add_waiting(
    storage: BaseStorage, study_id: int, trials: Sequence[FrozenTrial], first: int
) -> list[int]:
    """Add trials that wait, if they get the numbers that they are meant to have.

    Args:
        storage: The storage.
        study_id: The study.
        trials: The trials, in order, with parameters and attributes.
        first: Number that the first of them is to have.

    Returns:
        Ids of those that have the right number: all or none of them in a database, in other
        storages perhaps some, and one more lies in the study with a wrong number.
    """
    if isinstance(storage, OutageTolerantStorage):
        return _in_transaction(
            storage, lambda connection: _add_waiting(connection, study_id, trials, first)
        )
    added: list[int] = []
    if storage.get_n_trials(study_id) != first:
        return added
    for number, trial in enumerate(trials, start=first):
        trial_id = storage.create_new_trial(study_id, template_trial=trial)
        if storage.get_trial_number_from_id(trial_id) != number:
            break
        added.append(trial_id)
    return added


def look_and_take(
    storage: BaseStorage,
    study_id: int,
    key: str,
    marks: Marks,
    attributes: Mapping[str, Any],
    unless: Callable[[Counter[TrialState]], bool] = lambda counts: False,
) -> tuple[Glance, FrozenTrial | None]:
    """Glance at a study, and set the first trial running that waits and is ready.

    Args:
        storage: The storage.
        study_id: The study.
        key: Of the study's user attribute that is looked at.
        marks: Which trials are ready.
        attributes: User attributes that the trial gets, such as its worker.
        unless: Told the numbers of trials in each state; True if none is to be taken.

    Returns:
        What the study was like before, and the trial; None if there is none. To take it counts as
        its first sign of life.
    """
    if isinstance(storage, OutageTolerantStorage):

        def look_and_take(connection: Connection) -> tuple[Glance, FrozenTrial | None]:
            found = _glance(connection, study_id, key)
            if not found.counts[TrialState.WAITING] or unless(found.counts):
                return found, None
            return found, _take_ready(connection, study_id, marks, attributes)

        return _in_transaction(storage, look_and_take)
    found = glance(storage, study_id, key)
    if not found.counts[TrialState.WAITING] or unless(found.counts):
        return found, None
    for trial in storage.get_all_trials(study_id, deepcopy=False, states=(TrialState.WAITING,)):
        is_ready = trial.user_attrs.get(marks.ready) == trial.number
        if is_ready and (marks.key is None or trial.user_attrs.get(marks.key) in marks.values):
            taken = take(storage, trial_id_of(trial), attributes)
            if taken is not None:
                return found, taken
    return found, None


def take(storage: BaseStorage, trial_id: int, attributes: Mapping[str, Any]) -> FrozenTrial | None:
    """Set one trial that waits running; None if it does not wait any more."""
    if isinstance(storage, OutageTolerantStorage):
        return _in_transaction(
            storage, lambda connection: _take_one(connection, trial_id, attributes)
        )
    try:
        # One who comes too late must not leave its name, or the trial would be taken for its own
        # when it dies; and who dies between these steps must not be unknown.
        storage.set_trial_user_attr(trial_id, TAKER, attributes.get(WORKER))
        if storage.set_trial_state_values(trial_id, TrialState.RUNNING):
            for key, value in attributes.items():
                storage.set_trial_user_attr(trial_id, key, value)
            return storage.get_trial(trial_id)
    except UpdateFinishedTrialError:
        pass
    return None


def end(
    storage: BaseStorage,
    trial_id: int,
    state: TrialState,
    value: float | None = None,
    *,
    attributes: Mapping[str, Any] | None = None,
    before: TrialState = TrialState.RUNNING,
    seen: datetime | int | None = None,
) -> bool:
    """End a trial, if nobody else has.

    Args:
        storage: The storage.
        trial_id: The trial.
        state: COMPLETE, PRUNED or FAIL.
        value: Its value.
        attributes: User attributes that it gets.
        before: The state that it must be in.
        seen: If given, its last sign of life must be this one: its time, or the number of signs in
            a storage without a clock.

    Returns:
        Whether it ended by this call.
    """
    if isinstance(storage, OutageTolerantStorage):
        return _in_transaction(
            storage,
            lambda connection: (
                (seen is None or _is_still_silent(connection, trial_id, seen, storage.grace_period))
                and _end(connection, trial_id, state, value, attributes or {}, before)
            ),
        )
    if storage.get_trial(trial_id).state != before:
        return False
    if seen is not None and not is_still_silent(storage, trial_id, seen):
        return False
    try:
        for key, content in (attributes or {}).items():
            storage.set_trial_user_attr(trial_id, key, content)
        values = None if value is None else [value]
        return storage.set_trial_state_values(trial_id, state, values)
    except UpdateFinishedTrialError:
        return False


def is_still_silent(storage: BaseStorage, trial_id: int, seen: datetime | int) -> bool:
    """Whether a trial's last sign of life is still this one, though everybody can write."""
    if isinstance(storage, OutageTolerantStorage):
        return _in_transaction(
            storage,
            lambda connection: _is_still_silent(connection, trial_id, seen, storage.grace_period),
        )
    assert isinstance(storage, CountedBeats)
    assert isinstance(seen, int)
    return storage.is_still_silent(trial_id, seen)


def beat(storage: BaseStorage, trial_id: int) -> bool:
    """Give a sign of life of a trial; False if it does not run any more."""
    if isinstance(storage, OutageTolerantStorage):
        return _in_transaction(storage, lambda connection: _beat_if_running(connection, trial_id))
    try:
        if (record := getattr(storage, "record_heartbeat", None)) is not None:
            record(trial_id)
    except UpdateFinishedTrialError:
        return False
    return storage.get_trial(trial_id).state == TrialState.RUNNING


def glance(storage: BaseStorage, study_id: int, key: str) -> Glance:
    """What a study is like, without reading its trials.

    Args:
        storage: The storage.
        study_id: The study.
        key: Of a user attribute of the study.
    """
    if isinstance(storage, OutageTolerantStorage):
        return _in_transaction(storage, lambda connection: _glance(connection, study_id, key))
    trials = storage.get_all_trials(study_id, deepcopy=False)
    attributes = storage.get_study_user_attrs(study_id)
    return Glance(Counter(trial.state for trial in trials), attributes.get(key))


def running_trials(
    storage: BaseStorage, study_id: int, key: str, limit: int
) -> list[tuple[datetime | None, Any]]:
    """When some of the running trials began, and a user attribute of theirs.

    Args:
        storage: The storage.
        study_id: The study.
        key: Of the attribute; None is returned where a trial has none.
        limit: How many trials, at most.

    Returns:
        For each, the time of its start at this place, and the attribute.
    """
    if not isinstance(storage, OutageTolerantStorage):
        states = (TrialState.RUNNING,)
        trials = storage.get_all_trials(study_id, deepcopy=False, states=states)
        return [(t.datetime_start, t.user_attrs.get(key)) for t in trials[:limit]]
    of_it = (ATTRIBUTES.c.trial_id == TRIALS.c.trial_id) & (ATTRIBUTES.c.key == key)
    query = (
        sqlalchemy.select(TRIALS.c.datetime_start, ATTRIBUTES.c.value_json)
        .join_from(TRIALS, ATTRIBUTES, of_it, isouter=True)
        .where(TRIALS.c.study_id == study_id, TRIALS.c.state == TrialState.RUNNING)
        .order_by(TRIALS.c.number)
        .limit(limit)
    )
    found = _in_transaction(storage, lambda connection: connection.execute(query).all())
    return [
        (at_this_place(start), None if content is None else json.loads(content))
        for start, content in found
    ]


class Sign(NamedTuple):
    """The last sign of life of a running trial.

    Attributes:
        when: By the database's clock; None if there was none.
        age: How many seconds ago that was; infinity if there was none.
        attribute: A user attribute of the trial; None if it has none.
    """

    when: datetime | None
    age: float
    attribute: Any


def last_signs(storage: OutageTolerantStorage, study_id: int, key: str) -> dict[int, Sign]:
    """The last sign of life of each running trial, by its id.

    Args:
        storage: The storage.
        study_id: The study.
        key: Of a user attribute of trials.
    """
    of_it = (ATTRIBUTES.c.trial_id == TRIALS.c.trial_id) & (ATTRIBUTES.c.key == key)
    query = (
        sqlalchemy.select(
            TRIALS.c.trial_id,
            BEATS.c.heartbeat,
            sqlalchemy.func.current_timestamp(),
            ATTRIBUTES.c.value_json,
        )
        .join_from(TRIALS, BEATS, TRIALS.c.trial_id == BEATS.c.trial_id, isouter=True)
        .join(ATTRIBUTES, of_it, isouter=True)
        .where(TRIALS.c.study_id == study_id, TRIALS.c.state == TrialState.RUNNING)
    )
    found = _in_transaction(storage, lambda connection: connection.execute(query).all())
    return {
        trial_id: Sign(
            beat,
            float("inf") if beat is None else (now.replace(tzinfo=None) - beat).total_seconds(),
            None if content is None else json.loads(content),
        )
        for trial_id, beat, now, content in found
    }


def _in_transaction(storage: OutageTolerantStorage, do: Callable[[Connection], T]) -> T:
    def attempt() -> T:
        storage.check_file()
        with storage.database.engine.begin() as connection:
            return do(connection)

    return retry_during_outage(
        lambda: noting_standstill(attempt, storage.grace_period), limit=storage.outage_limit
    )


def _add_waiting(
    connection: Connection, study_id: int, trials: Sequence[FrozenTrial], first: int
) -> list[int]:
    # A change that changes nothing keeps all others from adding trials until this is done, in
    # every kind of database.
    of_it = STUDIES.c.study_id == study_id
    same = {"study_name": STUDIES.c.study_name}
    connection.execute(sqlalchemy.update(STUDIES).where(of_it).values(same))
    count = sqlalchemy.select(sqlalchemy.func.count()).where(TRIALS.c.study_id == study_id)
    if not trials or connection.execute(count).scalar() != first:
        return []
    numbers = range(first, first + len(trials))
    row = {"study_id": study_id, "state": TrialState.WAITING}
    connection.execute(sqlalchemy.insert(TRIALS), [row | {"number": n} for n in numbers])
    ids = (
        sqlalchemy.select(TRIALS.c.trial_id)
        .where(TRIALS.c.study_id == study_id, TRIALS.c.number >= first)
        .order_by(TRIALS.c.number)
    )
    added = list(connection.execute(ids).scalars())
    contents = [_rows(trial, trial_id) for trial, trial_id in zip(trials, added, strict=True)]
    for table in (PARAMETERS, ATTRIBUTES, SYSTEM_ATTRIBUTES):
        if rows := [row for content in contents for row in content[table]]:
            connection.execute(sqlalchemy.insert(table), rows)
    return added


def _rows(trial: FrozenTrial, trial_id: int) -> dict[sqlalchemy.Table, list[dict[str, Any]]]:
    """What belongs to a trial, as rows of the tables that hold it."""
    return {
        PARAMETERS: [
            {
                "trial_id": trial_id,
                "param_name": name,
                "param_value": trial.distributions[name].to_internal_repr(value),
                "distribution_json": distribution_to_json(trial.distributions[name]),
            }
            for name, value in trial.params.items()
        ],
        ATTRIBUTES: _attribute_rows(trial.user_attrs, trial_id),
        SYSTEM_ATTRIBUTES: _attribute_rows(trial.system_attrs, trial_id),
    }


def _attribute_rows(attributes: Mapping[str, Any], trial_id: int) -> list[dict[str, Any]]:
    return [
        {"trial_id": trial_id, "key": key, "value_json": json.dumps(value)}
        for key, value in attributes.items()
    ]


def _glance(connection: Connection, study_id: int, key: str) -> Glance:
    rows = connection.execute(statements.GLANCE, {"of_study": study_id, "of_key": key}).all()
    content = rows[0].attribute if rows else None
    counts = Counter({row.state: row.number for row in rows})
    return Glance(counts, None if content is None else json.loads(content))


def _take_ready(
    connection: Connection, study_id: int, marks: Marks, attributes: Mapping[str, Any]
) -> FrozenTrial | None:
    with_values = marks.key is not None
    wanted: dict[str, Any] = {"of_study": study_id, "ready_key": marks.ready}
    if with_values:
        values = [json.dumps(value) for value in marks.values]
        wanted |= {"further_key": marks.key, "further_values": values}
    dialect = connection.dialect.name
    if dialect != "mysql":
        change = statements.set_first_running(dialect, with_values=with_values)
        return _take(connection, change, wanted, attributes)
    # MySQL cannot read in a statement the table that it changes, and locks all that it looks at.
    ready = statements.ready(with_values=with_values).limit(100)
    for trial_id in connection.execute(ready, wanted).scalars():
        if (taken := _take_one(connection, trial_id, attributes)) is not None:
            return taken
    return None


def _take_one(
    connection: Connection, trial_id: int, attributes: Mapping[str, Any]
) -> FrozenTrial | None:
    change = statements.set_running(connection.dialect.name)
    return _take(connection, change, {"of_trial": trial_id}, attributes)


def _take(
    connection: Connection,
    change: sqlalchemy.Update,
    wanted: Mapping[str, Any],
    attributes: Mapping[str, Any],
) -> FrozenTrial | None:
    """Set a trial running that waits."""
    now = datetime.now()
    result = connection.execute(change, {**wanted, "now": _as_stored(now)})
    if result.returns_rows:
        taken: int | None = result.scalar()
    else:
        taken = wanted["of_trial"] if result.rowcount else None
    if taken is None:
        return None
    _set_attributes(connection, taken, attributes)
    _beat(connection, taken)
    return read_just_taken(connection, taken, now)


def _end(
    connection: Connection,
    trial_id: int,
    state: TrialState,
    value: float | None,
    attributes: Mapping[str, Any],
    before: TrialState,
) -> bool:
    now = _as_stored(datetime.now())
    change = {"of_trial": trial_id, "before": before, "after": state, "now": now}
    if not connection.execute(statements.END, change).rowcount:
        return False
    if value is not None:
        content, kind = stored_value(value)
        row = {"trial_id": trial_id, "objective": 0, "value": content, "value_type": kind}
        connection.execute(sqlalchemy.insert(VALUES).values(row))
    _set_attributes(connection, trial_id, attributes)
    return True


def _is_still_silent(
    connection: Connection, trial_id: int, seen: datetime | int, grace: float
) -> bool:
    began = time.monotonic()
    # A change that changes nothing: who was held up by a writer that was suspended must not be the
    # first to act when that one wakes.
    of_it = TRIALS.c.trial_id == trial_id
    same = {"number": TRIALS.c.number}
    connection.execute(sqlalchemy.update(TRIALS).where(of_it).values(same))
    if is_standstill(began, grace):
        return False
    # A sign of life that comes at this very moment waits until this is decided.
    query = sqlalchemy.select(BEATS.c.heartbeat).where(BEATS.c.trial_id == trial_id)
    return bool(connection.execute(query.with_for_update()).scalar() == seen)


def _set_attributes(connection: Connection, trial_id: int, attributes: Mapping[str, Any]) -> None:
    for key, value in attributes.items():
        row = {"of_trial": trial_id, "of_key": key, "content": json.dumps(value)}
        connection.execute(statements.set_attribute(connection.dialect.name), row)


def _beat_if_running(connection: Connection, trial_id: int) -> bool:
    if not connection.execute(statements.IS_RUNNING, {"of_trial": trial_id}).scalar():
        return False
    _beat(connection, trial_id)
    return True


def _beat(connection: Connection, trial_id: int) -> None:
    connection.execute(statements.beat(connection.dialect.name), {"of_trial": trial_id})


def _as_stored(time: datetime) -> datetime:
    """A time of this place as Optuna keeps it: of Greenwich, without saying so."""
    return time.astimezone(UTC).replace(tzinfo=None)
